"""Plain PyTorch with sparse gradients: one nn.Embedding(sparse=True) under Adagrad, Adam on the rest.

All fields lie in one table: one lookup and one sparse update instead of 26. The network is Gearshift's own,
so that only the rows differ.
"""

from __future__ import annotations

import numpy as np
import torch
from networks import inputs, network, tensors
from numpy.typing import NDArray
from protocol import DENSE_LR, ROW_INIT, ROW_LR, WIDTH, Task, serve
from torch import nn


class PyTorchSparse:
    def __init__(self, task: Task) -> None:
        self.network = network(task.model)
        self.table = nn.Embedding(sum(task.sizes), WIDTH, sparse=True)
        nn.init.uniform_(self.table.weight, -ROW_INIT, ROW_INIT)
        self.dense = torch.optim.Adam(self.network.parameters(), lr=DENSE_LR, fused=True)
        self.rows = torch.optim.Adagrad(self.table.parameters(), lr=ROW_LR)
        self.batches = tensors(task.train, task.first_rows_F)
        self.held_out = tensors(task.valid, task.first_rows_F)

    def train(self, numbers: list[int]) -> float:
        total = 0.0
        for number in numbers:
            ids_BF, numeric_BN, labels_B = self.batches[number]
            self.dense.zero_grad()
            self.rows.zero_grad()
            logits_B = self.network(inputs(numeric_BN, self.table(ids_BF)))
            loss = nn.functional.binary_cross_entropy_with_logits(logits_B, labels_B)
            loss.backward()
            self.dense.step()
            self.rows.step()
            total += loss.item()
        return total / len(numbers)

    @torch.no_grad()
    def predict(self, number: int) -> NDArray[np.float32]:
        ids_BF, numeric_BN, _ = self.held_out[number]
        scores_B: NDArray[np.float32] = self.network(inputs(numeric_BN, self.table(ids_BF))).numpy()
        return scores_B


if __name__ == "__main__":
    serve(PyTorchSparse)
