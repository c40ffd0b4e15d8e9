"""Models: plain `nn.Module`s that map `Inputs` to logits, [B] or [B, T] for T tasks. They do not know the store.

inputs.py   what a model sees           layers.py   MLP, linear term, pairwise term, dropout
shallow.py  LR, FM                      deep.py     DNN, Wide & Deep, DeepFM
cross.py    DCN, DCN-V2                 dlrm.py     DLRM          din.py  DIN
checks.py   what each needs of a schema  model.py   records how it was created
first_weights.py   the weights that a run begins with
settings.py   the settings of each model    registry.py   models by name

Names are imported when first used: a config reads settings.py, without importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gearshift.models.cross import DCN as DCN
    from gearshift.models.cross import DCNv2 as DCNv2
    from gearshift.models.deep import DNN as DNN
    from gearshift.models.deep import DeepFM as DeepFM
    from gearshift.models.deep import WideDeep as WideDeep
    from gearshift.models.din import DIN as DIN
    from gearshift.models.dlrm import DLRM as DLRM
    from gearshift.models.inputs import Fields as Fields
    from gearshift.models.inputs import Inputs as Inputs
    from gearshift.models.inputs import Needs as Needs
    from gearshift.models.inputs import SequenceRows as SequenceRows
    from gearshift.models.inputs import input_fields as input_fields
    from gearshift.models.inputs import pad_rows as pad_rows
    from gearshift.models.inputs import pool_rows as pool_rows
    from gearshift.models.inputs import row_width as row_width
    from gearshift.models.layers import MLP as MLP
    from gearshift.models.layers import seed_dropout as seed_dropout
    from gearshift.models.registry import MODELS as MODELS
    from gearshift.models.registry import build as build
    from gearshift.models.registry import parameters as parameters
    from gearshift.models.registry import recipe as recipe
    from gearshift.models.settings import AttentionSettings as AttentionSettings
    from gearshift.models.shallow import FM as FM
    from gearshift.models.shallow import LR as LR

_HOMES = {
    "cross": "DCN DCNv2",
    "deep": "DNN DeepFM WideDeep",
    "din": "DIN",
    "dlrm": "DLRM",
    "inputs": "Fields Inputs Needs SequenceRows input_fields pad_rows pool_rows row_width",
    "layers": "MLP seed_dropout",
    "registry": "MODELS build parameters recipe",
    "settings": "AttentionSettings",
    "shallow": "FM LR",
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = [*_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'gearshift.models' has no attribute {name!r}")
    return getattr(import_module(f"gearshift.models.{_MODULE_OF[name]}"), name)
