"""How often, and when: steps, seconds of training, shares of the run, days of the log; and how a user writes them.

Pure functions; no clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from gearshift.settings.units import (
    INTEGER,
    NULL,
    SECONDS,
    STRING,
    THOUSANDS,
    Unit,
    either,
    parse_amount,
    parse_count,
    parse_seconds,
    parse_share,
    write_seconds,
)


@dataclass(frozen=True)
class Every:
    """An interval, in one of three units: `Every(share=0.1)`, `Every(steps=500)`, `Every(seconds=600)`."""

    share: float | None = None
    steps: int | None = None
    seconds: float | None = None

    def due(self, before: Moment, now: Moment) -> bool:
        """Whether a multiple of the interval was crossed between `before` and `now`. It keeps no state."""
        return (
            _crossed(self.steps, before.steps, now.steps)
            or _crossed(self.seconds, before.seconds, now.seconds)
            or _crossed(self.share, before.share, now.share)
        )


@dataclass(frozen=True)
class Moment:
    """A point of a run."""

    steps: int
    seconds: float
    share: float


@dataclass(frozen=True)
class When:
    """A point of a run to wait for: a number of examples, a share, seconds of training, or a day of the log."""

    examples: int | None = None
    share: float | None = None
    seconds: float | None = None
    day: int | None = None  # 1 is the first

    def __str__(self) -> str:
        if self.share is not None:
            return f"{100 * self.share:g}%"
        if self.seconds is not None:
            return f"{self.seconds:g} s"
        return f"day {self.day}" if self.day is not None else f"{self.examples:,} examples"

    def after(self, other: When) -> bool:
        """Whether it comes after the other; also True if the two have different units and cannot be compared."""
        pairs = zip(self._amounts(), other._amounts(), strict=True)
        return all(mine is None or theirs is None or mine > theirs for mine, theirs in pairs)

    def reached(self, examples: int, share: float, seconds: float, day: int) -> bool:
        return any(
            want is not None and have >= want
            for want, have in zip(self._amounts(), (examples, share, seconds, day), strict=True)
        )

    def _amounts(self) -> tuple[float | None, ...]:
        return self.examples, self.share, self.seconds, self.day


def _crossed(interval: float | None, before: float, now: float) -> bool:
    return bool(interval) and int(now / interval) > int(before / interval)  # type: ignore[operator]


# As a user writes them.


def parse_every(value: Any) -> Every:
    if isinstance(value, Every):
        return value
    unit = (parse_amount(value) or (0.0, "?"))[1]
    if unit == "%":
        share = parse_share(value)
        if share == 0:
            raise ValueError("expected more than 0%, or none")
        return Every(share=share)
    if unit in SECONDS:
        return Every(seconds=parse_seconds(value))
    if unit not in THOUSANDS or parse_count(value) < 1:
        raise ValueError(
            "expected a number of steps (500), a duration (10min), a share of the run (10%) or none"
        )
    return Every(steps=parse_count(value))


def write_every(every: Every | None) -> str | int:
    if every is None:
        return "none"
    if every.share is not None:
        return f"{every.share * 100:.12g}%"
    return every.steps if every.steps is not None else write_seconds(every.seconds or 0.0)


def parse_when(value: Any) -> When:
    """A point of a run: 500k (examples), 50%, 10min of training, or `day 3` of the log."""
    if isinstance(value, When):
        return value
    text = str(value).strip()
    if match := re.fullmatch(r"day\s+(\d+)", text):
        if int(match[1]) < 1:
            raise ValueError("the first day of the log is day 1")
        return When(day=int(match[1]))
    unit = (parse_amount(value) or (0.0, "?"))[1]
    if unit == "%":
        return When(share=parse_share(value))
    if unit in SECONDS:
        return When(seconds=parse_seconds(value))
    if unit not in THOUSANDS or parse_count(value) < 1:
        raise ValueError(
            "expected a number of examples (500k), a share (50%), a duration (10min) or a day (day 3)"
        )
    return When(examples=parse_count(value))


def write_when(when: When) -> str | int:
    if when.day is not None:
        return f"day {when.day}"
    if when.share is not None:
        return f"{when.share * 100:.12g}%"
    return when.examples if when.examples is not None else write_seconds(when.seconds or 0.0)


def _every_or_none(value: Any) -> Every | None:
    return None if value is None or value == "none" else parse_every(value)


MaybeEvery = Annotated[Every | None, Unit(_every_or_none, either(INTEGER, STRING, NULL), write_every)]
Point = Annotated[When, Unit(parse_when, either(INTEGER, STRING), write_when)]
