"""The dense computation alone, below which no training step can go.

The same network, loss and dense optimizer as Gearshift's, on rows that are simply there; the gradients of the
rows are computed and thrown away.
"""

from __future__ import annotations

import numpy as np
import torch
from networks import inputs, network, tensors
from numpy.typing import NDArray
from protocol import DENSE_LR, FIELDS, ROW_INIT, WIDTH, Task, serve

from gearshift.models.losses import binary_cross_entropy
from gearshift.optim.first_order import Adam
from gearshift.parameters.dense import DenseParameters


class DenseAlone:
    def __init__(self, task: Task) -> None:
        self.network = network(task.model)
        self.dense = DenseParameters(self.network)
        self.optimizer = Adam(lr=DENSE_LR)
        self.state = self.optimizer.init(len(self.dense))
        self.batches = tensors(task.train, task.first_rows_F)
        shape = (len(self.batches[0][2]), FIELDS, WIDTH)
        self.rows = [torch.empty(shape).uniform_(-ROW_INIT, ROW_INIT).requires_grad_() for _ in range(10)]

    def train(self, numbers: list[int]) -> float:
        total = 0.0
        for number in numbers:
            _, numeric_BN, labels_B = self.batches[number]
            rows_BFD = self.rows[number % len(self.rows)]
            rows_BFD.grad = None
            self.dense.zero_grad()
            logits_BT = self.network(inputs(numeric_BN, rows_BFD)).unsqueeze(1)
            loss = binary_cross_entropy(logits_BT, labels_B.unsqueeze(1)).mean()
            loss.backward()
            self.optimizer.step(self.dense.flat, self.dense.grad, self.state)
            total += loss.item()
        return total / len(numbers)

    def predict(self, number: int) -> NDArray[np.float32]:
        raise NotImplementedError("there are no rows to predict from")


if __name__ == "__main__":
    serve(DenseAlone)
