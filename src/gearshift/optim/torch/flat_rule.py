"""Turns a rule on one tensor into a `torch.optim.Optimizer`: parameter groups, state, closures, error checks.

Each parameter is a separate layer. A subclass defines which rule the settings of a group stand for. The rules are
those with which Gearshift's server updates its flat buffer (`first_order`, `large_batch`, `variance_reduced`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from gearshift.errors import UserError
from gearshift.optim.first_order import DenseOptimizer, State
from gearshift.optim.layout import Layout, bind

Closure = Callable[[], Any]


class RuleOptimizer(torch.optim.Optimizer):
    optional_state: frozenset[str] = (
        frozenset()
    )  # entries that a saved state may have or lack, because a step creates them
    added_settings: Mapping[str, Any] = MappingProxyType(
        {}
    )  # entries that states of older versions lack, with their values

    def __init__(self, params: ParamsT, **defaults: Any) -> None:
        super().__init__(params, defaults)

    def rule(self, group: dict[str, Any]) -> DenseOptimizer:
        raise NotImplementedError

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group. Invalid settings raise UserError before anything changes."""
        settings = self.defaults | param_group
        for name in ("lr", "weight_decay", "eps", "eta"):
            self._check(name, settings.get(name, 0.0), math.inf, "0 or more")
        self._check("momentum", settings.get("momentum", 0.0), 1.0, "at least 0 and below 1")
        betas = settings.get("betas", (0.0, 0.0))
        if not isinstance(betas, Sequence) or len(betas) != 2:
            raise UserError(
                f"{type(self).__name__}: betas must be two numbers, such as (0.9, 0.999), not {betas!r}"
            )
        for value in betas:
            self._check("betas", value, 1.0, "at least 0 and below 1")
        self.rule(settings)  # checks what only the rule knows
        super().add_param_group(param_group)
        if any(p.is_complex() for p in self.param_groups[-1]["params"]):
            del self.param_groups[-1]
            raise UserError(
                f"{type(self).__name__} supports real parameters only; view complex ones as real first"
            )

    def _check(self, name: str, value: Any, below: float, limits: str) -> None:
        if not isinstance(value, Real | Tensor) or not 0 <= float(value) < below:
            raise UserError(f"{type(self).__name__}: {name} must be {limits}, not {value!r}")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the same optimizer and parameters. Any other state is refused and nothing changes."""
        # Checked last, because other hooks may repair it first.
        check = self.register_load_state_dict_pre_hook(lambda _, saved: self._check_saved(saved))
        try:
            super().load_state_dict(state_dict)
        finally:
            check.remove()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.added_settings.items():
                group.setdefault(name, value)

    def _check_saved(self, state_dict: dict[str, Any]) -> None:
        settings = self.defaults.keys() - {"differentiable"}  # torch adds it when a state is loaded
        for current, group in zip(self.param_groups, state_dict["param_groups"], strict=False):
            group = {**self.added_settings, **group}
            if missing := settings - group.keys():
                raise UserError(
                    f"the saved state has no {', '.join(sorted(missing))}: it was not saved by {type(self).__name__}"
                )
            fresh = self.rule({name: group[name] for name in settings}).init(0)
            for p, number in zip(
                current["params"], group["params"], strict=False
            ):  # torch refuses other numbers of parameters
                self._check_state(p, fresh, state_dict["state"].get(number, {}))

    def _check_state(self, p: Tensor, fresh: State, state: State) -> None:
        whole = {name for name, value in fresh.items() if value.ndim} | self.optional_state
        shapes = {value.shape for name, value in state.items() if name in whole}
        another = (state.keys() ^ fresh.keys()) - self.optional_state
        if state and (another or shapes - {p.shape}):
            raise UserError(
                f"the saved state ({', '.join(state)}) does not fit {type(self).__name__} with a parameter of shape "
                f"{list(p.shape)}: load it into the optimizer that saved it"
            )

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        loss = evaluate(closure)
        self.check_gradients([p.grad for p in self.parameters()])
        for g, group in enumerate(self.param_groups):
            rule = self.rule(group)
            fresh = rule.init(0)
            for i, p in enumerate(group["params"]):
                if p.grad is not None:
                    layout = Layout.whole(self.layer_name(g, i), p.shape)
                    bind(rule, layout).step(p, p.grad, self.state_of(p, fresh))
        return loss

    def parameters(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from group["params"]

    def state_of(self, p: Tensor, fresh: State) -> State:
        """The state of a parameter. Missing entries are created with zeros in the parameter's shape and type."""
        state: State = self.state[p]
        for key in fresh.keys() - state.keys():
            state[key] = fresh[key].clone() if fresh[key].ndim == 0 else torch.zeros_like(p)
        return state

    def layer_name(self, g: int, i: int) -> str:
        names = self.param_groups[g].get("param_names")
        return names[i] if names else f"group {g}, parameter {i}"

    def check_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Check one gradient per parameter, before anything changes."""
        places = [
            (self.layer_name(g, i), p)
            for g, group in enumerate(self.param_groups)
            for i, p in enumerate(group["params"])
        ]
        for (place, p), gradient in zip(places, gradients, strict=True):
            if gradient is not None and not isinstance(gradient, Tensor):
                raise UserError(f"the gradient of {place} is a {type(gradient).__name__}, not a tensor")
            if gradient is not None and gradient.layout != torch.strided:
                raise UserError(
                    f"{type(self).__name__} does not support sparse gradients, such as that of {place}: create the "
                    "layer with sparse=False, or use a separate optimizer for it, such as torch.optim.SparseAdam"
                )
            if gradient is not None and gradient.shape != p.shape:
                raise UserError(
                    f"the gradient of {place} is {list(gradient.shape)}, but the parameter is {list(p.shape)}: pass "
                    "one gradient for each parameter, in the order of the optimizer's groups"
                )


def evaluate(closure: Closure | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
