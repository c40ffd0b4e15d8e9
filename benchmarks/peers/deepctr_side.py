"""DeepCTR-Torch: its models under its optimizer, which runs Adam over whole tables.

Its only training loop is inside `fit`. A step here is the body of that loop without the data loader and the
progress metrics, and without the L2 term it has by default: less work than its users get. DNN is its WDL
without wide columns; it has no DLRM, and PNN (products of all pairs, no bottom MLP) is the nearest.
Ids travel as float32, as its inputs do.
"""

from __future__ import annotations

import numpy as np
import torch
from deepctr_torch.inputs import DenseFeat, SparseFeat
from deepctr_torch.models import PNN, WDL
from numpy.typing import NDArray
from protocol import HIDDEN, NUMERICS, TOP, WIDTH, Examples, Task, serve
from torch import Tensor


class DeepCTR:
    def __init__(self, task: Task) -> None:
        columns = [SparseFeat(f"c{i}", size, embedding_dim=WIDTH) for i, size in enumerate(task.sizes)]
        columns += [DenseFeat(f"n{i}") for i in range(NUMERICS)]
        if task.model == "dnn":
            self.model = WDL([], columns, dnn_hidden_units=HIDDEN, l2_reg_embedding=0, l2_reg_linear=0)
        else:
            self.model = PNN(columns, dnn_hidden_units=TOP, l2_reg_embedding=0)
        self.model.compile("adam", "binary_crossentropy")
        self.batches, self.held_out = rows(task.train), rows(task.valid)

    def train(self, numbers: list[int]) -> float:
        model = self.model.train()
        total = 0.0
        for number in numbers:
            x_BC, labels_B = self.batches[number]
            probabilities_B = model(x_BC).squeeze(-1)
            model.optim.zero_grad()
            loss = model.loss_func(probabilities_B, labels_B, reduction="sum")
            (loss + model.get_regularization_loss() + model.aux_loss).backward()
            model.optim.step()
            total += loss.item() / len(labels_B)
        return total / len(numbers)

    @torch.no_grad()
    def predict(self, number: int) -> NDArray[np.float32]:
        return self.model.eval()(self.held_out[number][0]).numpy()


def rows(examples: Examples) -> list[tuple[Tensor, Tensor]]:
    """Each batch as `fit` makes it: one float32 matrix of all columns."""
    return [
        (
            torch.from_numpy(np.concatenate([ids_BF, numeric_BN], 1, dtype=np.float32)),
            torch.from_numpy(labels_B),
        )
        for ids_BF, numeric_BN, labels_B in zip(
            examples.ids_SBF, examples.numeric_SBN, examples.labels_SB, strict=True
        )
    ]


if __name__ == "__main__":
    serve(DeepCTR)
