"""How often: every so many steps, seconds of training, or share of the run. Pure; knows no clock."""

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


def _crossed(interval: float | None, before: float, now: float) -> bool:
    return bool(interval) and int(now / interval) > int(before / interval)  # type: ignore[operator]
