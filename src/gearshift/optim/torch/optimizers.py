"""LARS, LAMB and the variance-reduced optimizers for any PyTorch model, as `torch.optim.Optimizer`s.

LARS and LAMB are used like any other optimizer. A VR optimizer needs the gradients of at least `min_gradients` devices
or micro-batches per step, either directly or collected:

    optimizer.step(gradients=[[g of each parameter] of each device], weights=[examples of each device])
    with optimizer.micro_batches() as collect: ...        # see micro_batches.py

Without them a step uses the rule without VR. Such steps are counted (`plain_steps`), and the first one gives a warning.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from torch.optim.optimizer import ParamsT

from gearshift.optim.first_order import SGD, Adam, DenseOptimizer, Momentum
from gearshift.optim.large_batch import DenseLAMB, DenseLARS
from gearshift.optim.rule_settings import Control
from gearshift.optim.torch.flat_rule import RuleOptimizer
from gearshift.optim.torch.variance_reduced import VarianceReducedOptimizer


class LARS(RuleOptimizer):
    """`lr` is multiplied by `eta |w| / (|g| + weight_decay |w|)` in tensors of two or more dimensions."""

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        eta: float = 0.001,
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay, eta=eta)

    def rule(self, group: dict[str, Any]) -> DenseOptimizer:
        return _lars(group)


class LAMB(RuleOptimizer):
    """Adam whose step has the length `lr |w|` in tensors of two or more dimensions."""

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def rule(self, group: dict[str, Any]) -> DenseOptimizer:
        return _lamb(group)


class VRSGD(VarianceReducedOptimizer):
    """`momentum` is for schedulers that change it, such as OneCycleLR. VRMomentum always has momentum."""

    optional_state = VarianceReducedOptimizer.optional_state | {"velocity"}
    added_settings = MappingProxyType({"momentum": 0.0})

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.1,
        weight_decay: float = 0.0,
        *,
        momentum: float = 0.0,
        floor: float = 0.1,
        min_gradients: float = 8.0,
        control: Control = "none",
    ) -> None:
        settings = {"floor": floor, "min_gradients": min_gradients, "control": control}
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay, **settings)

    def base(self, group: dict[str, Any]) -> DenseOptimizer:
        if group["momentum"]:
            return Momentum(float(group["lr"]), group["momentum"], False, group["weight_decay"])
        return SGD(float(group["lr"]), group["weight_decay"])


class VRMomentum(VarianceReducedOptimizer):
    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        floor: float = 0.1,
        min_gradients: float = 8.0,
        control: Control = "none",
    ) -> None:
        settings = {"floor": floor, "min_gradients": min_gradients, "control": control}
        super().__init__(
            params, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov, **settings
        )

    def base(self, group: dict[str, Any]) -> DenseOptimizer:
        return Momentum(float(group["lr"]), group["momentum"], group["nesterov"], group["weight_decay"])


class VRAdam(VarianceReducedOptimizer):
    """`weight_decay` is L2, as in torch.optim.Adam; it is never scaled by r."""

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        beta3: float = 0.9,
        floor: float = 0.1,
        min_gradients: float = 8.0,
        control: Control = "none",
    ) -> None:
        settings = {"beta3": beta3, "floor": floor, "min_gradients": min_gradients, "control": control}
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, **settings)

    def base(self, group: dict[str, Any]) -> DenseOptimizer:
        beta1, beta2 = group["betas"]
        return Adam(float(group["lr"]), beta1, beta2, group["eps"], group["weight_decay"])


class VRLARS(VarianceReducedOptimizer):
    """LARS applied to r * g. Only the relative r within a tensor matters, because the trust ratio cancels its scale."""

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        eta: float = 0.001,
        *,
        floor: float = 0.1,
        min_gradients: float = 8.0,
        control: Control = "none",
    ) -> None:
        settings = {"floor": floor, "min_gradients": min_gradients, "control": control}
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay, eta=eta, **settings)

    def base(self, group: dict[str, Any]) -> DenseOptimizer:
        return _lars(group)


class VRLAMB(VarianceReducedOptimizer):
    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        beta3: float = 0.9,
        floor: float = 0.1,
        min_gradients: float = 8.0,
        control: Control = "none",
    ) -> None:
        settings = {"beta3": beta3, "floor": floor, "min_gradients": min_gradients, "control": control}
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, **settings)

    def base(self, group: dict[str, Any]) -> DenseOptimizer:
        return _lamb(group)


def _lars(group: dict[str, Any]) -> DenseLARS:
    return DenseLARS(float(group["lr"]), group["momentum"], group["weight_decay"], group["eta"])


def _lamb(group: dict[str, Any]) -> DenseLAMB:
    beta1, beta2 = group["betas"]
    return DenseLAMB(float(group["lr"]), beta1, beta2, group["eps"], group["weight_decay"])
