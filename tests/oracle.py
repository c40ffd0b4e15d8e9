"""The oracle: one thread, float64, a dict of rows and plain autograd. Slow and obvious; others are compared with it.

Rows are born with the values the store gives them (`birth`), move by SGD or Adagrad on the mean gradient of the
batch, and nothing else happens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from gearshift.data.batch import Batch
from gearshift.data.schema import Schema
from gearshift.models.inputs import Fields, Inputs

WARM = (
    0.01  # Adagrad's first accumulator: from 0 its first step is the gradient's sign, which rounding decides
)


class Oracle:
    def __init__(
        self,
        model: nn.Module,
        schema: Schema,
        birth: Callable[[int], np.ndarray],
        lr: float,
        row_lr: float,
        rule: str,
    ) -> None:
        self.model = copy.deepcopy(model).double()
        self.schema, self.birth, self.lr, self.row_lr, self.rule = schema, birth, lr, row_lr, rule
        self.rows: dict[int, Tensor] = {}
        self.squares: dict[int, Tensor] = {}

    def step(self, batch: Batch) -> float:
        for i in np.unique(batch.ids_BF).tolist():
            if i not in self.rows:
                self.rows[i] = torch.from_numpy(self.birth(i).astype(np.float64))
        leaves = {i: self.rows[i].clone().requires_grad_() for i in np.unique(batch.ids_BF).tolist()}
        logits = self.model(self._inputs(batch, leaves))
        labels = torch.from_numpy(batch.labels_BT[:, 0]).double()
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
        dense = list(self.model.parameters())
        grads = torch.autograd.grad(loss, [*dense, *leaves.values()], allow_unused=True)
        with torch.no_grad():
            for parameter, grad in zip(dense, grads, strict=False):
                parameter.sub_(self.lr * grad)
        for i, grad in zip(leaves, grads[len(dense) :], strict=True):
            self._move(i, grad)
        return float(loss.detach())

    def _inputs(self, batch: Batch, leaves: dict[int, Tensor]) -> Inputs:
        rows_BFW = torch.stack(
            [torch.stack([leaves[i] for i in example]) for example in batch.ids_BF.tolist()]
        )
        names = tuple(f.name for f in self.schema.fields)
        linear = getattr(self.model, "linear", False)
        embedding = rows_BFW[..., : rows_BFW.shape[2] - linear]
        fields = Fields(names, embedding) if embedding.shape[2] else Fields((), [])
        numeric = torch.from_numpy(batch.numeric_BN).double()
        return Inputs(numeric, fields, {}, rows_BFW[..., -1] if linear else None)

    def _move(self, i: int, grad: Tensor) -> None:
        if self.rule == "sgd":
            self.rows[i] = self.rows[i] - self.row_lr * grad
            return
        self.squares[i] = self.squares.get(i, torch.full_like(grad, WARM)) + grad**2
        self.rows[i] = self.rows[i] - self.row_lr * grad / (self.squares[i].sqrt() + 1e-8)
