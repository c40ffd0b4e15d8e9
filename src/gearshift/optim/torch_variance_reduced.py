"""What the variance-reduced `torch.optim.Optimizer`s share: where a step's gradients come from, and r from them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from gearshift.errors import UserError
from gearshift.optim.first_order import DenseOptimizer
from gearshift.optim.gsnr import GSNR, LayerStatistics, Ratios
from gearshift.optim.layout import Layout
from gearshift.optim.micro_batches import Collector, collecting
from gearshift.optim.spread import Spread
from gearshift.optim.torch_rule import Closure, RuleOptimizer, evaluate
from gearshift.optim.variance_reduced import VarianceReduced


class VarianceReducedOptimizer(RuleOptimizer):
    """r from a step's gradients, then the rule `base`. What this class remembers besides the state is of one step."""

    collected: list[Spread | None] | None = None  # by `micro_batches`, for the next step
    ratios: tuple[Ratios, ...] = ()  # of the last step
    plain_steps = 0  # steps with r = 1, for want of gradients

    def base(self, group: dict[str, Any]) -> DenseOptimizer:
        raise NotImplementedError

    def rule(self, group: dict[str, Any]) -> VarianceReduced:
        gsnr = GSNR(group["floor"], group["min_gradients"], group["control"])
        return VarianceReduced(self.base(group), gsnr, group.get("beta3", 0.0))

    def micro_batches(self) -> AbstractContextManager[Collector]:
        return collecting(self)

    def statistics(self) -> tuple[LayerStatistics, ...]:
        """Of the last step, per parameter tensor: mean r, share at the floor, noise scale."""
        return tuple(line for ratios in self.ratios for line in ratios.statistics())

    @torch.no_grad()
    def step(
        self,
        closure: Closure | None = None,
        *,
        gradients: Sequence[Sequence[Tensor | None]] | None = None,
        weights: Sequence[float] | None = None,
    ) -> Any:
        loss = evaluate(closure)
        means = [p.grad for p in self.parameters()]
        spreads, self.collected = self.collected or [None] * len(means), None
        if gradients is not None:
            spreads = self._spreads(gradients, weights)
            means = [
                None if s is None else s.mean.to(p.dtype)
                for s, p in zip(spreads, self.parameters(), strict=True)
            ]
        self.check_gradients(means)
        self._apply(means, spreads)
        return loss

    def _spreads(
        self, gradients: Sequence[Sequence[Tensor | None]], weights: Sequence[float] | None
    ) -> list[Spread | None]:
        if weights is not None and len(weights) != len(gradients):
            raise UserError(
                f"{len(weights)} weights for the gradients of {len(gradients)} devices: give one for each"
            )
        collector = Collector(self)
        for device, weight in zip(gradients, weights or [1.0] * len(gradients), strict=True):
            collector.add(device, weight)
        return collector.spreads()

    def _apply(self, gradients: list[Tensor | None], spreads: list[Spread | None]) -> None:
        ratios, places = [], zip(gradients, spreads, strict=True)
        reason = None
        for g, group in enumerate(self.param_groups):
            rule = self.rule(group)
            for i, p in enumerate(group["params"]):
                gradient, spread = next(places)
                if gradient is None:
                    continue
                layout, r = Layout.whole(self.layer_name(g, i), p.shape), None
                if spread is None:
                    reason = "the step has one gradient: r = 1"
                else:
                    ratios.append(rule.gsnr.ratios(spread, layout))
                    r, reason = ratios[-1].values, ratios[-1].reason or reason
                rule.on(layout).step(p, gradient, self.state_of(p, rule), ratio=r)
        self.ratios = tuple(ratios)
        if reason:
            self._tell(reason)

    def _tell(self, reason: str) -> None:
        self.plain_steps += 1
        if self.plain_steps == 1:
            warnings.warn(
                f"{type(self).__name__}: {reason}, as without VR. Give step(gradients=[...]) or collect more with "
                "micro_batches(). Steps like this are counted in plain_steps.",
                stacklevel=6,  # the caller of step(), past torch's two wrappers of it
            )
