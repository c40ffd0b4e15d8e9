"""Rules for labels: which values of a column mean a click. A rule is one value, several values or a threshold.

Users write a rule as `positive`: "yes", ["click", "buy"], "> 0", ">= 4". Text that is not an operator followed by a
number is a value, such as ">50K"; in a list everything is a value. `missing` defines the meaning of a missing label.
The module also guesses which of several words means a click. It does not handle columns or arrays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from gearshift.settings.units import Unit, parse_text

Positive = str | tuple[str, ...] | None  # None: the column holds 0 and 1
Missing = Literal["fail", "no_click"]  # an example without a label is an error, or not a click

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_THRESHOLD = re.compile(rf"\s*(>=|>|<=|<)\s*({_NUMBER})\s*")
_MISTYPED = re.compile(rf"\s*(=>|=<|==?|!=|<>|≥|≤)\s*({_NUMBER})\s*")
POSITIVE_WORDS = frozenset(
    {"yes", "y", "true", "t", "ja", "oui", "si", "sí", "click", "clicked", "clk", "positive", "pos", "good"}
    | {"buy", "bought", "conv", "converted", "conversion", "purchase", "purchased"}
)
NEGATIVE_WORDS = frozenset(
    {"no", "n", "false", "f", "nein", "non", "0", "0.0", "-1", "-1.0", "none", "negative", "neg", "bad"}
    | {"view", "viewed", "impression", "imp", "show", "shown", "skip", "skipped", "ignore", "ignored"}
)
_DENIAL = re.compile(r"(no|not|non|un|without)[\s_-]*(.+)")


@dataclass(frozen=True)
class Threshold:
    """`> 0`: numbers beyond the bound are clicks, all other numbers are not."""

    sign: str  # > >= < <=
    bound: float

    def holds(self, values: Any) -> Any:
        """Whether the threshold holds for a number, or for each number of an array."""
        match self.sign:
            case ">":
                return values > self.bound
            case ">=":
                return values >= self.bound
            case "<":
                return values < self.bound
            case _:
                return values <= self.bound


def threshold_of(positive: Positive) -> Threshold | None:
    match = _THRESHOLD.fullmatch(positive) if isinstance(positive, str) else None
    return None if match is None else Threshold(match[1], float(match[2]))


def values_of(positive: Positive) -> tuple[str, ...]:
    """The values that mean a click; empty for a threshold and for a column of 0 and 1."""
    if positive is None or threshold_of(positive) is not None:
        return ()
    return (positive,) if isinstance(positive, str) else positive


def parse_positive(given: object) -> Positive:
    """Check a rule as the user wrote it. A ValueError describes what is expected."""
    if given is None:
        return None
    if isinstance(given, list | tuple):
        if not given:
            raise ValueError("name at least one value that means a click, such as [click, buy]")
        return tuple(_text(value) for value in given)
    text = _text(given)
    if match := _MISTYPED.fullmatch(text):
        raise ValueError(
            f"write >, >=, < or <= before the number, such as '>= {match[2]}', "
            f"or the values alone, such as [{match[2]}]"
        )
    return text


def _written_rule(value: Any) -> Any:
    return parse_positive(
        [parse_text(v) for v in value] if isinstance(value, list | tuple) else parse_text(value)
    )


_VALUE: list[dict[str, str]] = [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]
_RULE_SCHEMA: dict[str, Any] = {
    "anyOf": [*_VALUE, {"type": "array", "items": {"anyOf": _VALUE}, "minItems": 1}]
}
Rule = Annotated[str | tuple[str, ...], Unit(_written_rule, _RULE_SCHEMA)]  # as written in a config


def is_positive_word(value: str) -> bool:
    return value.strip().lower() in POSITIVE_WORDS


def is_negative_word(value: str) -> bool:
    """no, false, and negations of a click: no_click, not clicked, unclicked."""
    word = value.strip().lower()
    denied = _DENIAL.fullmatch(word)
    return word in NEGATIVE_WORDS or (denied is not None and denied[2] in POSITIVE_WORDS)


def likely_click(values: Sequence[str]) -> str | None:
    """The value that probably means a click, judged by its own word or by the other words; None if unclear.

    >>> likely_click(["no", "yes"]), likely_click(["no_click", "swipe"]), likely_click(["a", "b"]), likely_click(["N"])
    ('yes', 'swipe', None, None)
    """
    candidates = [value for value in values if not is_negative_word(value)]
    by_word = [value for value in candidates if is_positive_word(value)]
    if by_word:
        return by_word[0]
    return candidates[0] if len(candidates) == 1 and len(values) > 1 else None


def literal(value: str) -> Positive:
    """A rule for one value, even if it looks like a threshold."""
    return (value,) if threshold_of(value) or _MISTYPED.fullmatch(value) else value


def _text(value: object) -> str:
    if not isinstance(value, str | int | float):
        raise ValueError("expected a value, a list of values, or a threshold such as '> 0'")
    return str(value).lower() if isinstance(value, bool) else str(value).strip()
