"""The plan of a training: what to do and when. Values are checked when they are created."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal

from gearshift.errors import UserError
from gearshift.optim.schedule import Schedule
from gearshift.settings.declaration import setting
from gearshift.settings.units import Count, Share
from gearshift.training.step_settings import StepSettings
from gearshift.training.timing import Every, When


@dataclass(frozen=True)
class EarlyStopping:
    """Stops when the validation metric (`EvaluationSettings.best`) has not improved for `patience` evaluations.

    The run ends with the parameters of its best evaluation. It needs `valid`.
    """

    patience: Count = setting(2, "Validations without improvement before the run ends.", at_least=1)


@dataclass(frozen=True)
class Plateau:
    """Multiplies all learning rates by `factor` after every `patience` evaluations without improvement."""

    factor: Share = setting(0.1, "Multiply the learning rates by this at a plateau.", above=0, below=1)
    patience: Count = setting(1, "Validations without improvement before the rates are reduced.", at_least=1)


@dataclass(frozen=True, kw_only=True)
class ImprovementSettings:
    """What a run does when evaluations stop improving."""

    early_stopping: EarlyStopping | None = setting(
        None, "End when checkpoint.best stops improving on the validation data."
    )
    plateau: Plateau | None = setting(None, "Lower the rates when checkpoint.best stops improving.")


@dataclass(frozen=True)
class EvaluationSettings(ImprovementSettings):
    """When the model is evaluated on the validation data, and what follows from it.

    `every` is in addition to the end of each epoch: `gs.Every(share=0.1)`, `gs.Every(steps=500)`. `best` is the metric
    by which evaluations are compared; with None, evaluations select nothing.
    """

    every: Every | None = None
    best: Literal["auc", "logloss"] | None = "auc"

    def __post_init__(self) -> None:
        if self.best not in ("auc", "logloss", None):
            raise UserError(f"best={self.best!r}: evaluations are compared by auc or logloss")


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
class RunLength:
    """The size of a step, and the number of steps."""

    global_batch: Count = setting(4096, "Examples per step, over all workers.", at_least=1, kept=True)
    epochs: Count = setting(1, "Passes over the training data.", at_least=1)
    seed: Count = setting(1, "The same seed gives the same run, bit for bit.", at_least=0, kept=True)


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
