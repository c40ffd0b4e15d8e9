"""The settings of each dense rule, by its name in a config: plain values, so that a config can be read without torch.

The rules themselves (`first_order`, `large_batch`, `variance_reduced`) are dataclasses derived from these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gearshift.settings.declaration import Declaration, Meaning, declarations, setting
from gearshift.settings.units import Number, Share

Control = Literal["none", "norm_matched", "layer_mean", "permuted"]

LEARNING_RATE = Meaning("Learning rate.", above=0)
L2 = Meaning("L2 penalty on the parameters that a step touches.", at_least=0)
MOMENTUM = Meaning("Share of the previous update that is kept.", at_least=0, below=1)
BETA1 = Meaning("Decay rate of the first moment.", at_least=0, below=1)
BETA2 = Meaning("Decay rate of the second moment.", at_least=0, below=1)
EPS = Meaning("Added to the denominator.", above=0)
INITIAL = Meaning("Initial value of the accumulator.", at_least=0)
WEIGHT_DECAY = Meaning("Weight decay.", at_least=0)


@dataclass(frozen=True)
class SGDSettings:
    name: ClassVar[str] = "sgd"
    lr: Number = setting(0.1, LEARNING_RATE)
    l2: Number = setting(0.0, L2)


@dataclass(frozen=True)
class MomentumSettings:
    name: ClassVar[str] = "momentum"
    lr: Number = setting(0.1, LEARNING_RATE)
    momentum: Number = setting(0.9, MOMENTUM)
    nesterov: bool = setting(False, "Use Nesterov momentum.")
    l2: Number = setting(0.0, L2)


@dataclass(frozen=True)
class AdagradSettings:
    name: ClassVar[str] = "adagrad"
    lr: Number = setting(0.01, LEARNING_RATE)
    eps: Number = setting(1e-10, EPS)
    initial: Number = setting(0.0, INITIAL)
    l2: Number = setting(0.0, L2)


@dataclass(frozen=True)
class AdamSettings:
    name: ClassVar[str] = "adam"
    lr: Number = setting(1e-3, LEARNING_RATE)
    beta1: Number = setting(0.9, BETA1)
    beta2: Number = setting(0.999, BETA2)
    eps: Number = setting(1e-8, EPS)
    l2: Number = setting(0.0, L2)


@dataclass(frozen=True)
class AdamWSettings:
    name: ClassVar[str] = "adamw"
    lr: Number = setting(1e-3, LEARNING_RATE)
    beta1: Number = setting(0.9, BETA1)
    beta2: Number = setting(0.999, BETA2)
    eps: Number = setting(1e-8, EPS)
    weight_decay: Number = setting(0.01, WEIGHT_DECAY)


@dataclass(frozen=True)
class LARSSettings:
    name: ClassVar[str] = "lars"
    lr: Number = setting(0.1, LEARNING_RATE)
    momentum: Number = setting(0.9, MOMENTUM)
    weight_decay: Number = setting(0.0, WEIGHT_DECAY)
    eta: Number = setting(0.001, "Norm of a layer's step relative to the norm of its weights.", above=0)


@dataclass(frozen=True)
class LAMBSettings:
    name: ClassVar[str] = "lamb"
    lr: Number = setting(1e-3, LEARNING_RATE)
    beta1: Number = setting(0.9, BETA1)
    beta2: Number = setting(0.999, BETA2)
    eps: Number = setting(1e-6, EPS)
    weight_decay: Number = setting(0.0, WEIGHT_DECAY)


@dataclass(frozen=True)
class TrustSettings:
    """The trust in a gradient (r), for all variance-reduced rules."""

    floor: Share = setting(
        0.1, "Lower bound of the trust r: the smallest share of a step that is applied."
    )  # 1: r is 1, and VR-x is x
    min_gradients: Number = setting(
        8.0, "Smallest number of gradients per step; with fewer, variance is not reduced.", at_least=2
    )
    control: Control = setting("none", "For experiments: what replaces the trust.")


@dataclass(frozen=True)
class SmoothedTrust:
    """Settings of the variance-reduced rules that smooth the trust over time."""

    beta3: Number = setting(0.9, "Decay rate of the smoothed trust.", at_least=0, below=1)


# The settings of each rule.
DENSE_RULES: dict[str, tuple[type[Any], ...]] = {
    "sgd": (SGDSettings,),
    "momentum": (MomentumSettings,),
    "adagrad": (AdagradSettings,),
    "adam": (AdamSettings,),
    "adamw": (AdamWSettings,),
    "lars": (LARSSettings,),
    "lamb": (LAMBSettings,),
    "vr_sgd": (SGDSettings, TrustSettings),
    "vr_momentum": (MomentumSettings, TrustSettings),
    "vr_adam": (AdamSettings, TrustSettings, SmoothedTrust),
    "vr_lars": (LARSSettings, TrustSettings),
    "vr_lamb": (LAMBSettings, TrustSettings, SmoothedTrust),
}


def rule_settings(name: str) -> dict[str, Declaration]:
    """The settings of the rule of this name."""
    return {key: one for kind in DENSE_RULES[name] for key, one in declarations(kind).items()}
