"""The two networks of bench_step, from Gearshift's models, for the sides that run in Gearshift's own venv."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from protocol import BOTTOM, FIELDS, HIDDEN, NUMERICS, TOP, WIDTH, Examples
from torch import Tensor, nn

from gearshift.data.schema import Categorical, Numeric, Schema
from gearshift.models import DLRM, DNN, Fields, Inputs

NAMES = tuple(f"c{i}" for i in range(FIELDS))
SCHEMA = Schema((*(Numeric(f"n{i}") for i in range(NUMERICS)), *(Categorical(name) for name in NAMES)))


def network(model: str) -> nn.Module:
    torch.manual_seed(1)
    if model == "dnn":
        return DNN(SCHEMA, dim=WIDTH, hidden=HIDDEN)
    return DLRM(SCHEMA, dim=WIDTH, bottom=BOTTOM[:-1], hidden=TOP)


def inputs(numeric_BN: Tensor, rows_BFD: Tensor) -> Inputs:
    return Inputs(numeric_BN, Fields(NAMES, rows_BFD))


def tensors(examples: Examples, first_rows_F: NDArray[np.int64]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Each batch as ids into one table [B, F], numbers [B, N] and labels [B]."""
    arrays = (examples.ids_SBF + first_rows_F, examples.numeric_SBN, examples.labels_SB)
    return list(zip(*(torch.from_numpy(array).unbind() for array in arrays), strict=True))
