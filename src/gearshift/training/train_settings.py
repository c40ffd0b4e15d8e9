"""The keys of the config's section `train`, each declared once, and what Python takes in their place.

`TrainSection` is the section. Most of its keys belong to a dataclass that Python shares. The others are written
differently in a config and in Python, or have another default there: they stand in `TrainSection` and in
`TrainingSettings`, and `TrainSection.training` converts them. Values only: read without torch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from gearshift.errors import UserError
from gearshift.parameters.average_rule import AverageRule
from gearshift.settings.declaration import ComparedOnResume, setting, values_of
from gearshift.settings.tolerated import Tolerated
from gearshift.settings.units import NUMBER, Count, Share, Unit, either, parse_number
from gearshift.training.timing import Every, MaybeEvery

if TYPE_CHECKING:
    from gearshift.models.losses import Loss
else:
    Loss = Callable  # without torch


@dataclass(frozen=True)
class RunLength(ComparedOnResume):
    """How large a step is, and how many there are."""

    global_batch: Count = setting(4096, "Examples per step, over all workers.", at_least=1, kept=True)
    epochs: Count = setting(1, "Passes over the training data.", at_least=1)
    seed: Count = setting(1, "In sync, the same seed gives the same run, bit for bit.", at_least=0, kept=True)


@dataclass(frozen=True)
class StepSettings(ComparedOnResume):
    """How a worker's share of a step is divided into batches."""

    batch: Count | None = setting(
        None, "Examples a worker takes at a time; global_batch / workers if not set.", at_least=1
    )
    micro_batches: Count = setting(
        1,
        "Number of batches that a worker's share of a step is divided into, each with its own gradient; "
        "vr_* needs 8 over all workers.",
        at_least=1,
    )


def _average(value: Any) -> Any:
    if value in ("auto", "off") and isinstance(value, str):
        return value
    if value is False:
        return "off"
    with suppress(ValueError):
        if 0 < (decay := parse_number(value)) < 1:
            return decay
    raise ValueError("expected auto, off or a decay between 0 and 1, such as 0.999")


Average = Annotated[Literal["auto", "off"] | float, Unit(_average, either({"enum": ["auto", "off"]}, NUMBER))]


@dataclass(frozen=True)
class EvaluatedWeights:
    """Which dense weights evaluations, predictions and saved models use."""

    average: Average = setting(
        "auto",
        "Evaluate and save an average of the dense weights, which training does not read: auto "
        f"({AverageRule().decay:g}), its decay per global batch (0.99), or off: the newest weights.",
    )

    def __post_init__(self) -> None:
        try:
            _average(self.average)
        except ValueError as error:
            raise UserError(f"average={self.average!r}: {error}") from None

    @property
    def average_rule(self) -> AverageRule | None:
        """How fast the average moves; None: there is none."""
        average = _average(self.average)
        if average == "auto":
            return AverageRule()
        return None if average == "off" else AverageRule(average)


@dataclass(frozen=True)
class EarlyStopping:
    """Stops when the validation metric (`EvaluationSettings.best`) has not improved for `patience` evaluations.

    The run ends with the parameters of its best evaluation. It needs `valid`.
    """

    patience: Count = setting(2, "Validations without improvement before the run ends.", at_least=1)


@dataclass(frozen=True)
class Plateau:
    """Multiplies all learning rates by `factor` after every `patience` evaluations without improvement."""

    factor: Share = setting(0.1, "Multiply the rates by this without improvement.", above=0, below=1)
    patience: Count = setting(1, "Validations without improvement before that.", at_least=1)


@dataclass(frozen=True, kw_only=True)
class ImprovementSettings(ComparedOnResume):
    """What a run does when evaluations improve no more."""

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


def _default_loss() -> Loss:
    from gearshift.models.losses import binary_cross_entropy

    return binary_cross_entropy


@dataclass(frozen=True)
class TrainingSettings(EvaluatedWeights, StepSettings):
    """What a step is made of, in which order the data are read, and when the model is evaluated.

    `shuffle=None` reads a log with a time column once in its order, and shuffles anything else.
    """

    shuffle: bool | None = None
    loss: Loss = field(default_factory=_default_loss)  # binary_cross_entropy; see `gs.losses`
    bad_batches: int = 0  # how many batches may be skipped because their loss or gradient is not finite
    baseline: bool = False  # also trains a logistic regression, for comparison
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)


def _shuffle(value: Any) -> Any:
    known = {"auto": "auto", True: True, False: False, "yes": True, "no": False, "on": True, "off": False}
    if not isinstance(value, str | bool) or value not in known:
        raise ValueError("expected auto, true or false")
    return known[value]


Shuffle = Annotated[Literal["auto"] | bool, Unit(_shuffle, {"enum": ["auto", True, False]})]


@dataclass(frozen=True)
class TrainSection(EvaluatedWeights, ImprovementSettings, StepSettings, RunLength):
    """Steps, the order of the data, and when the model is evaluated."""

    eval_every: MaybeEvery = setting(
        Every(share=0.1),
        "Validate after this share of the run (10%), a number of steps (500), or none: only at the end.",
    )
    shuffle: Shuffle = setting(
        "auto", "auto: file order if the log has a time column and is read once, otherwise shuffled."
    )
    bad_batches: Tolerated = setting(
        Tolerated(), "If a loss or gradient is not finite: fail, or {skip: 10}, reported and counted."
    )
    baseline: bool = setting(
        True, "Also train a logistic regression on the same data, as a baseline (a few percent of the time)."
    )
    loss: Literal["bce"] = setting("bce", "Binary cross-entropy; custom losses are available in Python.")

    def training(self, best: Literal["auc", "logloss"] | None) -> TrainingSettings:
        """The same for `Trainer`; `best` is the metric that selects the best checkpoint."""
        from gearshift.models.losses import LOSSES

        return TrainingSettings(
            **values_of(self, StepSettings),
            average=self.average,
            shuffle=None if self.shuffle == "auto" else self.shuffle,
            loss=LOSSES[self.loss],
            bad_batches=self.bad_batches.skip,
            baseline=self.baseline,
            evaluation=EvaluationSettings(self.eval_every, best, **values_of(self, ImprovementSettings)),
        )
