"""Which values of a label column mean a click: one value, several, or all beyond a threshold.

A rule is what a user writes as `positive`: "yes", ["click", "buy"], "> 0", ">= 4". Text that is not an operator and a
number is a value, such as ">50K"; inside a list everything is a value. Knows no column and no array.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

Positive = str | tuple[str, ...] | None  # None: the column has 0 and 1

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_THRESHOLD = re.compile(rf"\s*(>=|>|<=|<)\s*({_NUMBER})\s*")
_MISTYPED = re.compile(rf"\s*(=>|=<|==?|!=|<>|≥|≤)\s*({_NUMBER})\s*")


@dataclass(frozen=True)
class Threshold:
    """`> 0`: numbers beyond the bound are clicks, all others are not."""

    sign: str  # > >= < <=
    bound: float

    def holds(self, values: Any) -> Any:
        """Of a number, or of each number of an array."""
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
    """The values that mean a click; none for a threshold, and where the column has 0 and 1."""
    if positive is None or threshold_of(positive) is not None:
        return ()
    return (positive,) if isinstance(positive, str) else positive


def parse_positive(given: object) -> Positive:
    """What a user wrote, checked; a ValueError says what is expected instead."""
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


def literal(value: str) -> Positive:
    """One value as a rule, also where it reads like a threshold."""
    return (value,) if threshold_of(value) or _MISTYPED.fullmatch(value) else value


def _text(value: object) -> str:
    if not isinstance(value, str | int | float):
        raise ValueError("expected a value, a list of values, or a threshold such as '> 0'")
    return str(value).lower() if isinstance(value, bool) else str(value).strip()
