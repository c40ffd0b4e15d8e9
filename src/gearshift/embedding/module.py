"""The row store as an `nn.Module`, for a custom training loop.

    emb = gs.Embeddings(schema, dim=16, optimizer=gs.RowAdagrad(lr=0.05))
    for batch in gs.read("clicks.csv", schema).batches(4096):
        loss = criterion(net(emb(batch)), batch)
        loss.backward()                  # row gradients reach the store here
        opt.step(); opt.zero_grad()      # `net` has its torch optimizer

Rows are created when they are first seen in training and updated during `backward`, with the gradient of the loss as
the loop computed it (a mean stays a mean). In `eval()` mode no rows are created. It does not depend on trainers or
files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gearshift import _core
from gearshift.data.batch import Batch, Floats
from gearshift.data.schema import Schema
from gearshift.embedding.lookup import Leaves, assemble, field_groups, find
from gearshift.embedding.store import RowAdagrad, RowBlock, RowOptimizer, RowPart, Tables
from gearshift.embedding.table_store import MemoryStore
from gearshift.models.inputs import Inputs, Needs


class Embeddings(nn.Module):
    """`emb(batch)` returns the `Inputs` of a batch; `emb(ids)` returns the rows [..., dim] of precomputed ids."""

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        optimizer: RowOptimizer | None = None,
        *,
        linear: bool = False,
        sequences: bool = False,
        init: float = 0.01,
        seed: int = 1,
        threads: int | None = None,
    ) -> None:
        super().__init__()
        self.schema, self.threads = schema, threads or torch.get_num_threads()
        self.needs = Needs(dim, True, linear, sequences)
        self.groups = field_groups(schema, dim)
        optimizer = optimizer or RowAdagrad()
        self.stores = tuple(
            MemoryStore(
                (
                    RowPart("embedding", g.dim, optimizer, init),
                    *((RowPart("linear", 1, optimizer, 0.0),) if linear else ()),
                ),
                seed=seed,
            )
            for g in self.groups
        )
        self.step = 0  # number of pushes so far; recorded as the last step of a row

    def forward(self, batch: Batch | Tensor | np.ndarray[Any, Any]) -> Any:
        return self._inputs(batch) if isinstance(batch, Batch) else self._rows(batch)

    def _inputs(self, batch: Batch) -> Inputs:
        found = find(batch, self.groups)
        rows = [
            self._leaf(store, index, tables_U)
            for store, index, tables_U in zip(self.stores, found.indices, found.tables, strict=True)
        ]
        leaves = tuple(
            Leaves(r[:, : g.dim], r[:, g.dim] if self.needs.linear else None)
            for r, g in zip(rows, self.groups, strict=True)
        )
        return assemble(self.schema, self.groups, self.needs, batch, leaves)

    def _rows(self, ids: Tensor | np.ndarray[Any, Any]) -> Tensor:
        """Rows of 63-bit ids of any shape, from the store with the model's default width."""
        array = np.ascontiguousarray(torch.as_tensor(ids).numpy(), np.int64)
        index = _core.Occurrences(array.reshape(-1))
        return self._leaf(self.stores[0], index)[:, : self.groups[0].dim].reshape(*array.shape, -1)

    def _leaf(self, store: MemoryStore, index: _core.Occurrences, tables_U: Tables | None = None) -> Tensor:
        """The whole row of each occurrence. `backward` passes its gradient to the store."""
        ids_U = index.unique_U
        rows_UW = store.pull(ids_U, tables_U=tables_U) if self.training else store.peek(ids_U)
        rows_NW = torch.empty(len(index), store.width)
        index.expand(rows_UW, 0, store.width, rows_NW.numpy(), self.threads)
        if not (self.training and torch.is_grad_enabled()):
            return rows_NW
        return _PushOnBackward.apply(rows_NW.requires_grad_(), self, store, index, tables_U)  # type: ignore[no-untyped-call,no-any-return]

    def push(
        self,
        store: MemoryStore,
        index: _core.Occurrences,
        grads_NW: Floats,
        tables_U: Tables | None = None,
    ) -> None:
        """Apply the gradient of each occurrence's row. Called by `backward`."""
        sums_UW = np.zeros((len(index.unique_U), store.width), np.float32)
        index.sum(grads_NW, 0, store.width, sums_UW, self.threads)
        self.step += 1
        store.push(index.unique_U, sums_UW, index.counts_U, examples=1.0, step=self.step, tables_U=tables_U)

    def get_extra_state(self) -> dict[str, Any]:
        """The rows, for `state_dict()`: one array of each kind per store."""
        blocks = [[vars(block) for block in store.blocks()] for store in self.stores]
        return {"step": self.step, "rows": [_joined(of_store) for of_store in blocks]}

    def set_extra_state(self, state: Any) -> None:
        """Restore the rows of a `state_dict()`."""
        self.step = int(state["step"])
        for store, rows in zip(self.stores, state["rows"], strict=True):
            if rows:
                store.load(RowBlock(**{name: tensor.numpy() for name, tensor in rows.items()}))

    def extra_repr(self) -> str:
        """Width and number of rows."""
        return f"dim={self.needs.dim}, rows={sum(map(len, self.stores)):,}"


def _joined(blocks: list[dict[str, Any]]) -> dict[str, Tensor]:
    names = blocks[0] if blocks else ()
    return {name: torch.from_numpy(np.concatenate([block[name] for block in blocks])) for name in names}


class _PushOnBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows_NW: Tensor,
        module: Embeddings,
        store: MemoryStore,
        index: _core.Occurrences,
        tables_U: Tables | None,
    ) -> Tensor:
        ctx.target = (module, store, index, tables_U)
        return rows_NW.view_as(rows_NW)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None, None, None]:
        module, store, index, tables_U = ctx.target
        module.push(store, index, grads[0].contiguous().numpy(), tables_U)
        return None, None, None, None, None
