"""Optimizers of the dense parameters, by name. Those of embedding rows live in the row store."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gearshift import names
from gearshift.optim.first_order import SGD, Adagrad, Adam, AdamW, DenseOptimizer, Momentum, State, clip_norm
from gearshift.optim.schedule import Schedule

OPTIMIZERS: dict[str, type[SGD | Momentum | Adagrad | Adam | AdamW]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adagrad": Adagrad,
    "adam": Adam,
    "adamw": AdamW,
}

__all__ = [
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "DenseOptimizer",
    "Momentum",
    "Schedule",
    "State",
    "build",
    "clip_norm",
]


def build(name: str, **params: Any) -> DenseOptimizer:
    """`build("adam", lr=1e-3)`; unknown names are a `UserError` with the nearest."""
    if name not in OPTIMIZERS:
        raise names.unknown("optimizer", name, OPTIMIZERS)
    known = [f.name for f in fields(OPTIMIZERS[name])]
    for param in params:
        if param not in known:
            raise names.unknown(f"parameter of optimizer {name}:", param, known)
    return OPTIMIZERS[name](**params)
