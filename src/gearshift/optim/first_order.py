"""First-order optimizers of the dense parameters. Each is a frozen value with two functions, as in optax.

    init(n)                                -> state: named tensors, saved unchanged by a checkpoint
    step(flat, grad, state, lr_scale=...)  in place; `grad` is not changed; the schedule gives lr_scale

They work on flat buffers and do not know parameter names. Rules and rounding equal torch.optim. `l2` adds l2 * weight
to the gradient; the `weight_decay` of AdamW is decoupled from the gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gearshift.optim.prediction import Ahead, own_steps
from gearshift.optim.prediction import State as State
from gearshift.optim.rule_settings import (
    AdagradSettings,
    AdamSettings,
    AdamWSettings,
    MomentumSettings,
    SGDSettings,
)


class DenseOptimizer(Protocol):
    @property
    def lr(self) -> float: ...
    def init(self, n: int) -> State: ...
    def step(self, flat: Tensor, grad: Tensor, state: State, *, lr_scale: float = 1.0) -> None: ...


@dataclass(frozen=True)
class SGD(SGDSettings):
    """Plain gradient descent."""

    def init(self, n: int) -> State:
        """The initial state for `n` weights."""
        return {}

    @torch.no_grad()
    def step(self, flat: Tensor, grad: Tensor, state: State, *, lr_scale: float = 1.0) -> None:
        """Update `flat` in place; `lr_scale` is the factor of the schedule."""
        flat.add_(_with_l2(grad, flat, self.l2), alpha=-self.lr * lr_scale)

    def extrapolate(self, flat: Tensor, state: State, ahead: Ahead) -> None:
        """Moved by the waiting gradients only: the rule has no memory of others."""
        own_steps(self, flat, state, ahead)


@dataclass(frozen=True)
class Momentum(MomentumSettings):
    """Gradient descent with momentum, or Nesterov's."""

    def init(self, n: int) -> State:
        """The initial state for `n` weights."""
        return {"velocity": torch.zeros(n)}

    @torch.no_grad()
    def step(self, flat: Tensor, grad: Tensor, state: State, *, lr_scale: float = 1.0) -> None:
        """Update `flat` in place; `lr_scale` is the factor of the schedule."""
        grad = _with_l2(grad, flat, self.l2)
        velocity = state["velocity"].mul_(self.momentum).add_(grad)
        ahead = grad.add(velocity, alpha=self.momentum) if self.nesterov else velocity
        flat.add_(ahead, alpha=-self.lr * lr_scale)

    def extrapolate(self, flat: Tensor, state: State, ahead: Ahead) -> None:
        """The velocity is a sum of gradients: 1 - momentum of it is their mean."""
        expected = (state["velocity"] * (1 - self.momentum)).sub_(flat, alpha=self.l2)
        own_steps(self, flat, state, ahead, expected)


@dataclass(frozen=True)
class Adagrad(AdagradSettings):
    """Adagrad: each weight's rate falls with the squared gradients it has seen."""

    def init(self, n: int) -> State:
        """The initial state for `n` weights."""
        return {"sum": torch.full((n,), self.initial)}

    @torch.no_grad()
    def step(self, flat: Tensor, grad: Tensor, state: State, *, lr_scale: float = 1.0) -> None:
        """Update `flat` in place; `lr_scale` is the factor of the schedule."""
        grad = _with_l2(grad, flat, self.l2)
        total = state["sum"].addcmul_(grad, grad)
        flat.addcdiv_(grad, total.sqrt().add_(self.eps), value=-self.lr * lr_scale)

    def extrapolate(self, flat: Tensor, state: State, ahead: Ahead) -> None:
        """Moved by the waiting gradients only: the rule remembers squares, which have no direction."""
        own_steps(self, flat, state, ahead)


@dataclass(frozen=True)
class Adam(AdamSettings):
    """Kingma & Ba 2015, algorithm 1."""

    def init(self, n: int) -> State:
        """The initial state for `n` weights."""
        return {"step": torch.zeros((), dtype=torch.int64), "mean": torch.zeros(n), "square": torch.zeros(n)}

    @torch.no_grad()
    def step(self, flat: Tensor, grad: Tensor, state: State, *, lr_scale: float = 1.0) -> None:
        """Update `flat` in place; `lr_scale` is the factor of the schedule."""
        grad = _with_l2(grad, flat, self.l2)
        step = int(state["step"].add_(1))
        mean = state["mean"].lerp_(grad, 1 - self.beta1)
        square = state["square"].mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        scale = 1 / math.sqrt(1 - self.beta2**step)
        rate = self.lr * lr_scale / (1 - self.beta1**step)
        flat.addcdiv_(mean, square.sqrt().mul_(scale).add_(self.eps), value=-rate)

    def extrapolate(self, flat: Tensor, state: State, ahead: Ahead) -> None:
        """With the first moment, without its bias, as the expected gradient."""
        expected = first_moment(state, self.beta1)
        own_steps(self, flat, state, ahead, None if expected is None else expected.sub_(flat, alpha=self.l2))


@dataclass(frozen=True)
class AdamW(AdamWSettings):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2)."""

    def init(self, n: int) -> State:
        """The initial state for `n` weights."""
        return self._adam.init(n)

    def step(self, flat: Tensor, grad: Tensor, state: State, *, lr_scale: float = 1.0) -> None:
        """Update `flat` in place; `lr_scale` is the factor of the schedule."""
        with torch.no_grad():
            flat.mul_(1 - self.lr * lr_scale * self.weight_decay)
        self._adam.step(flat, grad, state, lr_scale=lr_scale)

    @property
    def _adam(self) -> Adam:
        return Adam(self.lr, self.beta1, self.beta2, self.eps)

    def extrapolate(self, flat: Tensor, state: State, ahead: Ahead) -> None:
        """As Adam, with weight decay in every step."""
        own_steps(self, flat, state, ahead, first_moment(state, self.beta1))


def first_moment(state: State, beta1: float) -> Tensor | None:
    """Adam's mean gradient without its bias; None before the first step."""
    step = int(state["step"])
    return state["mean"] / (1 - beta1**step) if step else None


def _with_l2(grad: Tensor, flat: Tensor, l2: float) -> Tensor:
    return grad.add(flat, alpha=l2) if l2 else grad


def clip_norm(grad: Tensor, max_norm: float) -> float:
    """Scale `grad` in place to at most this norm; return the original norm. Non-finite gradients are unchanged."""
    norm = float(torch.linalg.vector_norm(grad))
    if math.isfinite(norm) and norm > max_norm:
        grad.mul_(max_norm / norm)
    return norm
