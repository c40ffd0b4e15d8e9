"""Which column is the label: two values, and a name or a place that labels have.

A column named like a label that is 0/1 but for a few values is the label too; the reason says where the first
of these values stands. A label of more values (counts, ratings, events) needs a rule: `guess_rule` proposes one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gearshift.data import columns as raw
from gearshift.data.guess_rule import (
    CLICK_COUNT_NAME,
    OTHER_COUNT_NAME,
    POSITIVE_WORDS,
    GuessedRule,
    guess_rule,
    is_counts,
    named_like,
    rule_text,
    shown_values,
    stated_rule,
)
from gearshift.data.label_rule import Positive, literal
from gearshift.data.profile import Profile, plain_name
from gearshift.data.schema import Label
from gearshift.data.sniff import ICONV
from gearshift.errors import UserError

# In order: the earlier the surer.
LABEL_NAMES = (
    r"(is_?)?(click(ed|s)?|clk)",
    r"label",
    r"y|target|is_?target",
    r"is_?click(ed)?_?.*",
    r".*_click(ed)?",
    r"click(ed)?_.*",
    r"(is_?)?(convert(ed)?|conversion|attributed|purchased?|bought|buy|order(ed)?|install(ed)?)",
    r"response|outcome|class",
    r"(is_?)?(like|liked|subscribed?|deposit|default|churn(ed)?|responded)",
    r".*(label|target)",
)
ZERO_ONE = ({"0", "1"}, {"-1", "1"}, {"false", "true"}, {"0.0", "1.0"}, {"-1", "+1"}, {"-1.0", "1.0"})
YES_NO = ({"yes", "no"}, {"y", "n"}, {"ja", "nein"}, {"oui", "non"}, {"si", "no"}, {"sí", "no"}, {"t", "f"})


@dataclass(frozen=True)
class FoundLabel:
    label: Label
    why: str
    warning: str | None = None


def find_label(
    profiles: list[Profile], stated: str | None, where: str, positive: Positive = None
) -> FoundLabel:
    """The column the user named, or the one that looks most like a label; `positive` is the user's own rule."""
    if stated is not None:
        profile = _named_by_user(profiles, stated, where)
        if positive is not None:
            return _with_rule(profile, stated_rule(positive), where)
        if _needs_rule(profile):
            return _with_rule(profile, guess_rule(profile, where), where)
        return _found(profile, "named by you")
    candidate = (
        _by_name(profiles)
        or named_like(CLICK_COUNT_NAME, profiles)
        or _by_place(profiles)
        or named_like(OTHER_COUNT_NAME, profiles)
    )
    if candidate is None:
        near = [f"`{p.name}` is {_but_for(p)}. " for p in profiles if _is_almost_zero_one(p)]
        raise UserError(
            f"{where}: no column looks like a label (two values such as 0 and 1). {''.join(near)}"
            'Name it: --label COLUMN (in Python: label="COLUMN")'
        )
    if _needs_rule(candidate):
        return _with_rule(candidate, guess_rule(candidate, where), where)
    return _found(candidate, "")


def _needs_rule(profile: Profile) -> bool:
    return profile.distinct > 2 and not _is_almost_zero_one(profile)


def _named_by_user(profiles: list[Profile], stated: str, where: str) -> Profile:
    profile = next((p for p in profiles if p.name == stated), None)
    if profile is None:
        names = ", ".join(p.name for p in profiles[:40])
        raise UserError(f"{where} has no column `{stated}`. It has: {names}.")
    if profile.distinct == 0:
        raise UserError(f"{where}: label `{stated}` has no value in the first examples.")
    return profile


def _with_rule(profile: Profile, rule: GuessedRule, where: str) -> FoundLabel:
    """A label of counts, ratings or events, and the rule that makes clicks of them."""
    label = Label(profile.name, rule.positive)
    share = _share_of_clicks(profile, label, where)
    written = rule_text(rule.positive)
    why = f"{rule.reason}: {written} is taken as a click ({_percent(share)})"
    warning = None
    if rule.guessed:
        warning = (
            f"{profile.name} has {profile.distinct:,} values ({shown_values(profile)}): {written} is taken as a click; "
            f"another rule: --label {profile.name} --positive RULE, such as '>= 2' or '[click, buy]' "
            "(in Python: positive=)"
        )
    return FoundLabel(label, why, warning)


def _share_of_clicks(profile: Profile, label: Label, where: str) -> float:
    refused: list[str] = []
    clicks = raw.labels(profile.column, label.positive, lambda _i, text: refused.append(text))
    words = [text for text in refused if text]
    if words and len(words) > 0.5 * profile.examples:
        raise UserError(
            f"{where}: label `{profile.name}` holds {words[0][:40]!r}, which is no number to compare with "
            f"{rule_text(label.positive)}; name the values that mean a click: --positive '[{words[0][:40]}]' "
            "(in Python: positive=[...])"
        )
    if not clicks.any():
        raise UserError(
            f"{where}: no example looked at is a click: label `{profile.name}` has {shown_values(profile)}, and the "
            f"rule is {rule_text(label.positive)}. Give another: --positive RULE (in Python: positive=RULE)"
        )
    return float(clicks.mean())


