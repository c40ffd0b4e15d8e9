"""How the learning rate moves over a run: a factor of it, from the share of the run's examples that are done.

Pure, and one for dense parameters and rows; so a run that resumes, or has other workers, goes on as it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from gearshift.errors import UserError, unknown_name

Decay = Literal["none", "linear", "cosine", "step"]


@dataclass(frozen=True)
class Schedule:
    """A straight line from 0 to 1 over the first `warmup` of the run, then the decay from 1 to `floor`.

    `step` multiplies by `drop` at each of `milestones` (shares of the whole run), never below `floor`.
    """

    warmup: float = 0.0
    decay: Decay = "none"
    floor: float = 0.0
    milestones: tuple[float, ...] = (0.5, 0.75)
    drop: float = 0.1

    def __post_init__(self) -> None:
        if self.decay not in get_args(Decay):
            raise unknown_name("decay", self.decay, get_args(Decay))
        for name in ("warmup", "floor", "drop"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"schedule.{name} is a share from 0 to 1, not {getattr(self, name)}")

    def factor(self, share_of_run: float) -> float:
        """`share_of_run`: examples done when the step is done, over all; so a first step is never lost."""
        share = min(max(share_of_run, 0.0), 1.0)
        if share < self.warmup:
            return share / self.warmup
        rest = 1.0 - self.warmup
        return self._decayed(share, (share - self.warmup) / rest if rest else 0.0)

    def _decayed(self, share: float, gone: float) -> float:
        match self.decay:
            case "linear":
                return 1.0 - (1.0 - self.floor) * gone
            case "cosine":
                return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * gone))
            case "step":
                passed = sum(share >= milestone for milestone in self.milestones)
                return max(self.floor, self.drop**passed)
            case "none":
                return 1.0
