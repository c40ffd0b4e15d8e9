"""The update rules of embedding rows: the settings of each, by its name in a config and in the C++ core.

The formulas are in csrc/row_optimizers.h. The core takes every setting by its name here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, get_args

from gearshift.errors import UserError
from gearshift.optim.rule_settings import BETA1, BETA2, EPS, L2, LEARNING_RATE, MOMENTUM
from gearshift.settings.declaration import Meaning, setting
from gearshift.settings.units import NUMBER, Number, Unit, either, parse_number

USUAL = 0.2  # about the size of the gradient of one weight of a row, for one example
ROW_INITIAL = Meaning(
    f"Initial value of the accumulator: 0, so the first step of a new row is a whole lr in each weight; a number; or "
    f"auto: ({USUAL} / train.global_batch) ** 2, about what one example adds."
)


def _initial(value: Any) -> Any:
    if value == "auto":
        return value
    number = parse_number(value)
    if number < 0:
        raise ValueError("expected auto, or a number of at least 0")
    return number


Initial = Annotated[float | Literal["auto"], Unit(_initial, either({"enum": ["auto"]}, NUMBER))]


class RowUpdate:
    """What every row optimizer declares: `lr` and `l2`, which the rules for larger batches scale, and two traits."""

    weights_from_state: ClassVar[bool] = False  # if so, rows cannot start from the weights of another model
    zeroed_by: ClassVar[str] = (
        ""  # name of the setting that, if above 0, can return a trained weight to exactly 0
    )
    lr: Number
    l2: Number

    def __init_subclass__(cls) -> None:
        if missing := {"lr", "l2"} - set(cls.__annotations__):
            raise TypeError(f"{cls.__name__} must declare {' and '.join(sorted(missing))} with setting(...)")


@dataclass(frozen=True)
class RowSGD(RowUpdate):
    """Plain gradient descent on the rows of a batch."""

    name: ClassVar[str] = "sgd"
    lr: Number = setting(0.05, LEARNING_RATE)
    l2: Number = setting(0.0, L2)


@dataclass(frozen=True)
class RowMomentum(RowUpdate):
    """Gradient descent with momentum; a row's velocity moves only when the row is in a batch."""

    name: ClassVar[str] = "momentum"
    lr: Number = setting(0.05, LEARNING_RATE)
    momentum: Number = setting(0.9, MOMENTUM)
    l2: Number = setting(0.0, L2)


@dataclass(frozen=True)
class RowAdagrad(RowUpdate):
    """Adagrad with an accumulator for each weight: the default for rows."""

    name: ClassVar[str] = "adagrad"
    lr: Number = setting(0.05, LEARNING_RATE)
    eps: Number = setting(1e-8, EPS)
    initial: Initial = setting(0.0, ROW_INITIAL)
    l2: Number = setting(0.0, L2)


@dataclass(frozen=True)
class RowwiseAdagrad(RowUpdate):
    """One accumulator per row: the mean of its squared gradient."""

    name: ClassVar[str] = "rowwise_adagrad"
    lr: Number = setting(0.05, LEARNING_RATE)
    eps: Number = setting(1e-8, EPS)
    initial: Initial = setting(0.0, ROW_INITIAL)
    l2: Number = setting(0.0, L2)


@dataclass(frozen=True)
class RowAdam(RowUpdate):
    """Lazy: a row's moments move only when it is touched, and its bias correction counts its own updates."""

    name: ClassVar[str] = "adam"
    lr: Number = setting(1e-3, LEARNING_RATE)
    beta1: Number = setting(0.9, BETA1)
    beta2: Number = setting(0.999, BETA2)
    eps: Number = setting(1e-8, EPS)
    l2: Number = setting(0.0, L2)


@dataclass(frozen=True)
class RowFTRL(RowUpdate):
    """FTRL-Proximal (McMahan et al. 2013, algorithm 1); a row is born with zero weights.

    Its rate decreases by itself with the gradients seen. A schedule's factor does not apply to it, except 0, which
    stops all updates.
    """

    name: ClassVar[str] = "ftrl"
    weights_from_state: ClassVar[bool] = True
    zeroed_by: ClassVar[str] = "l1"
    lr: Number = setting(0.05, LEARNING_RATE)
    beta: Number = setting(1.0, "Added to the root of the squared sum.", at_least=0)
    l1: Number = setting(0.0, "Makes small weights exactly zero.", at_least=0)
    l2: Number = setting(0.0, L2)


RowOptimizer = RowSGD | RowMomentum | RowAdagrad | RowwiseAdagrad | RowAdam | RowFTRL


def with_initial(rule: RowOptimizer, divisor: float) -> RowOptimizer:
    """The rule with a number in place of `initial="auto"`; gradients of a row are divided by `divisor`."""
    if not isinstance(rule, RowAdagrad | RowwiseAdagrad) or rule.initial != "auto":
        return rule
    return replace(rule, initial=(USUAL / divisor) ** 2)


def may_zero_weights(rule: RowOptimizer) -> bool:
    """Whether a trained weight may be 0, as if it had never been trained."""
    return bool(rule.zeroed_by) and getattr(rule, rule.zeroed_by) > 0


ROW_OPTIMIZERS: dict[str, type[RowOptimizer]] = {rule.name: rule for rule in get_args(RowOptimizer)}


@dataclass(frozen=True)
class CowClip:
    """Clips a row's gradient, before L2 and the optimizer, by the norm of the row and the number of occurrences of its
    id:

    `g *= min(1, c / |g|)`, `c = ratio * count * max(|w|, ratio * sqrt(width) * zeta)` (Zheng et al. 2022). The gradient
    must be the mean over the step's examples (`embedding_reduce: mean`). Their L2 regularises the whole table in every
    step; ours regularises only the rows touched.
    """

    name: ClassVar[str] = "cowclip"
    ratio: Number = setting(
        1.0, "Largest gradient norm relative to the row's norm, per occurrence of its id.", above=0
    )
    zeta: Number = setting(1e-5, "Minimum norm assumed for a row, per square root of its width.", at_least=0)

    def __post_init__(self) -> None:
        if not (0 < self.ratio < math.inf and 0 <= self.zeta < math.inf):
            raise UserError(
                f"CowClip needs a ratio above 0 and a zeta of 0 or more, not {self.ratio} and {self.zeta}"
            )


# All of them are public names of the package `gearshift`.
__all__ = [*(rule.__name__ for rule in get_args(RowOptimizer)), "CowClip"]
