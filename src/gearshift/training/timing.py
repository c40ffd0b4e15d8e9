"""How often, and when: steps, seconds of training, shares of the run, days of the log. Pure; knows no clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Every:
    """One of the three. `Every(share=0.1)`, `Every(steps=500)`, `Every(seconds=600)`."""

    share: float | None = None
    steps: int | None = None
    seconds: float | None = None

    def due(self, before: Moment, now: Moment) -> bool:
        """Whether a multiple of the interval lies between two moments; so nothing has to be remembered."""
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
    """A point of a run to wait for: so many examples, a share, seconds of training, or a day of the log."""

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
        """Whether it comes later, as far as the two can be compared: both in the same unit."""
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
