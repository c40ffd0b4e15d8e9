"""Shared by the variance-reduced `torch.optim.Optimizer`s: the source of a step's gradients, and r."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gearshift.errors import UserError
from gearshift.optim.first_order import DenseOptimizer
from gearshift.optim.gsnr import GSNR, LayerStatistics, Ratios
from gearshift.optim.layout import Layout
from gearshift.optim.spread import Spread
from gearshift.optim.torch.flat_rule import Closure, RuleOptimizer, evaluate
from gearshift.optim.torch.micro_batches import Collected, Collector, collecting
from gearshift.optim.variance_reduced import VarianceReduced


class VarianceReducedOptimizer(RuleOptimizer):
    """Computes r from a step's gradients, then applies the rule `base`. Attributes other than state are per step."""

    optional_state = frozenset({"ratio"})  # present while `beta3` is above 0
    collector: Collector | None = None  # while a `micro_batches` block is open
    collected: Mapping[Tensor, Collected] = MappingProxyType({})  # set by `micro_batches` for the next step
    ratios: tuple[Ratios, ...] = ()  # ratios of the last step
    plain_steps = 0  # steps with r = 1, because there were too few gradients

    def base(self, group: dict[str, Any]) -> DenseOptimizer:
        raise NotImplementedError

    def rule(self, group: dict[str, Any]) -> VarianceReduced:
        gsnr = GSNR(group["floor"], group["min_gradients"], group["control"])
        return VarianceReduced(self.base(group), gsnr, group.get("beta3", 0.0))

    def micro_batches(self) -> AbstractContextManager[Collector]:
        return collecting(self)

    def statistics(self) -> tuple[LayerStatistics, ...]:
        """Statistics of the last step, per parameter tensor: mean r, share at the floor, noise scale."""
        return tuple(line for ratios in self.ratios for line in ratios.statistics())

    @torch.no_grad()
    def step(
        self,
        closure: Closure | None = None,
        *,
        gradients: Sequence[Sequence[Tensor | None]] | None = None,
        weights: Sequence[float] | None = None,
    ) -> Any:
        if self.collector is not None:
            raise UserError("step() was called inside a micro_batches() block: call it once, after the block")
        if weights is not None and gradients is None:
            raise UserError(
                "weights belong to step(gradients=[...]); for micro-batches use collect(examples=...)"
            )
        if closure is not None and not callable(closure):
            raise UserError("step() takes gradients by name: step(gradients=[...])")
        loss = evaluate(closure)
        parameters = list(self.parameters())
        if gradients is not None:
            spreads = self._spreads(gradients, weights)
            both = zip(spreads, parameters, strict=True)
            means = [None if spread is None else spread.mean.to(p.dtype) for spread, p in both]
        else:
            spreads, means = [self._spread(p) for p in parameters], [p.grad for p in parameters]
            self._check_replaced(parameters)
        self.collected = {}
        self.check_gradients(means)
        self._apply(means, spreads)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.collected = {}
        super().zero_grad(set_to_none)

    def _spread(self, p: Tensor) -> Spread | None:
        """The collected spread, unless `.grad` was replaced since."""
        spread, gradient = self.collected.get(p, (None, None))
        return spread if p.grad is gradient else None

    def _check_replaced(self, parameters: Sequence[Tensor]) -> None:
        of_collected = ((p.grad, self.collected[p][1]) for p in parameters if p in self.collected)
        if any(now is not None and now is not then for now, then in of_collected):
            self._warn("a collected .grad was replaced by another tensor, so r = 1: change it in place")

    def _spreads(
        self, gradients: Sequence[Sequence[Tensor | None]], weights: Sequence[float] | None
    ) -> list[Spread | None]:
        devices = list(gradients) if isinstance(gradients, Iterable) else []
        listed = (isinstance(device, Iterable) and not isinstance(device, Tensor) for device in devices)
        if not devices or not all(listed):
            raise UserError("step(gradients=...) takes a list per device, with one gradient per parameter")
        try:
            counts = [1.0] * len(devices) if weights is None else [float(weight) for weight in weights]
        except (TypeError, ValueError):
            raise UserError(
                f"weights must be a list with the number of examples of each device, not {weights!r}"
            ) from None
        if len(counts) != len(devices):
            raise UserError(
                f"{len(counts)} weights for the gradients of {len(devices)} devices: pass one for each"
            )
        collector = Collector(self)
        for device, count in zip(devices, counts, strict=True):
            collector.add(list(device), count)
        return collector.spreads()

    def _apply(self, gradients: list[Tensor | None], spreads: list[Spread | None]) -> None:
        ratios, places = [], zip(gradients, spreads, strict=True)
        reason = "the step has one gradient: r = 1"
        for g, group in enumerate(self.param_groups):
            rule = self.rule(group)
            fresh = rule.init(0)
            for i, p in enumerate(group["params"]):
                gradient, spread = next(places)
                if gradient is None:
                    continue
                layout, r = Layout.whole(self.layer_name(g, i), p.shape), None
                if spread is not None:
                    ratios.append(rule.gsnr.ratios(spread, layout))
                    r, reason = ratios[-1].values, ratios[-1].reason or reason
                rule.on(layout).step(p, gradient, self.state_of(p, fresh), ratio=r)
        self.ratios = tuple(ratios)
        if all(one.values is None for one in ratios) and any(g is not None for g in gradients):
            self.plain_steps += 1
            if self.plain_steps == 1:
                self._warn(
                    f"{reason}, as without VR. Pass step(gradients=[...]) or collect more with micro_batches(). Steps "
                    "like this are counted in plain_steps."
                )

    def _warn(self, sentence: str) -> None:
        """Warn at the caller of step(), outside the wrappers of torch."""
        frame, level = sys._getframe(), 1
        while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in (
            "gearshift",
            "torch",
        ):
            frame, level = frame.f_back, level + 1
        warnings.warn(f"{type(self).__name__}: {sentence}", stacklevel=level)
