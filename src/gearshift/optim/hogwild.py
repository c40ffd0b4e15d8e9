"""First-order rules for several threads that update the same weights without locks (Hogwild, Niu et al. 2011).

A standard rule adds g^2 to a shared sum and then reads the sum back. If another thread overwrites the addition, the sum
lacks g^2 and the step becomes huge. Here each thread computes its denominator separately, from the shared values and
its own gradient, and writes the shared values afterwards. With Adam, a square can be lost while the corresponding mean
remains, so a later step of an inactive element divides that mean by almost nothing (with four threads on a quadratic
bowl, weights diverged to 6e6). The step is therefore limited to the longest step of Adam. Whatever is lost, steps stay
bounded.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from gearshift.errors import UserError
from gearshift.optim.first_order import SGD, Adagrad, Adam, DenseOptimizer, State

Stock = TypeVar("Stock", Adagrad, Adam)


@dataclass(frozen=True)
class _Hogwild(ABC, Generic[Stock]):
    """The settings and state of a standard rule, with another step."""

    stock: Stock

    @property
    def lr(self) -> float:
        return self.stock.lr

    def init(self, n: int) -> State:
        return self.stock.init(n)

    @torch.no_grad()
    def step(self, flat: Tensor, grad: Tensor, state: State, *, lr_scale: float = 1.0) -> None:
        l2 = self.stock.l2
        self._move(flat, grad.add(flat, alpha=l2) if l2 else grad, state, lr_scale)

    @abstractmethod
    def _move(self, flat: Tensor, grad: Tensor, state: State, lr_scale: float) -> None: ...


@dataclass(frozen=True)
class HogwildAdagrad(_Hogwild[Adagrad]):
    def _move(self, flat: Tensor, grad: Tensor, state: State, lr_scale: float) -> None:
        stock = self.stock
        total = torch.addcmul(state["sum"], grad, grad)
        state["sum"].addcmul_(grad, grad)
        flat.addcdiv_(grad, total.sqrt_().add_(stock.eps), value=-stock.lr * lr_scale)


@dataclass(frozen=True)
class HogwildAdam(_Hogwild[Adam]):
    def _move(self, flat: Tensor, grad: Tensor, state: State, lr_scale: float) -> None:
        stock = self.stock
        step = int(state["step"].add_(1))
        mean = torch.lerp(state["mean"], grad, 1 - stock.beta1)
        square = (state["square"] * stock.beta2).addcmul_(grad, grad, value=1 - stock.beta2)
        state["square"].copy_(square)
        state["mean"].copy_(mean)
        scale = 1 / math.sqrt(1 - stock.beta2**step)
        ratio = mean.div_(square.sqrt_().mul_(scale).add_(stock.eps)).div_(1 - stock.beta1**step)
        flat.add_(ratio.clamp_(-self.longest, self.longest), alpha=-stock.lr * lr_scale)

    @property
    def longest(self) -> float:
        """The bound of |m^| / sqrt(v^) over all gradients (Cauchy-Schwarz). A single thread never reaches it."""
        b1, b2 = self.stock.beta1, self.stock.beta2
        room = (1 - b2) * (1 - b1 * b1 / b2) if b2 > b1 * b1 else 0.0
        return max(1.0, (1 - b1) / math.sqrt(room)) if room > 0 else math.inf


def without_locks(optimizer: DenseOptimizer) -> DenseOptimizer:
    """The same rule, made safe for several threads on one replica."""
    match optimizer:
        case SGD():
            return optimizer
        case Adagrad():
            return HogwildAdagrad(optimizer)
        case Adam():
            return HogwildAdam(optimizer)
        case _:
            name = type(optimizer).__name__.lower()
            raise UserError(
                f"workers_per_replica above 1 needs an optimizer.dense that is stable without locks (sgd, adagrad "
                f"or adam), not {name}"
            )
