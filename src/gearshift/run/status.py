"""The status of a run, as `RunHandle.status` and `gearshift status` give it. Does not import torch."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Status:
    """The status of a run."""

    step: int
    examples: int
    total: int
    seconds: float
    examples_per_second: float
    loss: float
    auc_so_far: float
    day: str | None
    phase: str  # starting, training, evaluating, saving, done, stopped or failed
    seconds_since_step: float = math.nan
    checkpoint_age: float = math.nan  # seconds since the newest checkpoint was written
    failed_saves: int = 0
    missing_workers: int = 0  # workers that should be running but are not
    wall_seconds: float = math.nan  # wall time of the run, including the sessions before a resume
    duplicated: int = 0  # examples that were computed a second time for nothing
    save_retried: bool = False  # the last save failed and is being retried
