"""Named rules that scale the learning rates when the batch grows by a factor. All functions are pure.

>>> scaled("square_root", Rates(dense_lr=1e-3, row_lr=0.05), 16)
Rates(dense_lr=0.004, row_lr=0.2, row_l2=0.0, warmup=0.0)

`linear` (Goyal et al. 2017) and `square_root` scale the dense and the row rate equally and keep L2, which a step
multiplies by the rate anyway. `cowclip` (Zheng et al. 2022, with their clipping of rows) keeps the row rate, multiplies
the rows' L2 by the factor and the dense rate by its square root, and warms up over the first tenth of the run. The
paper warms up only the dense rate. A run has one schedule, so here the rows warm up too. In a log that is read once,
the ids of the first tenth therefore move about half as far.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from gearshift.errors import UserError, unknown_name
from gearshift.settings.declaration import setting
from gearshift.settings.units import Count

Rule = Literal["constant", "linear", "square_root", "cowclip"]


@dataclass(frozen=True)
class Rates:
    dense_lr: float
    row_lr: float
    row_l2: float = 0.0
    warmup: float = 0.0  # share of the run


def constant(rates: Rates, factor: float) -> Rates:
    return rates


def linear(rates: Rates, factor: float) -> Rates:
    return replace(rates, dense_lr=rates.dense_lr * factor, row_lr=rates.row_lr * factor)


def square_root(rates: Rates, factor: float) -> Rates:
    return linear(rates, math.sqrt(factor))


def cowclip(rates: Rates, factor: float) -> Rates:
    return Rates(
        rates.dense_lr * math.sqrt(factor), rates.row_lr, rates.row_l2 * factor, max(rates.warmup, 0.1)
    )


SCALING_RULES: dict[str, Callable[[Rates, float], Rates]] = {
    "constant": constant,
    "linear": linear,
    "square_root": square_root,
    "cowclip": cowclip,
}


@dataclass(frozen=True)
class ScalingSettings:
    """The config's settings for the rates of a larger batch."""

    rule: Rule = setting(
        "constant",
        "How rates tuned for base_batch are scaled to train.global_batch (docs/large_batches.md).",
        key="batch_rule",
    )
    base_batch: Count | None = setting(
        None, "The global batch that the rates here were tuned for.", at_least=1
    )


@dataclass(frozen=True)
class BatchScaling(ScalingSettings):
    """Rates that were tuned for `base_batch`, scaled to the run's global batch by `rule`.

    The rules are "linear", "square_root" and "cowclip" (docs/large_batches.md).
    """

    def __post_init__(self) -> None:
        if self.rule not in SCALING_RULES:
            raise unknown_name("batch scaling rule", self.rule, SCALING_RULES)
        if self.base_batch is None and self.rule != "constant":
            raise UserError(
                f'rule="{self.rule}" scales rates from the batch they were tuned for: set it, such as base_batch=1024'
            )
        if self.base_batch is not None and self.base_batch < 1:
            raise UserError(f"base_batch={self.base_batch}: it must be at least 1")
        if self.base_batch is not None and self.rule == "constant":
            raise UserError(
                f"base_batch={self.base_batch} has no effect without a rule: give "
                'BatchScaling("square_root", ...), or remove it'
            )

    def factors(self, global_batch: int) -> Rates:
        """The factors of rates and L2, and the minimum warm-up, at this batch."""
        growth = 1.0 if self.base_batch is None else global_batch / self.base_batch
        return scaled(self.rule, Rates(1.0, 1.0, 1.0), growth)


def scaled(rule: str, rates: Rates, factor: float) -> Rates:
    """The rates for a batch `factor` times as large."""
    if rule not in SCALING_RULES:
        raise unknown_name("batch scaling rule", rule, SCALING_RULES)
    if not (factor > 0 and math.isfinite(factor)):
        raise UserError(f"the factor of a batch must be above 0, not {factor}")
    return SCALING_RULES[rule](rates, factor)
