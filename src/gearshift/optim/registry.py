"""The dense rules by name: the class of each, and `build`, which makes one from a name and settings."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from gearshift.errors import UserError, unknown_name
from gearshift.optim.first_order import SGD, Adagrad, Adam, AdamW, DenseOptimizer, Momentum
from gearshift.optim.large_batch import DenseLAMB, DenseLARS
from gearshift.optim.rule_settings import DENSE_RULES, rule_settings
from gearshift.optim.variance_reduced import VARIANCE_REDUCED, variance_reduced
from gearshift.settings.declaration import Declaration, declarations
from gearshift.settings.units import Number

OPTIMIZERS: dict[str, type[SGD | Momentum | Adagrad | Adam | AdamW]] = {
    rule.name: rule for rule in (SGD, Momentum, Adagrad, Adam, AdamW)
}
LAYER_WISE: dict[str, type[DenseLARS | DenseLAMB]] = {
    rule.name: rule for rule in (DenseLARS, DenseLAMB)
}  # need `.on(layout)`


def build(name: str, **params: Any) -> DenseOptimizer:
    """`build("adam", lr=1e-3)`; unknown names are a `UserError` with the nearest."""
    if name not in DENSE_RULES:
        raise unknown_name("optimizer", name, DENSE_RULES)
    for param, declared in rule_settings(name).items():
        if param in params and declared.annotation == Number and param != "min_gradients":
            _check_number(name, declared, params[param])
    if name in VARIANCE_REDUCED:
        return variance_reduced(name, **params)
    rule = (OPTIMIZERS | LAYER_WISE)[name]
    known = declarations(rule)
    for param in params:
        if param not in known:
            raise unknown_name(f"parameter of optimizer {name}:", param, known)
    return rule(**params)


def _check_number(name: str, declared: Declaration, value: Any) -> None:
    below = declared.bounds.get("lt", math.inf)
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not (is_number and 0 <= value < below):
        limits = "0 or more" if below == math.inf else f"at least 0 and below {below:g}"
        raise UserError(f"optimizer {name}: {declared.name} must be {limits}, not {value!r}")
