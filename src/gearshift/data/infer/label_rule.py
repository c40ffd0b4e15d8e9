"""Infers which values of a label with more than two values mean a click: counts, ratings and named events.

The rule is a guess with a reason, and `--positive` overrides it. If nothing suggests a rule, the user has to give one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gearshift.data.infer.profile import Profile, plain_name
from gearshift.data.label_rule import Positive, is_positive_word
from gearshift.errors import UserError

CLICK_COUNT_NAME = re.compile(r"((n|nb|num|number_of|total)_)?(click|clk)s?(_(count|cnt|n))?")
OTHER_COUNT_NAME = re.compile(
    r"((n|nb|num|number_of|total)_)?(conversion|purchase|order|install|rating|star)s?(_(count|cnt|n))?"
)
COUNT_WORD = re.compile(
    r"(^|_)(n|nb|num|number|total|count|cnt|clicks|conversions|purchases|orders|installs)(_|$)"
)
RATING_NAME = re.compile(r"(^|_)(rating|stars?|score|grade)s?(_|$)")
RATING_SCALES = (5, 10, 100)  # the maximum of the scale; 80 % of it or more is a click
MOST_EVENTS = 50  # maximum number of event kinds in a log
SHOWN = 5


@dataclass(frozen=True)
class GuessedRule:
    positive: Positive
    reason: str
    guessed: bool = True


def stated_rule(positive: Positive) -> GuessedRule:
    return GuessedRule(positive, "named by you", guessed=False)


def guess_rule(profile: Profile, where: str) -> GuessedRule:
    """The rule for a label of more than two values."""
    rule = _events(profile) if profile.numbers is None else _rating(profile) or _count(profile)
    if rule is not None:
        return rule
    raise UserError(
        f"{where}: label `{profile.name}` has {profile.distinct:,} values ({shown_values(profile)}); which of them "
        "mean a click? Set --positive RULE, such as '> 0', '>= 4' or '[click, buy]' (in Python: positive=RULE)"
    )


def is_counts(profile: Profile) -> bool:
    """0, 1 and several more values, or a name that suggests counts. Values such as 2 and 5 are then not errors."""
    if profile.numbers is None or not profile.is_whole or profile.distinct < 3:
        return False
    if profile.quantity.min() != 0:
        return False
    several = len({number for number in profile.numbers.tolist() if number > 1}) > 1
    return several or COUNT_WORD.search(plain_name(profile.name)) is not None


def named_like(pattern: re.Pattern[str], profiles: list[Profile]) -> Profile | None:
    """A column of counts or ratings with the name of a label."""
    for profile in profiles:
        fits = is_counts(profile) or (profile.distinct > 2 and _rating(profile) is not None)
        if fits and pattern.fullmatch(plain_name(profile.name)):
            return profile
    return None


def shown_values(profile: Profile) -> str:
    """0, 1, 2, 5: ascending numbers, or the most frequent words."""
    if profile.numbers is not None:
        numbers = [f"{number:g}" for number in sorted(profile.numbers.tolist())]
        shown = numbers if len(numbers) <= SHOWN + 1 else [*numbers[:SHOWN], "...", numbers[-1]]
        return ", ".join(shown)
    words = [repr(value[:40]) for value in profile.values[:SHOWN]]
    return ", ".join([*words, "..."] if profile.distinct > SHOWN else words)


def rule_text(positive: Positive) -> str:
    """The rule in the user's syntax: '> 0', [click, buy]."""
    return f"'{positive}'" if isinstance(positive, str) else f"[{', '.join(positive or ())}]"


def _count(profile: Profile) -> GuessedRule | None:
    """Numbers that can be 0: counts, amounts, -1/0/1."""
    low, high = float(profile.quantity.min()), float(profile.quantity.max())
    if low > 0 or high <= 0 or (low == 0 and not (profile.quantity == 0).mean() >= 0.01):
        return None
    kind = "counts" if profile.is_whole and low == 0 else "numbers"
    return GuessedRule("> 0", f"{kind} {low:g}..{high:g}")


def _rating(profile: Profile) -> GuessedRule | None:
    """1..5 stars, 0.5..5, 1..10."""
    if profile.numbers is None:
        return None
    low, high = float(profile.quantity.min()), float(profile.quantity.max())
    named = RATING_NAME.search(plain_name(profile.name)) is not None
    halves = bool(((2 * profile.quantity) % 1 == 0).all()) and profile.distinct <= 21
    if (
        high not in RATING_SCALES
        or low < 0
        or not (named or (halves and 0 < low <= 1 and profile.distinct > 2))
    ):
        return None
    return GuessedRule(f">= {0.8 * high:g}", f"ratings {low:g}..{high:g}")


def _events(profile: Profile) -> GuessedRule | None:
    clicks = tuple(v.strip() for v in profile.values if is_positive_word(v) or v.strip() == "1")
    if not clicks or len(clicks) == profile.distinct or profile.distinct > MOST_EVENTS:
        return None
    return GuessedRule(clicks, f"{profile.distinct:,} events ({shown_values(profile)})")
