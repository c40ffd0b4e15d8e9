"""Optimizers of the dense parameters, by name. Optimizers of embedding rows are part of the row store.

`SGD` ... `AdamW`, `DenseLARS`, `DenseLAMB` and `VarianceReduced` step Gearshift's flat buffer. `LARS`, `LAMB`, `VRSGD`,
`VRMomentum`, `VRAdam`, `VRLARS` and `VRLAMB` are `torch.optim.Optimizer`s for any PyTorch model, with the same rules.
Names are imported when first used: `rule_settings` and `schedule`, which a config reads, do not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gearshift.optim.first_order import SGD as SGD
    from gearshift.optim.first_order import Adagrad as Adagrad
    from gearshift.optim.first_order import Adam as Adam
    from gearshift.optim.first_order import AdamW as AdamW
    from gearshift.optim.first_order import DenseOptimizer as DenseOptimizer
    from gearshift.optim.first_order import Momentum as Momentum
    from gearshift.optim.first_order import State as State
    from gearshift.optim.first_order import clip_norm as clip_norm
    from gearshift.optim.gsnr import GSNR as GSNR
    from gearshift.optim.gsnr import LayerStatistics as LayerStatistics
    from gearshift.optim.gsnr import Ratios as Ratios
    from gearshift.optim.large_batch import DenseLAMB as DenseLAMB
    from gearshift.optim.large_batch import DenseLARS as DenseLARS
    from gearshift.optim.layout import Layout as Layout
    from gearshift.optim.layout import bind as bind
    from gearshift.optim.registry import LAYER_WISE as LAYER_WISE
    from gearshift.optim.registry import OPTIMIZERS as OPTIMIZERS
    from gearshift.optim.registry import build as build
    from gearshift.optim.schedule import Schedule as Schedule
    from gearshift.optim.spread import SharedSums as SharedSums
    from gearshift.optim.spread import ShiftedSums as ShiftedSums
    from gearshift.optim.spread import Spread as Spread
    from gearshift.optim.spread import spread_of as spread_of
    from gearshift.optim.torch.optimizers import LAMB as LAMB
    from gearshift.optim.torch.optimizers import LARS as LARS
    from gearshift.optim.torch.optimizers import VRLAMB as VRLAMB
    from gearshift.optim.torch.optimizers import VRLARS as VRLARS
    from gearshift.optim.torch.optimizers import VRSGD as VRSGD
    from gearshift.optim.torch.optimizers import VRAdam as VRAdam
    from gearshift.optim.torch.optimizers import VRMomentum as VRMomentum
    from gearshift.optim.variance_reduced import VARIANCE_REDUCED as VARIANCE_REDUCED
    from gearshift.optim.variance_reduced import VarianceReduced as VarianceReduced

_HOMES = {
    "first_order": "SGD Adagrad Adam AdamW DenseOptimizer Momentum State clip_norm",
    "gsnr": "GSNR LayerStatistics Ratios",
    "large_batch": "DenseLAMB DenseLARS",
    "layout": "Layout bind",
    "registry": "LAYER_WISE OPTIMIZERS build",
    "schedule": "Schedule",
    "spread": "SharedSums ShiftedSums Spread spread_of",
    "torch.optimizers": "LAMB LARS VRLAMB VRLARS VRSGD VRAdam VRMomentum",
    "variance_reduced": "VARIANCE_REDUCED VarianceReduced",
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = [*_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'gearshift.optim' has no attribute {name!r}")
    return getattr(import_module(f"gearshift.optim.{_MODULE_OF[name]}"), name)
