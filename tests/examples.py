"""Small data that tests share: schemas and batches drawn from a seed."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from gearshift.data.batch import Batch, Ragged
from gearshift.data.schema import Bag, Categorical, Numeric, Schema, Sequence
from gearshift.models.inputs import Inputs

PLAIN = Schema((Numeric("price"), Categorical("user"), Categorical("ad"), Categorical("site")))
RAGGED = Schema(
    (
        Numeric("price"),
        Categorical("item"),
        Bag("tags"),
        Categorical("country", dim=4),
        Sequence("history", max_len=3, share_embedding="item"),
    )
)


def make_batch(schema: Schema, size: int, seed: int = 0, vocabulary: int = 50, first: int = 0) -> Batch:
    rng = np.random.default_rng([seed, first])
    ragged = []
    for field in schema.ragged_fields:
        lengths = rng.integers(0, min(4, field.max_len + 1), size)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        ragged.append(Ragged(rng.integers(0, vocabulary, offsets[-1]).astype(np.int64), offsets))
    ids_BF = rng.integers(0, vocabulary, (size, len(schema.single_fields))) + 1000 * np.arange(
        len(schema.single_fields)
    )
    numeric_BN = rng.normal(size=(size, schema.numeric_width)).astype(np.float32)
    signal = (ids_BF[:, 0] % 7 - 3 if ids_BF.shape[1] else 0) + (
        numeric_BN[:, 0] if numeric_BN.shape[1] else 0
    )
    labels_BT = (rng.random((size, 1)) < 1 / (1 + np.exp(-np.asarray(signal)[:, None]))).astype(np.float32)
    return Batch(first, labels_BT, numeric_BN, ids_BF.astype(np.int64), tuple(ragged))


class Steep(nn.Module):
    """Its rows are worth nothing, and have gradients as large as asked."""

    dim = 4

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope, self.bias = slope, nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        zeros_B = (x.fields.tensor - x.fields.tensor.detach()).sum((1, 2))
        return self.slope * zeros_B + self.bias
