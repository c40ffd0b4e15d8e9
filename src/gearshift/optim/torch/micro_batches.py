"""Collects the gradients of one step's micro-batches, one at a time. Only sums are kept, not the gradients.

    with optimizer.micro_batches() as collect:
        for x, y in pieces:
            loss_of(model(x), y).backward()
            collect(examples=len(x))
    optimizer.step()

The loss of each piece is a *mean* over its examples. Inside the block, `.grad` belongs to the collector: it is empty at
the start and after each `collect()`. After the block it holds the mean over the step's examples, ready for clipping.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gearshift.errors import UserError
from gearshift.optim.spread import ShiftedSums, Spread

Collected = tuple[Spread, Tensor]  # for a parameter: its spread, and the gradient that this spread belongs to
MOST_EXAMPLES = 1e15  # larger numbers could not be squared and added up

if TYPE_CHECKING:
    from gearshift.optim.torch.variance_reduced import VarianceReducedOptimizer


class Collector:
    """The spread of each parameter's gradients. A micro-batch without a gradient for a parameter counts as zeros."""

    def __init__(self, optimizer: VarianceReducedOptimizer) -> None:
        self._optimizer = optimizer
        self._sums: list[ShiftedSums | None] = [None for _ in optimizer.parameters()]
        self._missed: list[list[float]] = [[] for _ in self._sums]
        self.count = 0
        self.over = False

    def __call__(self, examples: float = 1.0) -> None:
        """Take the gradients that `backward()` left in `.grad`. Pass `examples` if micro-batches differ in size."""
        if self.over:
            raise UserError(
                "the micro_batches() block has ended: call collect() inside it, after each backward()"
            )
        parameters = list(self._optimizer.parameters())
        if all(p.grad is None for p in parameters):
            raise UserError("no parameter has a gradient: call backward() before collect()")
        self.add([p.grad for p in parameters], examples)
        for p in parameters:
            p.grad = None

    def add(self, gradients: Sequence[Tensor | None], examples: float = 1.0) -> None:
        if len(gradients) != len(self._sums):
            raise UserError(
                f"{len(gradients)} gradients for {len(self._sums)} parameters: pass one for each, in the order of "
                "the optimizer's groups; None for a parameter without a gradient"
            )
        number = isinstance(examples, Real) and not isinstance(examples, bool)
        if not (number and 0 < examples <= MOST_EXAMPLES):
            raise UserError(
                f"a micro-batch must have more than 0 and at most {MOST_EXAMPLES:g} examples, not {examples!r}: skip "
                "an empty one without collect()"
            )
        self._optimizer.check_gradients(gradients)
        for i, gradient in enumerate(gradients):
            if gradient is None:
                self._missed[i].append(examples)
                continue
            sums = self._sums[i] or ShiftedSums(gradient)
            sums.add(gradient, examples)
            self._sums[i] = sums
        self.count += 1

    def spreads(self) -> list[Spread | None]:
        """One per parameter; None if no micro-batch had a gradient for it."""
        for sums, missed in zip(self._sums, self._missed, strict=True):
            while sums is not None and missed:
                sums.add(torch.zeros_like(sums.first), missed.pop())
        return [None if sums is None else sums.spread() for sums in self._sums]


@contextmanager
def collecting(optimizer: VarianceReducedOptimizer) -> Iterator[Collector]:
    if optimizer.collector is not None:
        raise UserError(
            "a micro_batches() block of this optimizer is already open; only one is allowed at a time"
        )
    optimizer.zero_grad()
    optimizer.ratios = ()  # frees its buffers
    optimizer.collector = collector = Collector(optimizer)
    try:
        yield collector
    finally:
        optimizer.collector, collector.over = None, True
    parameters = list(optimizer.parameters())
    if not collector.count or any(p.grad is not None for p in parameters):
        raise UserError(
            f"{'a' if collector.count else 'no'} micro-batch was {'not ' if collector.count else ''}collected: "
            "call collect() after each backward()"
        )
    collected: dict[Tensor, Collected] = {}
    for p, spread in zip(parameters, collector.spreads(), strict=True):
        if spread is not None:
            p.grad = spread.mean.to(p.dtype, copy=True)  # it may be clipped, r may not
            collected[p] = spread, p.grad
    optimizer.collected = collected
