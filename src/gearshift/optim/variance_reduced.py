"""VR-SGD, VR-Momentum, VR-Adam, VR-LARS and VR-LAMB on a flat buffer (Jiang et al. 2023): r * gradient, fed to x.

    optimizer = build("vr_adam", lr=1e-3, floor=0.1).on(layout)
    ratios = optimizer.gsnr.ratios(spread_of(pushes), layout)
    optimizer.step(flat, gradient, state, ratio=ratios.values, lr_scale=...)

Adam and LAMB take r smoothed over time (`beta3`), with the bias of its start corrected. Kept is the mean of r - 1: the
same number, and exactly 0 while r is 1, so that VR-x with floor 1 is x bit for bit. Weight decay is never scaled by r.
A user's own PyTorch loop takes `gearshift.optim.VRAdam` and its like.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from gearshift.errors import UserError, unknown_name
from gearshift.optim.first_order import SGD, Adam, DenseOptimizer, Momentum, State
from gearshift.optim.gsnr import GSNR
from gearshift.optim.large_batch import DenseLAMB, DenseLARS
from gearshift.optim.layout import Layout, bind


@dataclass(frozen=True)
class VarianceReduced:
    base: DenseOptimizer
    gsnr: GSNR = field(default_factory=GSNR)
    beta3: float = 0.0  # memory of r; 0: r as it is

    def __post_init__(self) -> None:
        if not (isinstance(self.beta3, Real) and 0.0 <= self.beta3 < 1.0):
            raise UserError(f"beta3 is the memory of r, from 0 to below 1, not {self.beta3!r}")

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
            raise UserError(f"beta3 needs a rule that counts its steps, as Adam does; {self.base} does not")
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
        """`ratio` None: r is 1. `spare` is a buffer like `grad` to compute in."""
        factor = ratio if not self.beta3 else self._smoothed(ratio, state, spare)
        reduced = grad if factor is None else torch.mul(grad, factor.to(grad.dtype), out=spare)
        self.base.step(flat, reduced, state, lr_scale=lr_scale)

    def _smoothed(self, ratio: Tensor | None, state: State, spare: Tensor | None) -> Tensor:
        kept, fresh = state["ratio"].mul_(self.beta3), 1 - self.beta3
        if ratio is not None:
            kept.add_(ratio.to(kept.dtype), alpha=fresh).sub_(fresh)
        return torch.div(kept, 1 - self.beta3 ** (int(state["step"]) + 1), out=spare).add_(1)


def with_lr(optimizer: DenseOptimizer, lr: float) -> DenseOptimizer:
    """The same optimizer at another rate."""
    if isinstance(optimizer, VarianceReduced):
        return replace(optimizer, base=with_lr(optimizer.base, lr))
    if not is_dataclass(optimizer):
        raise UserError(
            f"{type(optimizer).__name__} is no dataclass with a field lr, so its rate cannot be changed"
        )
    changed: DenseOptimizer = replace(optimizer, lr=lr)
    return changed


# The base rule of each, and its memory of r.
VARIANCE_REDUCED: dict[str, tuple[type[SGD | Momentum | Adam | DenseLARS | DenseLAMB], float]] = {
    "vr_sgd": (SGD, 0.0),
    "vr_momentum": (Momentum, 0.0),
    "vr_adam": (Adam, 0.9),
    "vr_lars": (DenseLARS, 0.0),
    "vr_lamb": (DenseLAMB, 0.9),
}


def variance_reduced(name: str, **params: Any) -> VarianceReduced:
    """`variance_reduced("vr_adam", lr=1e-3, floor=0.2)`: settings of the base rule, of `GSNR`, and `beta3`."""
    if name not in VARIANCE_REDUCED:
        raise unknown_name("optimizer", name, VARIANCE_REDUCED)
    rule, beta3 = VARIANCE_REDUCED[name]
    of_rule = [f.name for f in fields(rule) if f.name != "layout"]
    of_gsnr = [f.name for f in fields(GSNR)]
    for param in params:
        if param not in (known := [*of_rule, *of_gsnr, "beta3"]):
            raise unknown_name(f"parameter of optimizer {name}:", param, known)
    return VarianceReduced(
        rule(**{key: value for key, value in params.items() if key in of_rule}),
        GSNR(**{key: value for key, value in params.items() if key in of_gsnr}),
        params.get("beta3", beta3),
    )