def _has_two_values(profile: Profile) -> bool:
    return profile.distinct == 2 and profile.missing == 0


def _is_zero_one(profile: Profile) -> bool:
    return {value.strip().lower() for value in profile.values} in ZERO_ONE


def _is_yes_no(profile: Profile) -> bool:
    return {value.strip().lower() for value in profile.values} in YES_NO


def _by_name(profiles: list[Profile]) -> Profile | None:
    for pattern in LABEL_NAMES:
        for profile in profiles:
            constant = _is_constant_zero_one(profile) and not profile.missing
            is_label = _has_two_values(profile) or constant or _is_almost_zero_one(profile)
            if is_label and re.fullmatch(pattern, plain_name(profile.name)):
                return profile
    return None


def _is_constant_zero_one(profile: Profile) -> bool:
    """The start of a log may hold no click at all."""
    return profile.values in (["0"], ["1"])


def _is_almost_zero_one(profile: Profile) -> bool:
    """0/1 but for up to one example in a hundred, which has another value or none."""
    if is_counts(profile):
        return False
    others = profile.examples - int(profile.counts[:2].sum())
    pair = {value.strip().lower() for value in profile.values[:2]}
    return pair in ZERO_ONE and 0 < others <= 0.01 * profile.examples


def _but_for(profile: Profile) -> str:
    """0/1 except 'maybe' in line 5,000"""
    pair = profile.values[:2]
    place, text = profile.first_other(pair)
    others = profile.examples - int(profile.counts[:2].sum()) - 1
    more = f" and {others:,} more" if others else ""
    found = repr(text[:40]) if text else "missing"
    return f"{'/'.join(sorted(pair))} except {found} in {place.unit} {place.number:,}{more}"


def _by_place(profiles: list[Profile]) -> Profile | None:
    """0/1 in the first or last column, the only 0/1 column, yes and no, any two values at an end."""
    ends = [profile for profile in (profiles[-1], profiles[0]) if _has_two_values(profile)]
    worded = [profile for profile in profiles if _has_two_values(profile) and _is_yes_no(profile)]
    zero_one = [profile for profile in profiles if _has_two_values(profile) and _is_zero_one(profile)]
    only = zero_one if len(zero_one) == 1 else []
    for candidates in ([p for p in ends if _is_zero_one(p)], only, worded, ends):
        if candidates:
            return candidates[0]
    return zero_one[0] if zero_one else None


def _found(profile: Profile, remark: str) -> FoundLabel:
    remark = f", {remark}" if remark else ""
    total = max(int(profile.counts.sum()), 1)
    if _is_almost_zero_one(profile):
        ones = sum(int(n) for v, n in zip(profile.values, profile.counts, strict=True) if _is_one(v))
        warning = f"{profile.name} is {_but_for(profile)}: fix the data, or allow some: data.bad_lines={{skip: 1000}}"
        return FoundLabel(
            Label(profile.name), f"{_but_for(profile)}, {_percent(ones / total)} ones{remark}", warning
        )
    if _is_zero_one(profile) or _is_constant_zero_one(profile):
        ones = sum(int(n) for v, n in zip(profile.values, profile.counts, strict=True) if _is_one(v))
        pair = "/".join(sorted(profile.values)) if profile.distinct == 2 else f"only {profile.values[0]}"
        why = f"{pair}, {_percent(ones / total)} ones{remark}"
        return FoundLabel(Label(profile.name), why, _only_one_value(profile))
    positive = next((v for v in profile.values if v.strip().lower() in POSITIVE_WORDS), profile.values[-1])
    share = int(profile.counts[profile.values.index(positive)]) / total
    reason = "by the word" if positive.strip().lower() in POSITIVE_WORDS else "the rarer value"
    if "\ufffd" in positive:
        raise UserError(
            f"label `{profile.name}` holds text that is not UTF-8; convert the file first: {ICONV}"
        )
    why = f"{positive.strip()!r} ({_percent(share)}, {reason}) is taken as the click{remark}"
    return FoundLabel(Label(profile.name, positive=literal(positive.strip())), why, _only_one_value(profile))


def _only_one_value(profile: Profile) -> str | None:
    if profile.distinct > 1:
        return None
    return (
        f"{profile.name} is {profile.values[0]!r} in all {profile.examples:,} examples looked at: "
        "a model learns nothing from one label value"
    )


def _is_one(value: str) -> bool:
    return value.strip().lower() in ("1", "+1", "1.0", "true")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
