"""The learning-rate schedule: a factor that depends on the share of the run's examples that are done.

It is pure, and shared by dense parameters and rows, so it continues in the same way in a resumed run or with other
workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from gearshift.errors import UserError, unknown_name
from gearshift.settings.declaration import setting
from gearshift.settings.units import Share

Decay = Literal["none", "linear", "cosine", "step"]


@dataclass(frozen=True)
class ScheduleSettings:
    """The config's settings for the schedule."""

    warmup: Share = setting(0.0, "Share of the run in which the rate rises from 0.")
    decay: Decay = setting("none", "How the rate decreases afterwards.")
    floor: Share = setting(0.0, "The share of the rate at which the decay ends.")


@dataclass(frozen=True)
class Schedule(ScheduleSettings):
    """A straight line from 0 to 1 over the first `warmup` of the run, then the decay from 1 to `floor`.

    `step` multiplies by `drop` at each of `milestones` (shares of the whole run), never below `floor`.
    """

    milestones: tuple[float, ...] = (0.5, 0.75)
    drop: float = 0.1

    def __post_init__(self) -> None:
        if self.decay not in get_args(Decay):
            raise unknown_name("decay", self.decay, get_args(Decay))
        for name in ("warmup", "floor", "drop"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(
                    f"schedule.{name} must be a fraction between 0 and 1, not {getattr(self, name)}"
                )

    def factor(self, share_of_run: float) -> float:
        """The factor for a step. `share_of_run` includes the examples of this step, so the first step is not lost."""
        share = min(max(share_of_run, 0.0), 1.0)
        if share < self.warmup:
            return share / self.warmup
        rest = 1.0 - self.warmup
        return self._decayed(share, (share - self.warmup) / rest if rest else 0.0)

    def _decayed(self, share: float, progress: float) -> float:
        match self.decay:
            case "linear":
                return 1.0 - (1.0 - self.floor) * progress
            case "cosine":
                return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * progress))
            case "step":
                passed = sum(share >= milestone for milestone in self.milestones)
                return max(self.floor, self.drop**passed)
            case "none":
                return 1.0
