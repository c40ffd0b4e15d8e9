"""What the weights will probably be some steps later, if the optimizer goes on as before.

A rule that can be extrapolated has a method `extrapolate`. Like `step` it works in place, on copies of the weights and
the state: the caller's own are never touched. Most rules repeat their own step (`own_steps`). The first of these steps
gets the gradients that already wait, at their share of a step; the rest of it, and the later steps, get the gradient
that the rule's first moment expects. So after many equal gradients the extrapolation is right. A rule without the
method is not extrapolated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

State = dict[str, Tensor]


@dataclass(frozen=True)
class Ahead:
    """How far to extrapolate, and what is known of the first step."""

    steps: int
    waiting: Tensor | None = None  # the mean of the gradients that wait
    share: float = 0.0  # of the first step that they are
    lr_scale: float = 1.0


@runtime_checkable
class Extrapolates(Protocol):
    def extrapolate(self, flat: Tensor, state: State, ahead: Ahead) -> None:
        """Moves `flat` by `ahead.steps` steps. Both are copies; the state is used up."""


class Steps(Protocol):
    def step(self, flat: Tensor, grad: Tensor, state: State, *, lr_scale: float = 1.0) -> None: ...


@torch.no_grad()
def own_steps(rule: Steps, flat: Tensor, state: State, ahead: Ahead, expected: Tensor | None = None) -> None:
    """Steps of the rule itself, on copies; `expected` is the gradient that it expects, if it expects one."""
    usual = torch.zeros_like(flat) if expected is None else expected
    first = usual if ahead.waiting is None else torch.lerp(usual, ahead.waiting, ahead.share)
    for number in range(ahead.steps):
        rule.step(flat, usual if number else first, state, lr_scale=ahead.lr_scale)
