"""The plan of training: what to do and when. Values are checked when they are created."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from gearshift.errors import UserError
from gearshift.optim.schedule import Schedule
from gearshift.training.timing import When
from gearshift.training.train_settings import EvaluationSettings, RunLength, StepSettings


@dataclass(frozen=True)
class PlannedSwitch:
    """Change to `strategy` when the run reaches this point."""

    at: When
    strategy: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StrategyPlan:
    """The strategy that a run begins with, the planned switches, and the batches that workers take."""

    name: str = "sync"
    settings: dict[str, Any] = field(default_factory=dict)
    switches: tuple[PlannedSwitch, ...] = ()
    steps: StepSettings = field(default_factory=StepSettings)

    def __post_init__(self) -> None:
        batch, micro_batches = self.steps.batch, self.steps.micro_batches
        check_whole(micro_batches=micro_batches)
        check_positive(micro_batches=micro_batches)
        if batch is not None and micro_batches > 1:
            raise UserError(
                "batch and micro_batches both set the size of a worker's batches; give only one of them"
            )


@dataclass(frozen=True)
class Plan(RunLength):
    """What to do and when."""

    workers: int = 1
    strategy: StrategyPlan = field(default_factory=StrategyPlan)
    shuffle: bool = False
    schedule: Schedule = field(default_factory=Schedule)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    bad_batches: int = 0  # how many batches may be skipped because their loss or gradient is not finite

    def __post_init__(self) -> None:
        counts = {"batch": self.global_batch, "epochs": self.epochs, "workers": self.workers}
        check_whole(**counts, bad_batches=self.bad_batches)
        check_positive(**counts)
        if self.bad_batches < 0:
            raise UserError(f"bad_batches={self.bad_batches}: it must be 0 or more")

    @property
    def keep_best(self) -> bool:
        """Whether the run ends with the parameters of its best evaluation, not with the last ones."""
        chosen = self.evaluation
        return chosen.best is not None and (self.epochs > 1 or chosen.early_stopping is not None)


def check_whole(**numbers: object) -> None:
    for name, number in numbers.items():
        if not isinstance(number, Integral) or isinstance(number, bool):
            raise UserError(f"{name}={number!r}: it must be a whole number")


def check_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise UserError(f"{name}={number}: it must be at least 1")
