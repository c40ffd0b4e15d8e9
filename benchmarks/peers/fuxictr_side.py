"""FuxiCTR: its embedding layer, blocks and `BaseModel.train_step`, which runs Adam over whole tables.

Its wheel has the parts but not the model zoo, so the two models are put together from the parts. Numbers
enter as they are, not through an embedding each as in its zoo's DNN: less work, and everyone's network.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.layers import FeatureEmbedding, InnerProductInteraction, MLP_Block
from fuxictr.pytorch.models import BaseModel
from numpy.typing import NDArray
from protocol import BOTTOM, DENSE_LR, FIELDS, HIDDEN, NUMERICS, TOP, WIDTH, Examples, Task, serve
from torch import Tensor

IDS, NUMBERS = [f"c{i}" for i in range(FIELDS)], [f"n{i}" for i in range(NUMERICS)]
PAIRS = (FIELDS + 1) * FIELDS // 2


class Model(BaseModel):
    def __init__(self, features: FeatureMap, model: str) -> None:
        super().__init__(features, model_root=tempfile.gettempdir(), metrics=["AUC"], verbose=0)
        dnn = model == "dnn"
        self.embedding_layer = FeatureEmbedding(features, WIDTH, not_required_feature_columns=NUMBERS)
        self.products = None if dnn else InnerProductInteraction(FIELDS + 1, output="inner_product")
        self.bottom = None if dnn else mlp(NUMERICS, BOTTOM[:-1], WIDTH, "ReLU")
        width = NUMERICS + FIELDS * WIDTH if dnn else PAIRS + WIDTH
        self.mlp = mlp(width, HIDDEN if dnn else TOP, 1, self.output_activation)
        self.compile("adam", "binary_crossentropy", DENSE_LR)
        self.reset_parameters()
        self._max_gradient_norm = 10.0  # what fit() sets before its first train_step

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x = self.get_inputs(inputs)
        numeric_BN = torch.stack([x[name] for name in NUMBERS], 1)
        if self.bottom is None:
            flat = torch.cat([numeric_BN, self.embedding_layer(x, flatten_emb=True)], 1)
        else:
            row_BD = self.bottom(numeric_BN)
            rows_BFD = torch.cat([row_BD.unsqueeze(1), self.embedding_layer(x)], 1)
            flat = torch.cat([row_BD, self.products(rows_BFD)], 1)
        return {"y_pred": self.mlp(flat)}


def mlp(width: int, hidden: tuple[int, ...], outputs: int, activation: Any) -> MLP_Block:
    return MLP_Block(width, list(hidden), output_dim=outputs, output_activation=activation)


def feature_map(sizes: tuple[int, ...]) -> FeatureMap:
    features = FeatureMap("bench", tempfile.gettempdir())
    for name in NUMBERS:
        features.features[name] = {"type": "numeric", "source": ""}
    for name, size in zip(IDS, sizes, strict=True):
        features.features[name] = {"type": "categorical", "source": "", "vocab_size": size}
    features.labels, features.default_emb_dim = ["label"], WIDTH
    features.num_fields = features.get_num_fields()
    features.set_column_index()
    return features


class FuxiCTR:
    def __init__(self, task: Task) -> None:
        torch.manual_seed(1)
        self.model = Model(feature_map(task.sizes), task.model)
        self.batches, self.held_out = columns(task.train), columns(task.valid)

    def train(self, numbers: list[int]) -> float:
        self.model.train()
        return sum(self.model.train_step(self.batches[i]).item() for i in numbers) / len(numbers)

    @torch.no_grad()
    def predict(self, number: int) -> NDArray[np.float32]:
        self.model.eval()
        return self.model(self.held_out[number])["y_pred"].numpy()


def columns(examples: Examples) -> list[dict[str, Tensor]]:
    """Each batch as its data loader gives it: a tensor [B] per column."""
    return [
        {
            **{name: torch.from_numpy(ids_BF[:, i].copy()) for i, name in enumerate(IDS)},
            **{name: torch.from_numpy(numeric_BN[:, i].copy()) for i, name in enumerate(NUMBERS)},
            "label": torch.from_numpy(labels_B),
        }
        for ids_BF, numeric_BN, labels_B in zip(
            examples.ids_SBF, examples.numeric_SBN, examples.labels_SB, strict=True
        )
    ]


if __name__ == "__main__":
    serve(FuxiCTR)
