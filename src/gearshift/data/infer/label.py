"""Finds the label: a column with two values and a name or position that is typical of labels.

A column with the name of a label is accepted if it is 0/1 with few exceptions; the reason names the first exception.
A label with more values (counts, ratings, events) needs a rule, which `guess_rule` proposes. So does a label that is
set for clicks only and missing otherwise. An uncertain guess comes with a warning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from shlex import quote as shell_word

from gearshift.data import columns as raw
from gearshift.data.infer.label_rule import (
    CLICK_COUNT_NAME,
    OTHER_COUNT_NAME,
    GuessedRule,
    guess_rule,
    is_counts,
    named_like,
    rule_text,
    shown_values,
    stated_rule,
)
from gearshift.data.infer.profile import Profile, plain_name
from gearshift.data.label_rule import Positive, is_positive_word, likely_click, literal
from gearshift.data.readers.sniff import ICONV
from gearshift.data.schema import Label
from gearshift.errors import UserError

# Most reliable names first.
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
SURE_NAMES = LABEL_NAMES[:3]
DENIED_NAME = re.compile(  # not_clicked, is_unclicked, no_conversion, user_not_clicked
    r"(.*_)?(no|not|non|never|without|un)_.+|"
    r"(is_?|has_?|was_?)?(no|not|non|un)(click|clk|conv|purchas|bought|buy|like|subscri|install|order|respon).*"
)
MINUS_ONE = ({"-1", "1"}, {"-1", "+1"}, {"-1.0", "1.0"})
ZERO_ONE = ({"0", "1"}, {"false", "true"}, {"0.0", "1.0"}, *MINUS_ONE)
SHOWN_COLUMNS = 5
YES_NO = ({"yes", "no"}, {"y", "n"}, {"ja", "nein"}, {"oui", "non"}, {"si", "no"}, {"sí", "no"}, {"t", "f"})


@dataclass(frozen=True)
class FoundLabel:
    label: Label
    why: str
    warnings: tuple[str, ...] = ()


def find_label(
    profiles: list[Profile], stated: str | None, where: str, positive: Positive = None, looked_at: str = ""
) -> FoundLabel:
    """The column that the user named, or the one that looks most like a label; `positive` is the user's rule.

    `looked_at` describes the sample of the file, for an error message.
    """
    if stated is not None:
        profile = _named_by_user(profiles, stated, where)
        if positive is not None:
            return _with_rule(profile, stated_rule(positive), where)
        if _needs_rule(profile):
            return _with_rule(profile, guess_rule(profile, where), where)
        return _label_of(profile, "named by you")
    candidate = (
        _by_name(profiles)
        or named_like(CLICK_COUNT_NAME, profiles)
        or _by_place(profiles)
        or named_like(OTHER_COUNT_NAME, profiles)
    )
    candidate = candidate or _only_joined(profiles)
    if candidate is None:
        near = [f"`{p.name}` is {_but_for(p)}. " for p in profiles if _is_almost_zero_one(p)]
        raise UserError(
            f"{where}: no column looks like a label (two values such as 0 and 1). {''.join(near)}"
            f'Name it: --label COLUMN (in Python: label="COLUMN"). {looked_at}'.rstrip()
        )
    label = (
        _with_rule(candidate, guess_rule(candidate, where), where)
        if _needs_rule(candidate)
        else _label_of(candidate, "")
    )
    return replace(label, warnings=label.warnings + _alternatives(candidate, profiles))


def _alternatives(chosen: Profile, profiles: list[Profile]) -> tuple[str, ...]:
    """A warning if other columns could be the label as well, and no name decides."""
    name = plain_name(chosen.name)
    if any(re.fullmatch(pattern, name) for pattern in SURE_NAMES):
        return ()
    named = _named_like_label(chosen)
    others = [
        p for p in profiles if p is not chosen and _may_be_label(p) and (not named or _named_like_label(p))
    ]
    if not others:
        return ()
    shown = ", ".join(f"`{p.name}`" for p in others[:SHOWN_COLUMNS])
    more = f" and {len(others) - SHOWN_COLUMNS} more" if len(others) > SHOWN_COLUMNS else ""
    are = f"{shown}{more} {'is' if len(others) == 1 else 'are'}"
    why = "by its name" if named else "by its position alone"
    return (
        f"`{chosen.name}` is used as the label {why}, but {are} 0/1 too; to choose another one: "
        f'--label {others[0].name} (in Python: label="{others[0].name}")',
    )


def _named_like_label(profile: Profile) -> bool:
    return any(re.fullmatch(pattern, plain_name(profile.name)) for pattern in LABEL_NAMES)


def _may_be_label(profile: Profile) -> bool:
    return _has_two_values(profile) and (_is_zero_one(profile) or _is_yes_no(profile))


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
    """A label of counts, ratings or events, with the rule for a click."""
    label = Label(profile.name, rule.positive)
    share = _share_of_clicks(profile, label, where)
    written = rule_text(rule.positive)
    why = f"{rule.reason}: {written} counts as a click ({_percent(share)})"
    warnings = _missing(profile)
    if rule.guessed:
        warnings += (
            f"{profile.name} has {profile.distinct:,} values ({shown_values(profile)}): {written} counts as a click; "
            f"another rule: --label {profile.name} --positive RULE, such as '>= 2' or '[click, buy]' "
            "(in Python: positive=)",
        )
    return FoundLabel(label, why, warnings)


def _share_of_clicks(profile: Profile, label: Label, where: str) -> float:
    refused: list[str] = []
    clicks = raw.labels(profile.column, label.positive, lambda _i, text: refused.append(text))
    words = [text for text in refused if text]
    if words and len(words) > 0.5 * profile.examples:
        raise UserError(
            f"{where}: label `{profile.name}` holds {words[0][:40]!r}, which cannot be compared with "
            f"{rule_text(label.positive)}; list the values that mean a click: --positive '[{words[0][:40]}]' "
            "(in Python: positive=[...])"
        )
    if not clicks.any():
        raise UserError(
            f"{where}: no sampled example is a click: label `{profile.name}` has {shown_values(profile)}, and the "
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
            is_label = (
                _has_two_values(profile) or constant or _is_almost_zero_one(profile) or _is_zero_one(profile)
            )
            is_label = is_label or _is_joined(profile)
            if is_label and re.fullmatch(pattern, plain_name(profile.name)):
                return profile
    return None


def _is_joined(profile: Profile) -> bool:
    """Set for clicks only and missing otherwise: impressions LEFT JOIN clicks."""
    if profile.distinct != 1 or not profile.missing:
        return False
    return _is_one(profile.values[0]) or is_positive_word(profile.values[0])


def _only_joined(profiles: list[Profile]) -> Profile | None:
    joined = [profile for profile in profiles if _is_joined(profile)]
    return joined[0] if len(joined) == 1 else None


def _is_constant_zero_one(profile: Profile) -> bool:
    """The start of a log may contain no click at all."""
    return profile.values in (["0"], ["1"])


def _is_almost_zero_one(profile: Profile) -> bool:
    """0/1 except for up to one example in a hundred, which has another value or none."""
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
    value = repr(text[:40]) if text else "missing"
    return f"{'/'.join(sorted(pair))} except {value} in {place.unit} {place.number:,}{more}"


def _by_place(profiles: list[Profile]) -> Profile | None:
    """0/1 in the first or last column; else the only 0/1 column; else yes and no; else two values at either end."""
    ends = [profile for profile in (profiles[-1], profiles[0]) if _has_two_values(profile)]
    worded = [profile for profile in profiles if _has_two_values(profile) and _is_yes_no(profile)]
    zero_one = [profile for profile in profiles if _has_two_values(profile) and _is_zero_one(profile)]
    only = zero_one if len(zero_one) == 1 else []
    for candidates in ([p for p in ends if _is_zero_one(p)], only, worded, ends):
        if candidates:
            return candidates[0]
    return zero_one[0] if zero_one else None


def _label_of(profile: Profile, remark: str) -> FoundLabel:
    remark = f", {remark}" if remark else ""
    if _is_joined(profile):
        return _joined_label(profile, remark)
    if _is_almost_zero_one(profile) or _is_zero_one(profile) or _is_constant_zero_one(profile):
        return _zero_one_label(profile, remark)
    return _word_label(profile, remark)


def _joined_label(profile: Profile, remark: str) -> FoundLabel:
    value = profile.values[0].strip()
    share = _percent(1 - profile.missing_share)
    positive = None if _is_one(value) else literal(value)
    why = f"{value} or missing, {share} {value}: missing counts as no click, as after a LEFT JOIN{remark}"
    warning = (
        f"{profile.name} is {value} or missing ({profile.missing:,} of {profile.examples:,} examples): missing "
        "counts as no click, as after a LEFT JOIN; if it means something else, remove `missing: no_click` from the "
        "config"
    )
    return FoundLabel(Label(profile.name, positive, missing="no_click"), why, (warning,))


def _zero_one_label(profile: Profile, remark: str) -> FoundLabel:
    total = max(int(profile.counts.sum()), 1)
    ones = sum(int(n) for v, n in zip(profile.values, profile.counts, strict=True) if _is_one(v))
    share = f"{_percent(ones / total)} ones{remark}"
    # -1 is not a label by itself: next to 0 and 1 it usually means "unknown".
    pair = {value.strip().lower() for value in profile.values[:2]}
    label = Label(profile.name, positive="1" if pair in MINUS_ONE else None)
    rule = "; 1 counts as the click" if label.positive is not None else ""
    if _is_almost_zero_one(profile):
        slip = f"{profile.name} is {_but_for(profile)}: fix the data, or allow some: data.bad_lines={{skip: 1000}}"
        one = next(value for value in profile.values[:2] if _is_one(value))
        return FoundLabel(label, f"{_but_for(profile)}, {share}{rule}", (slip, *_opposite(profile, one)))
    words = "/".join(sorted(profile.values)) if profile.distinct == 2 else f"only {profile.values[0]}"
    warnings = _missing(profile) + _only_one_value(profile)
    if profile.distinct == 2:
        one = next(value for value in profile.values if _is_one(value))
        warnings += _opposite(profile, one)
    return FoundLabel(label, f"{words}, {share}{rule}", warnings)


def _word_label(profile: Profile, remark: str) -> FoundLabel:
    """Two values other than 0 and 1. The click is chosen by its word; otherwise the rarer value is, with a warning."""
    by_word = likely_click(profile.values)
    positive = by_word or profile.values[-1]
    share = int(profile.counts[profile.values.index(positive)]) / max(int(profile.counts.sum()), 1)
    if "\ufffd" in positive:
        raise UserError(
            f"label `{profile.name}` holds text that is not UTF-8; convert the file first: {ICONV}"
        )
    reason = "by the word" if by_word else "the rarer value"
    why = f"{positive.strip()!r} ({_percent(share)}, {reason}) counts as the click{remark}"
    warnings = _missing(profile) + _only_one_value(profile)
    if by_word is None and profile.distinct > 1:
        other = profile.values[0].strip()
        warnings += (
            f"{profile.name} is {positive.strip()!r} or {other!r}, and neither clearly means a click: "
            f"{positive.strip()!r}, the rarer one, counts as the click; to choose the other one: "
            f"--label {profile.name} --positive {shell_word(other)} (in Python: positive={other!r})",
        )
    elif by_word is not None and profile.distinct == 2:
        warnings += _opposite(profile, by_word, sure=True)
    return FoundLabel(Label(profile.name, positive=literal(positive.strip())), why, warnings)


def _opposite(profile: Profile, positive: str, sure: bool = False) -> tuple[str, ...]:
    """A warning if the other of two values may mean a click: because of the label's name or, unless a word is clear,
    because of the counts."""
    other = next(value for value in profile.values[:2] if value != positive)
    count, total = int(profile.counts[profile.values.index(positive)]), int(profile.counts.sum())
    if DENIED_NAME.fullmatch(plain_name(profile.name)):
        why = f"{profile.name} is named like the opposite of a click"
    elif (
        not sure and count > total / 2 + 1.5 * total**0.5
    ):  # three standard errors; a balanced sample has about half
        why = f"{profile.name} is {positive.strip()} in {_percent(count / total)} of the sampled examples"
    else:
        return ()
    word = other.strip()
    option = f"--positive={word}" if word.startswith("-") else f"--positive {shell_word(word)}"
    return (
        f"{why}, and {positive.strip()} counts as the click; if {word} means the click: "
        f'--label {profile.name} {option} (in Python: label="{profile.name}", positive="{word}")',
    )


def _missing(profile: Profile) -> tuple[str, ...]:
    """A warning about examples without a label, which stop training. `init` can only guess what they mean."""
    if not profile.missing:
        return ()
    place, _ = profile.first_other(profile.values)
    return (
        f"{profile.name} is missing in {profile.missing:,} of {profile.examples:,} sampled examples, first in "
        f"{place.unit} {place.number:,}, which stops the training: if such examples were not clicked, add "
        "`missing: no_click` to the label in the config; if not, fix the data, or allow some: "
        "data.bad_lines={skip: 1000}",
    )


def _only_one_value(profile: Profile) -> tuple[str, ...]:
    if profile.distinct > 1:
        return ()
    return (
        f"{profile.name} is {profile.values[0]!r} in all {profile.examples:,} sampled examples: "
        "a model learns nothing from one label value",
    )


def _is_one(value: str) -> bool:
    return value.strip().lower() in ("1", "+1", "1.0", "true")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
