"""LARS and LAMB on a flat buffer: each layer's step is scaled by the norm of its weights (the trust ratio).

    optimizer = DenseLAMB(lr=2e-3).on(Layout.of(dense.names, dense.shapes, dense.offsets))

Otherwise they are like `first_order`: a frozen value with `init` and `step`. 1-D layers (biases), and layers whose
weights or update are zero, get trust 1. For a custom PyTorch loop use `gearshift.optim.LARS` and `LAMB`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gearshift.optim.first_order import State, first_moment
from gearshift.optim.layout import Layout
from gearshift.optim.prediction import Ahead, own_steps
from gearshift.optim.rule_settings import LAMBSettings, LARSSettings


@dataclass(frozen=True)
class DenseLARS(LARSSettings):
    """You, Gitman & Ginsburg 2017, algorithm 1: `trust = eta |w| / (|g| + weight_decay |w|)`."""

    layout: Layout | None = None

    def on(self, layout: Layout) -> DenseLARS:
        return replace(self, layout=layout)

    def init(self, n: int) -> State:
        return {"velocity": torch.zeros(n)}

    @torch.no_grad()
    def step(self, flat: Tensor, grad: Tensor, state: State, *, lr_scale: float = 1.0) -> None:
        layout, rate, decay = _laid_out(self.layout), self.lr * lr_scale, self.weight_decay
        parts = zip(layout.layers, *map(layout.views, (flat, grad, state["velocity"])), strict=True)
        for layer, w, g, velocity in parts:
            trust = 1.0
            if layer.is_matrix:
                weight, length = _norm(w), _norm(g)
                trust = _ratio(self.eta * weight, length + decay * weight)
            velocity.mul_(self.momentum).add_(g, alpha=rate * trust).add_(w, alpha=rate * trust * decay)
            w.sub_(velocity)

    @torch.no_grad()
    def extrapolate(self, flat: Tensor, state: State, ahead: Ahead) -> None:
        """At constant velocity. Waiting gradients are left out: their trust depends on the norm of the whole step."""
        flat.sub_(state["velocity"], alpha=ahead.steps)


@dataclass(frozen=True)
class DenseLAMB(LAMBSettings):
    """You et al. 2020, algorithm 2, with phi(z) = z: weight decay enters after Adam's ratio."""

    layout: Layout | None = None

    def on(self, layout: Layout) -> DenseLAMB:
        return replace(self, layout=layout)

    def init(self, n: int) -> State:
        return {"step": torch.zeros((), dtype=torch.int64), "mean": torch.zeros(n), "square": torch.zeros(n)}

    @torch.no_grad()
    def step(self, flat: Tensor, grad: Tensor, state: State, *, lr_scale: float = 1.0) -> None:
        layout, step = _laid_out(self.layout), int(state["step"].add_(1))
        mean = state["mean"].lerp_(grad, 1 - self.beta1)
        square = state["square"].mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        root = square.sqrt().mul_(1 / math.sqrt(1 - self.beta2**step)).add_(self.eps)
        move = mean.div(root).mul_(1 / (1 - self.beta1**step)).add_(flat, alpha=self.weight_decay)
        for layer, w, u in zip(layout.layers, layout.views(flat), layout.views(move), strict=True):
            trust = _ratio(_norm(w), _norm(u)) if layer.is_matrix else 1.0
            w.add_(u, alpha=-self.lr * lr_scale * trust)

    def extrapolate(self, flat: Tensor, state: State, ahead: Ahead) -> None:
        """As Adam; every step has the length that its trust ratio gives it."""
        own_steps(self, flat, state, ahead, first_moment(state, self.beta1))


def _laid_out(layout: Layout | None) -> Layout:
    if layout is None:
        raise ValueError("this optimizer works per layer: set the layers first, with optimizer.on(layout)")
    return layout


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values))


def _ratio(weight: float, update: float) -> float:
    """The trust ratio; 1 unless both norms are positive, because zero weights would stay zero."""
    return weight / update if weight > 0 and update > 0 else 1.0
