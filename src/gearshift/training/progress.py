"""The progress of training: everything that a checkpoint stores about it besides parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gearshift.metrics import Measures, Slices


@dataclass
class Progress:
    """The progress of a run."""

    epoch: int = 0
    position: int = 0  # the first example of this epoch that is not leased yet
    open: list[list[int]] = field(
        default_factory=list
    )  # (first, count) of earlier leases that have not ended
    examples: int = 0  # applied or discarded
    switched: int = 0  # number of planned switches made
    applied: int = 0  # leases that formed steps
    duplicated: int = 0  # examples that were computed a second time for nothing
    discarded: dict[str, int] = field(default_factory=dict)  # discarded leases, by reason
    examples_by_worker: dict[str, int] = field(default_factory=dict)
    lost_by_worker: dict[str, int] = field(default_factory=dict)  # of these, the discarded ones
    staleness: dict[str, int] = field(default_factory=dict)  # leases by steps applied since their pull
    lag: dict[str, int] = field(default_factory=dict)  # leases by steps behind schedule
    exchanges: dict[str, dict[str, float]] = field(default_factory=dict)  # counts of each replica
    plain_steps: int = 0  # steps in which a vr_* optimizer had too few gradients to reduce variance
    seconds: float = 0.0  # time of training and of waiting for data, without evaluations and checkpoints
    loss: float = 0.0  # mean loss of the last step
    rate_factor: float = 1.0  # factor by which plateaus have reduced the learning rates
    best: float | None = None
    best_step: int = 0
    without_gain: int = 0  # evaluations since the best
    evaluations: int = 0
    evaluated_step: int = -1  # step of the last evaluation
    data_time: int = -1  # the newest that was trained, if rows expire
    marks: list[list[int]] = field(default_factory=list)  # of row_expiry.py
    measures: Measures = field(default_factory=Measures)
    days: Slices = field(default_factory=Slices)  # the same, by UTC day (days since 1970)

    def restore(self, facts: dict[str, Any]) -> None:
        """Takes the values of a checkpoint, in place because the parts of training share it. Measures start empty."""
        vars(self).update(vars(Progress(**facts)))

    def begin_next_epoch(self) -> None:
        self.epoch, self.position, self.open = self.epoch + 1, 0, []


def add_to(counts: dict[str, int], key: object, amount: int = 1) -> None:
    counts[str(key)] = counts.get(str(key), 0) + amount
