"""TorchRec: an EmbeddingBagCollection on its fused path, FBGEMM's CPU kernel with Adagrad in the backward.

Sharded over one process, as its documentation trains. DLRM is its own class, DNN an MLP on the pooled rows.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from protocol import (
    BATCH,
    BOTTOM,
    DENSE_LR,
    FIELDS,
    HIDDEN,
    NUMERICS,
    ROW_INIT,
    ROW_LR,
    TOP,
    WIDTH,
    Examples,
    Task,
    serve,
)
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.models.dlrm import DLRM
from torchrec.modules.mlp import MLP
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

KEYS = [f"c{i}" for i in range(FIELDS)]


class DNN(nn.Module):
    def __init__(self, tables: EmbeddingBagCollection) -> None:
        super().__init__()
        self.tables = tables
        self.mlp = nn.Sequential(
            MLP(NUMERICS + FIELDS * WIDTH, list(HIDDEN), activation="relu"), nn.Linear(HIDDEN[-1], 1)
        )

    def forward(self, numeric_BN: Tensor, ids: KeyedJaggedTensor) -> Tensor:
        return self.mlp(torch.cat([numeric_BN, self.tables(ids).values()], 1))


class TorchRec:
    def __init__(self, task: Task) -> None:
        torch.manual_seed(1)
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
        model = self._model(task)
        self.model = DistributedModelParallel(model, device=torch.device("cpu"))
        dense = [p for name, p in self.model.named_parameters() if "embedding_bags" not in name]
        self.dense = torch.optim.Adam(dense, lr=DENSE_LR, fused=True)
        self.batches, self.held_out = jagged(task.train), jagged(task.valid)

    def _model(self, task: Task) -> nn.Module:
        tables = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=f"table_{key}",
                    embedding_dim=WIDTH,
                    num_embeddings=size,
                    feature_names=[key],
                    weight_init_min=-ROW_INIT,
                    weight_init_max=ROW_INIT,
                )
                for key, size in zip(KEYS, task.sizes, strict=True)
            ],
            device=torch.device("meta"),
        )
        apply_optimizer_in_backward(torch.optim.Adagrad, tables.parameters(), {"lr": ROW_LR})
        return DNN(tables) if task.model == "dnn" else DLRM(tables, NUMERICS, list(BOTTOM), [*TOP, 1])

    def train(self, numbers: list[int]) -> float:
        total = 0.0
        for number in numbers:
            ids, numeric_BN, labels_B = self.batches[number]
            self.dense.zero_grad()
            logits_B = self.model(numeric_BN, ids).squeeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(logits_B, labels_B)
            loss.backward()
            self.dense.step()
            total += loss.item()
        return total / len(numbers)

    @torch.no_grad()
    def predict(self, number: int) -> NDArray[np.float32]:
        ids, numeric_BN, _ = self.held_out[number]
        return self.model(numeric_BN, ids).numpy()


def jagged(examples: Examples) -> list[tuple[KeyedJaggedTensor, Tensor, Tensor]]:
    ones = torch.ones(FIELDS * BATCH, dtype=torch.int32)
    return [
        (
            KeyedJaggedTensor(KEYS, torch.from_numpy(ids_BF.T.reshape(-1)), lengths=ones, stride=len(ids_BF)),
            torch.from_numpy(examples.numeric_SBN[i]),
            torch.from_numpy(examples.labels_SB[i]),
        )
        for i, ids_BF in enumerate(examples.ids_SBF)
    ]


if __name__ == "__main__":
    serve(TorchRec)
