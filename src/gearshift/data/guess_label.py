"""Which column is the label: two values, and a name or a place that labels have.

A column named like a label that is 0/1 but for a few values is the label too; the reason says where the first
of these values stands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gearshift.data.profile import Profile
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
POSITIVE_WORDS = (
    *(
        "yes",
        "y",
        "true",
        "t",
        "ja",
        "oui",
        "si",
        "sí",
        "click",
        "clicked",
        "positive",
        "pos",
        "buy",
        "bought",
    ),
    *("1", "good", "conv", "converted", "conversion", "purchase", "purchased"),
)


@dataclass(frozen=True)
class FoundLabel:
    label: Label
    why: str
    warning: str | None = None


def find_label(profiles: list[Profile], stated: str | None, where: str) -> FoundLabel:
    """The column the user named, or the one that looks most like a label."""
    if stated is not None:
        profile = next((p for p in profiles if p.name == stated), None)
        if profile is None:
            names = ", ".join(p.name for p in profiles[:40])
            raise UserError(f"{where} has no column `{stated}`. It has: {names}.")
        if profile.distinct == 0:
            raise UserError(f"{where}: label `{stated}` has no value in the first examples.")
        if profile.distinct > 2 and not _is_almost_zero_one(profile):
            values = ", ".join(repr(v) for v in profile.values[:5])
            raise UserError(
                f"{where}: label `{stated}` has {profile.distinct:,} values ({values}, ...); it needs two. "
                'Say which one means a click: data.label={column: ..., positive: "..."}'
            )
        return _found(profile, "named by you")
    candidate = _by_name(profiles) or _by_place(profiles)
    if candidate is None:
        near = [f"`{p.name}` is {_but_for(p)}. " for p in profiles if _is_almost_zero_one(p)]
        raise UserError(
            f"{where}: no column looks like a label (two values such as 0 and 1). {''.join(near)}"
            'Name it: --label COLUMN (in Python: label="COLUMN")'
        )
    return _found(candidate, "")


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


def plain_name(name: str) -> str:
    """Clicked on Ad -> clicked_on_ad, isClick -> is_click."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[\s.-]+", "_", words).lower()


def _is_constant_zero_one(profile: Profile) -> bool:
    """The start of a log may hold no click at all."""
    return profile.values in (["0"], ["1"])


def _is_almost_zero_one(profile: Profile) -> bool:
    """0/1 but for up to one example in a hundred, which has another value or none."""
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
    return FoundLabel(Label(profile.name, positive=positive.strip()), why, _only_one_value(profile))


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
