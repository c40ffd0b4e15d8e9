"""Optimizers of the dense parameters, by name. Those of embedding rows live in the row store.

`SGD` ... `AdamW`, `DenseLARS`, `DenseLAMB` and `VarianceReduced` step Gearshift's flat buffer. `LARS`, `LAMB`, `VRSGD`,
`VRMomentum`, `VRAdam`, `VRLARS` and `VRLAMB` are `torch.optim.Optimizer`s for any PyTorch model, with the same rules.
"""

from __future__ import annotations

import math
from dataclasses import fields
from numbers import Real
from typing import Any

from gearshift.errors import UserError, unknown_name
from gearshift.optim.first_order import SGD, Adagrad, Adam, AdamW, DenseOptimizer, Momentum, State, clip_norm
from gearshift.optim.gsnr import GSNR, LayerStatistics, Ratios
from gearshift.optim.large_batch import DenseLAMB, DenseLARS
from gearshift.optim.layout import Layout, bind
from gearshift.optim.schedule import Schedule
from gearshift.optim.spread import SharedSums, ShiftedSums, Spread, spread_of
from gearshift.optim.torch.optimizers import LAMB, LARS, VRLAMB, VRLARS, VRSGD, VRAdam, VRMomentum
from gearshift.optim.variance_reduced import VARIANCE_REDUCED, VarianceReduced, variance_reduced

OPTIMIZERS: dict[str, type[SGD | Momentum | Adagrad | Adam | AdamW]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adagrad": Adagrad,
    "adam": Adam,
    "adamw": AdamW,
}
LAYER_WISE: dict[str, type[DenseLARS | DenseLAMB]] = {
    "lars": DenseLARS,
    "lamb": DenseLAMB,
}  # need `.on(layout)`

NUMBERS = ("lr", "l2", "weight_decay", "eps", "eta", "initial", "beta1", "beta2", "beta3", "momentum")

__all__ = [
    "GSNR",
    "LAMB",
    "LARS",
    "LAYER_WISE",
    "OPTIMIZERS",
    "SGD",
    "VARIANCE_REDUCED",
    "VRLAMB",
    "VRLARS",
    "VRSGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "DenseLAMB",
    "DenseLARS",
    "DenseOptimizer",
    "LayerStatistics",
    "Layout",
    "Momentum",
    "Ratios",
    "Schedule",
    "SharedSums",
    "ShiftedSums",
    "Spread",
    "State",
    "VRAdam",
    "VRMomentum",
    "VarianceReduced",
    "bind",
    "build",
    "clip_norm",
    "spread_of",
]


def build(name: str, **params: Any) -> DenseOptimizer:
    """`build("adam", lr=1e-3)`; unknown names are a `UserError` with the nearest."""
    for param, value in params.items():
        below = 1.0 if param in ("beta1", "beta2", "beta3", "momentum") else math.inf
        number = isinstance(value, Real) and not isinstance(value, bool)
        if param in NUMBERS and not (number and 0 <= value < below):
            limits = "0 or more" if below > 1 else "from 0 to below 1"
            raise UserError(f"optimizer {name}: {param} is {limits}, not {value!r}")
    if name in VARIANCE_REDUCED:
        return variance_reduced(name, **params)
    rules = OPTIMIZERS | LAYER_WISE
    if name not in rules:
        raise unknown_name("optimizer", name, [*rules, *VARIANCE_REDUCED])
    known = [f.name for f in fields(rules[name]) if f.name != "layout"]
    for param in params:
        if param not in known:
            raise unknown_name(f"parameter of optimizer {name}:", param, known)
    return rules[name](**params)
