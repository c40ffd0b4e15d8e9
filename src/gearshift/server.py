"""Where parameters live and steps are applied: the dense buffer, the row stores and their optimizers.

A server is told which pushes form a step; it never decides. Dense and rows step on
`sum(S) / sum(n)`: gradients of the summed loss over the number of examples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gearshift.data.batch import Floats
from gearshift.embedding.lookup import Buffers, FieldGroup, Found
from gearshift.embedding.memory import MemoryStore
from gearshift.embedding.store import RowOptimizer, RowPart, RowStore
from gearshift.models.inputs import Needs
from gearshift.optim.first_order import DenseOptimizer, clip_norm
from gearshift.worker import Push


@dataclass(frozen=True)
class RowSettings:
    """How rows are born and moved: `linear` is the optimizer of the width-1 part, the embedding's if None."""

    embeddings: RowOptimizer
    linear: RowOptimizer | None = None
    init: float = 0.01


def row_parts(group: FieldGroup, needs: Needs, rows: RowSettings) -> tuple[RowPart, ...]:
    """The parts of one store's rows, embedding first: the columns that `Worker` reads."""
    parts = []
    if needs.embedding:
        parts.append(RowPart("embedding", group.dim, rows.embeddings, rows.init))
    if needs.linear:
        parts.append(RowPart("linear", 1, rows.linear or rows.embeddings, 0.0))
    return tuple(parts)


def make_stores(
    groups: tuple[FieldGroup, ...], needs: Needs, rows: RowSettings, seed: int
) -> tuple[RowStore, ...]:
    return tuple(MemoryStore(row_parts(group, needs, rows), seed=seed) for group in groups)


class Server:
    """One shard that holds everything; `flat` is the dense truth that workers copy."""

    def __init__(
        self,
        flat: Tensor,
        stores: tuple[RowStore, ...],
        optimizer: DenseOptimizer,
        *,
        max_norm: float | None = None,
        threads: int = 1,
    ) -> None:
        self.flat = flat
        self.stores = stores
        self.optimizer = optimizer
        self.optimizer_state = optimizer.init(flat.numel())
        self._gradient = torch.empty_like(flat)
        self.max_norm = max_norm
        self.threads = threads
        self.step = 0

    def pull(self, found: Found, buffers: Buffers) -> tuple[Floats, ...]:
        """The rows of each store, in the caller's buffers; new ids are born."""
        return tuple(
            store.pull(ids, buffers.floats(f"{i} rows", len(ids), store.width), threads=self.threads)
            for i, (store, ids) in enumerate(zip(self.stores, found.ids, strict=True))
        )

    def peek(self, found: Found, buffers: Buffers) -> tuple[Floats, ...]:
        """The same, but nothing is born."""
        return tuple(
            store.peek(ids, buffers.floats(f"{i} rows", len(ids), store.width), threads=self.threads)
            for i, (store, ids) in enumerate(zip(self.stores, found.ids, strict=True))
        )

    @torch.no_grad()
    def apply(self, push: Push, *, lr_scale: float) -> None:
        """One step from one push. The push is checked before: nothing here refuses half way."""
        self.step += 1
        gradient = torch.mul(push.dense, 1.0 / push.examples, out=self._gradient)
        if self.max_norm is not None:
            clip_norm(gradient, self.max_norm)
        self.optimizer.step(self.flat, gradient, self.optimizer_state, lr_scale=lr_scale)
        for store, rows in zip(self.stores, push.rows, strict=True):
            store.push(
                rows.ids_U,
                rows.sums_UW,
                rows.counts_U,
                examples=push.examples,
                step=self.step,
                lr_scale=lr_scale,
                threads=self.threads,
            )
