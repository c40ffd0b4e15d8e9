"""What a training is to do and when: values, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal

from gearshift.cluster_model.cluster import ClusterModel
from gearshift.errors import UserError
from gearshift.optim.schedule import Schedule
from gearshift.training.timing import Every, When


@dataclass(frozen=True)
class EarlyStopping:
    """Stops when the validation measure (`Trainer(best=...)`) has not improved for `patience` evaluations.

    The run ends with the parameters of its best evaluation. It needs `valid`.
    """

    patience: int = 2  # evaluations


@dataclass(frozen=True)
class Plateau:
    """Multiplies all learning rates by `factor` after every `patience` evaluations without improvement."""

    factor: float = 0.1
    patience: int = 1


@dataclass(frozen=True)
class PlannedSwitch:
    """Change to `strategy` once the run is there."""

    at: When
    strategy: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What to do and when."""

    batch: int = 4096  # the global batch: examples of a step
    workers: int = 1
    strategy: str = "sync"
    strategy_settings: dict[str, Any] = field(default_factory=dict)
    local_batch: int | None = None  # examples a worker takes at a time; None: its share of the global batch,
    micro_batches: int = 1  # cut into so many
    switches: tuple[PlannedSwitch, ...] = ()
    injected: ClusterModel | None = None  # slowness on purpose
    epochs: int = 1
    seed: int = 1
    shuffle: bool = False
    schedule: Schedule = field(default_factory=Schedule)
    eval_every: Every | None = None
    best: Literal["auc", "logloss"] = "auc"  # the measure by which evaluations are compared
    keep_best: bool = False  # end with the parameters of the best evaluation, not with the last ones
    early_stopping: EarlyStopping | None = None
    plateau: Plateau | None = None
    bad_batches: int = 0  # how many may be left out because their loss or gradient is not finite

    def __post_init__(self) -> None:
        if self.best not in ("auc", "logloss"):
            raise UserError(f"best={self.best!r}: evaluations are compared by auc or logloss")
        check_whole(batch=self.batch, epochs=self.epochs, workers=self.workers, bad_batches=self.bad_batches)
        check_whole(micro_batches=self.micro_batches)
        for name in ("batch", "epochs", "workers", "micro_batches"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)}: at least 1")
        if self.bad_batches < 0:
            raise UserError(f"bad_batches={self.bad_batches}: 0 or more")
        if self.local_batch is not None and self.micro_batches > 1:
            raise UserError("batch and micro_batches both say how a worker's share is cut; give one of them")


def check_whole(**numbers: object) -> None:
    for name, number in numbers.items():
        if not isinstance(number, Integral) or isinstance(number, bool):
            raise UserError(f"{name}={number!r}: a whole number")
