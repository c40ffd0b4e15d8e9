"""VR-SGD, VR-Momentum, VR-Adam, VR-LARS and VR-LAMB on a flat buffer (Jiang et al. 2023): rule x on r * gradient.

    optimizer = build("vr_adam", lr=1e-3, floor=0.1).on(layout)
    ratios = optimizer.gsnr.ratios(spread_of(pushes), layout)
    optimizer.step(flat, gradient, state, ratio=ratios.values, lr_scale=...)

Adam and LAMB use r smoothed over time (`beta3`), with bias correction. The state is the mean of r - 1, which is
exactly 0 while r is 1, so VR-x with floor 1 equals x bit for bit. Weight decay is never scaled by r. For a custom
PyTorch loop use `gearshift.optim.VRAdam` and the other VR optimizers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from gearshift.errors import UserError, unknown_name
from gearshift.optim.first_order import SGD, Adam, DenseOptimizer, Momentum, State
from gearshift.optim.gsnr import GSNR
from gearshift.optim.large_batch import DenseLAMB, DenseLARS
from gearshift.optim.layout import Layout, bind
from gearshift.optim.prediction import Ahead, Extrapolates
from gearshift.optim.rule_settings import DENSE_RULES, SmoothedTrust
from gearshift.settings.declaration import declarations


@dataclass(frozen=True)
class VarianceReduced:
    base: DenseOptimizer
    gsnr: GSNR = field(default_factory=GSNR)
    beta3: float = 0.0  # smoothing of r; 0: no smoothing

    def __post_init__(self) -> None:
        if not (isinstance(self.beta3, Real) and 0.0 <= self.beta3 < 1.0):
            raise UserError(f"beta3 smooths r and must be at least 0 and below 1, not {self.beta3!r}")

    @property
    def lr(self) -> float:
        return self.base.lr

    def on(self, layout: Layout) -> VarianceReduced:
        return replace(self, base=bind(self.base, layout))

    def init(self, n: int) -> State:
        state = self.base.init(n)
        if not self.beta3:
            return state
        if "step" not in state:
            raise UserError(f"beta3 needs a rule that counts its steps, such as Adam; {self.base} does not")
        return state | {"ratio": torch.zeros(n)}

    @torch.no_grad()
    def step(
        self,
        flat: Tensor,
        grad: Tensor,
        state: State,
        *,
        ratio: Tensor | None = None,
        lr_scale: float = 1.0,
        spare: Tensor | None = None,
    ) -> None:
        """A step with the ratios `ratio`; None means r = 1. `spare` is a scratch buffer like `grad`."""
        factor = ratio if not self.beta3 else self._smoothed(ratio, state, spare)
        reduced = grad if factor is None else torch.mul(grad, factor.to(grad.dtype), out=spare)
        self.base.step(flat, reduced, state, lr_scale=lr_scale)

    def _smoothed(self, ratio: Tensor | None, state: State, spare: Tensor | None) -> Tensor:
        kept, fresh = state["ratio"].mul_(self.beta3), 1 - self.beta3
        if ratio is not None:
            kept.add_(ratio.to(kept.dtype), alpha=fresh).sub_(fresh)
        return torch.div(kept, 1 - self.beta3 ** (int(state["step"]) + 1), out=spare).add_(1)

    def extrapolate(self, flat: Tensor, state: State, ahead: Ahead) -> None:
        """As the base rule, from its moments alone: r is not known before all gradients of the step are there."""
        if isinstance(self.base, Extrapolates):
            self.base.extrapolate(flat, state, replace(ahead, waiting=None))


def with_lr(optimizer: DenseOptimizer, lr: float) -> DenseOptimizer:
    """The same optimizer with another learning rate."""
    if isinstance(optimizer, VarianceReduced):
        return replace(optimizer, base=with_lr(optimizer.base, lr))
    if not is_dataclass(optimizer):
        raise UserError(
            f"{type(optimizer).__name__} is not a dataclass with a field lr, so its rate cannot be changed"
        )
    changed: DenseOptimizer = replace(optimizer, lr=lr)
    return changed


# The base rule of each, and its smoothing of r.
VARIANCE_REDUCED: dict[str, tuple[type[SGD | Momentum | Adam | DenseLARS | DenseLAMB], float]] = {
    name: (rule, SmoothedTrust.beta3 if SmoothedTrust in DENSE_RULES[name] else 0.0)
    for rule in (SGD, Momentum, Adam, DenseLARS, DenseLAMB)
    if (name := f"vr_{rule.name}")
}


def variance_reduced(name: str, **params: Any) -> VarianceReduced:
    """`variance_reduced("vr_adam", lr=1e-3, floor=0.2)`: settings of the base rule and of `GSNR`, and `beta3`."""
    if name not in VARIANCE_REDUCED:
        raise unknown_name("optimizer", name, VARIANCE_REDUCED)
    rule, beta3 = VARIANCE_REDUCED[name]
    of_rule, of_gsnr = declarations(rule), declarations(GSNR)
    for param in params:
        if param not in (known := [*of_rule, *of_gsnr, "beta3"]):
            raise unknown_name(f"parameter of optimizer {name}:", param, known)
    return VarianceReduced(
        rule(**{key: value for key, value in params.items() if key in of_rule}),
        GSNR(**{key: value for key, value in params.items() if key in of_gsnr}),
        params.get("beta3", beta3),
    )
