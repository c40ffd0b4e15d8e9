"""The oracle: one thread, float64, a dict of rows and plain autograd. Slow and obvious; others are compared with it.

Rows are born with the values the store gives them (`birth`), move by a rule on the mean gradient of the batch, and
nothing else happens. `from_learner` takes over where a learner stands, its optimizer state included.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gearshift.data.batch import Batch
from gearshift.data.schema import Schema
from gearshift.models.inputs import Fields, Inputs
from gearshift.training.learner import Learner

WARM = (
    0.01  # Adagrad's first accumulator: from 0 its first step is the gradient's sign, which rounding decides
)
State = dict[str, Tensor]


@dataclass(frozen=True)
class Rule:
    """sgd, adagrad or adam as in their papers: the value after a step; `state` is moved in place."""

    kind: str
    lr: float
    eps: float = 1e-8

    def move(self, value: Tensor, grad: Tensor, state: State) -> Tensor:
        if self.kind == "sgd":
            return value - self.lr * grad
        if self.kind == "adagrad":
            state["sum"] = state.get("sum", torch.full_like(grad, WARM)) + grad**2
            return value - self.lr * grad / (state["sum"].sqrt() + self.eps)
        nothing = torch.zeros_like(grad)
        state["step"] = state.get("step", torch.zeros(())) + 1
        state["mean"] = 0.9 * state.get("mean", nothing) + 0.1 * grad
        state["square"] = 0.999 * state.get("square", nothing) + 0.001 * grad**2
        mean = state["mean"] / (1 - 0.9 ** state["step"])
        square = state["square"] / (1 - 0.999 ** state["step"])
        return value - self.lr * mean / (square.sqrt() + self.eps)


class Oracle:
    def __init__(
        self,
        model: nn.Module,
        schema: Schema,
        birth: Callable[[int], np.ndarray],
        dense: Rule,
        row: Rule,
    ) -> None:
        self.model = copy.deepcopy(model).double()
        self.schema, self.birth, self.dense, self.row = schema, birth, dense, row
        self.dense_state: list[State] = [{} for _ in self.model.parameters()]
        self.rows: dict[int, Tensor] = {}
        self.row_state: dict[int, State] = {}

    @classmethod
    def from_learner(cls, learner: Learner, dense: Rule, row: Rule) -> Oracle:
        """Where this learner stands now. Its rows are one store and one part, if their rule keeps a state."""
        (store,) = learner.server.stores
        oracle = cls(
            learner.model, learner.schema, lambda i: store.peek(np.array([i], np.int64))[0], dense, row
        )
        for name, flat in learner.server.optimizer_state.items():
            views = (
                learner.worker.dense.views(flat).values() if flat.dim() else [flat] * len(oracle.dense_state)
            )
            for state, view in zip(oracle.dense_state, views, strict=True):
                state[name] = view.detach().clone().double()
        for block in store.blocks():
            width = block.weights_UW.shape[1]
            for i, weights, kept, updates in zip(
                block.ids_U.tolist(), block.weights_UW, block.state_US, block.updates_U, strict=True
            ):
                oracle.rows[i] = torch.from_numpy(weights.astype(np.float64))
                parts = torch.from_numpy(kept.astype(np.float64)).split(width)
                names = {"sgd": (), "adagrad": ("sum",), "adam": ("mean", "square")}[row.kind]
                oracle.row_state[i] = dict(zip(names, parts, strict=True))
                oracle.row_state[i]["step"] = torch.tensor(float(updates), dtype=torch.float64)
        return oracle

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
            for parameter, grad, state in zip(dense, grads, self.dense_state, strict=False):
                parameter.copy_(self.dense.move(parameter, grad, state))
        for i, grad in zip(leaves, grads[len(dense) :], strict=True):
            self.rows[i] = self.row.move(self.rows[i], grad, self.row_state.setdefault(i, {}))
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
