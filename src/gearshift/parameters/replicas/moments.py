"""The local rule of k-step Adam (Baidu 2022), and which state of a replica a merge averages.

    params       local Adam; a merge averages the weights
    params_m_v   the same; a merge averages both moments too
    frozen_v     moments stay local, and the denominator is shared: at a merge v^ = mean(v_j) / (1 - b2^t), and every
                 step divides by sqrt(max(v^, v_j / (1 - b2^t))) + eps. Without the max, an element without gradients
                 until the middle of a period would move by thousands of learning rates in one step.

In `frozen_v` the merge completes the step before it: first the moments, then v^ from all replicas, then the weights,
then their mean. With one worker and k = 1 it therefore equals Adam. At an unplanned merge there is no step to complete;
if a planned merge does not happen, the next step completes the pending one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gearshift.errors import UserError
from gearshift.optim.first_order import Adam, DenseOptimizer, State
from gearshift.sync.exchange import Choices, Snapshot


@dataclass(frozen=True)
class FrozenAdam:
    """Adam with a denominator not below that of the last merge. State: Adam's, and `shared`, the root of v^."""

    adam: Adam

    @property
    def lr(self) -> float:
        return self.adam.lr

    def init(self, n: int) -> State:
        return {**self.adam.init(n), "shared": torch.zeros(n)}

    def step(self, flat: Tensor, grad: Tensor, state: State, *, lr_scale: float = 1.0) -> None:
        self.gather(flat, grad, state)
        self.finish(flat, state, lr_scale=lr_scale)

    @torch.no_grad()
    def gather(self, flat: Tensor, grad: Tensor, state: State) -> None:
        """The first half of a step: the moments."""
        adam = self.adam
        if adam.l2:
            grad = grad.add(flat, alpha=adam.l2)
        state["step"].add_(1)
        state["mean"].lerp_(grad, 1 - adam.beta1)
        state["square"].mul_(adam.beta2).addcmul_(grad, grad, value=1 - adam.beta2)

    @torch.no_grad()
    def finish(self, flat: Tensor, state: State, *, lr_scale: float = 1.0) -> None:
        """The second half: the weights. The root of a maximum is the maximum of the roots."""
        adam = self.adam
        rate = adam.lr * lr_scale / (1 - adam.beta1 ** int(state["step"]))
        denominator = self.denominator(state["square"], state)
        flat.addcdiv_(state["mean"], torch.maximum(denominator, state["shared"]).add_(adam.eps), value=-rate)

    def denominator(self, square: Tensor, state: State) -> Tensor:
        """The bias-corrected root of a second moment, computed in the same order as Adam, so that rounding agrees."""
        step = int(state["step"])
        return (
            square.sqrt().mul_(1 / math.sqrt(1 - self.adam.beta2**step)) if step else torch.zeros_like(square)
        )


def local_rule(optimizer: DenseOptimizer, snapshot: Snapshot) -> DenseOptimizer:
    """The rule of a replica under k-step Adam."""
    if not isinstance(optimizer, Adam):
        name = type(optimizer).__name__.lower()
        raise UserError(
            f"k_step_adam merges Adam's state, but optimizer.dense is {name}; use adam, or model_averaging"
        )
    return FrozenAdam(optimizer) if snapshot == "frozen_v" else optimizer


@dataclass(frozen=True)
class Phase:
    """One average over all replicas: the contribution of each state, and how each uses the mean."""

    name: str  # name of the contribution
    give: Callable[[State], Tensor]
    take: Callable[[State, Tensor], None]


def phases_before_weights(choices: Choices, rule: DenseOptimizer) -> tuple[Phase, ...]:
    """The averages that are made before the weights are averaged."""
    if isinstance(rule, FrozenAdam):
        return (_shared(rule),)
    return tuple(_moment(name) for name in ("mean", "square")) if choices.snapshot == "params_m_v" else ()


def _shared(rule: FrozenAdam) -> Phase:
    def take(state: State, mean: Tensor) -> None:
        state["shared"].copy_(rule.denominator(mean, state))

    return Phase("square", lambda state: state["square"], take)


def _moment(name: str) -> Phase:
    def take(state: State, mean: Tensor) -> None:
        state[name].copy_(mean)

    return Phase(name, lambda state: state[name], take)
