"""Models: plain `nn.Module`s from `Inputs` to logits, [B] or [B, T] for T tasks. They know no store.

inputs.py   what a model sees       layers.py    MLP, linear term, pairwise term
deep.py     DNN, Wide & Deep, DeepFM
"""

from gearshift.models.deep import DNN, DeepFM, WideDeep
from gearshift.models.inputs import (
    Fields,
    Inputs,
    Needs,
    SequenceRows,
    input_fields,
    pad_rows,
    pool_rows,
    row_width,
)
from gearshift.models.layers import MLP, seed_dropout

__all__ = [
    "DNN",
    "MLP",
    "DeepFM",
    "Fields",
    "Inputs",
    "Needs",
    "SequenceRows",
    "WideDeep",
    "input_fields",
    "pad_rows",
    "pool_rows",
    "row_width",
    "seed_dropout",
]
