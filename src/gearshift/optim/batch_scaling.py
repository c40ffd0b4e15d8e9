"""What becomes of the rates when the batch grows by a factor: named rules, pure.

>>> scaled("square_root", Rates(dense_lr=1e-3, row_lr=0.05), 16)
Rates(dense_lr=0.004, row_lr=0.2, row_l2=0.0, warmup=0.0)

`linear` (Goyal et al. 2017) and `square_root` move the dense and the row rate alike and leave L2, which a step
multiplies by the rate anyway. `cowclip` (Zheng et al. 2022, with their clipping of rows) keeps the row rate, multiplies
the rows' L2 by the factor and the dense rate by its root, and warms the rates up over the first tenth of the run. There
the source warms up the dense rate alone; a run has one schedule, so here rows begin slowly too, and in a log that is
read once the ids of its first tenth move about half as far.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from gearshift.errors import UserError, unknown_name


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


def scaled(rule: str, rates: Rates, factor: float) -> Rates:
    """The rates for a batch `factor` times as large."""
    if rule not in SCALING_RULES:
        raise unknown_name("batch scaling rule", rule, SCALING_RULES)
    if not (factor > 0 and math.isfinite(factor)):
        raise UserError(f"a batch grows by a factor above 0, not {factor}")
    return SCALING_RULES[rule](rates, factor)
