"""One step of one worker: a batch and its pulled rows in, gradients out.

Gradients are of the *sum* of the loss and come with the number of examples, so that the server that applies them
decides how to average. A worker has no thread, no network and no clock, applies nothing, and touches no store: it gets
its rows as arrays.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gearshift import _core
from gearshift.data.batch import Batch, Floats
from gearshift.data.schema import Schema
from gearshift.embedding.lookup import Buffers, IndexedBatch, Leaves, assemble, field_groups
from gearshift.embedding.store import Tables
from gearshift.errors import UserError
from gearshift.models.inputs import Needs
from gearshift.models.layers import seed_dropout
from gearshift.models.losses import Loss, binary_cross_entropy, summed
from gearshift.parameters.dense import DenseParameters
from gearshift.parameters.push import Push, RowPush

EPOCH_STRIDE = 1_000_003  # distance between the random streams of two epochs


def stream_of(epoch: int, first: int) -> int:
    """The random stream of a lease: the same for the same examples of an epoch, on every worker and engine."""
    return EPOCH_STRIDE * epoch + first


def compute_lease(worker: Worker, indexed: IndexedBatch, rows: tuple[Floats, ...], seed: int) -> Push:
    """The gradient of one lease, on the dense parameters that `worker` holds and the rows that were pulled.

    Every engine computes a lease here, so that the same lease on the same parameters gives the same push everywhere.
    `seed` determines the dropout masks. Raises `NotFinitePush` if the loss or a gradient is not finite.
    """
    seed_dropout(worker.model, seed)
    push = worker.compute(indexed, rows)
    refuse_non_finite(push)
    return push


class NotFinitePush(FloatingPointError):
    """The loss or a gradient is not finite. `push` must not be applied."""

    def __init__(self, reason: str, push: Push) -> None:
        super().__init__(reason)
        self.push = push


def refuse_non_finite(push: Push) -> None:
    """Raises before anything is applied. A sum detects NaN and infinity in a single pass."""
    if not math.isfinite(push.loss):
        raise NotFinitePush(f"loss became {'NaN' if math.isnan(push.loss) else 'infinite'}", push)
    if not math.isfinite(float(push.dense.sum())):
        raise NotFinitePush("dense gradient became infinite or NaN", push)
    if not all(rows.finite for rows in push.rows):
        raise NotFinitePush("embedding gradient became infinite, NaN or too large to square", push)


class Worker:
    """Holds a private copy of the dense parameters (as `dense`) and computes on it."""

    def __init__(
        self, model: nn.Module, schema: Schema, *, loss: Loss = binary_cross_entropy, threads: int = 1
    ) -> None:
        self.model, self.schema, self.loss, self.threads = model, schema, loss, threads
        self.needs = Needs.of(model)
        self.groups = field_groups(schema, self.needs.dim)
        self.dense = DenseParameters(model)
        self.buffers = Buffers()
        model.train()  # sets every submodule; `compute` and `predict` only check the flag of the whole model

    def indexes_like(self, other: Worker) -> bool:
        """Whether both index a batch's ids in the same way, so that they can share an `IndexedBatch`."""
        return [(g.singles, g.ragged) for g in self.groups] == [(g.singles, g.ragged) for g in other.groups]

    def compute(self, indexed: IndexedBatch, rows: tuple[Floats, ...]) -> Push:
        batch = indexed.batch
        if not self.model.training:  # calling train() for every small batch would cost 4 % of a step
            self.model.train()
        self.dense.zero_grad()
        leaves = self._leaves(indexed, rows, requires_grad=True)
        labels_BT = torch.from_numpy(batch.labels_BT)
        logits_BT = self._logits(batch, leaves)
        weights_B = None if batch.weights_B is None else torch.from_numpy(batch.weights_B)
        loss = summed(self.loss, logits_BT, labels_BT, weights_B)
        loss.backward()  # type: ignore[no-untyped-call]
        return Push(
            tuple(
                self._row_push(i, *part)
                for i, part in enumerate(zip(indexed.indices, indexed.tables, leaves, strict=True))
            ),
            self.dense.grad,
            float(len(batch) if batch.weights_B is None else batch.weights_B.sum()),
            float(loss.detach()),
            torch.sigmoid(logits_BT.detach()).numpy(),
        )

    @torch.no_grad()
    def predict(self, indexed: IndexedBatch, rows: tuple[Floats, ...]) -> Floats:
        """Probabilities [B, T]; dropout off, running statistics used, nothing changed."""
        if self.model.training:
            self.model.eval()
        logits_BT = self._logits(indexed.batch, self._leaves(indexed, rows, requires_grad=False))
        return torch.sigmoid(logits_BT).numpy()

    def _logits(self, batch: Batch, leaves: tuple[Leaves, ...]) -> Tensor:
        logits: Tensor = self.model(assemble(self.schema, self.groups, self.needs, batch, leaves))
        tasks = batch.labels_BT.shape[1]
        if logits.shape not in ((len(batch),), (len(batch), tasks)):
            raise UserError(
                f"{type(self.model).__name__}.forward returned {list(logits.shape)} logits for a batch of "
                f"{len(batch)} examples; return [{len(batch)}]"
                + (f" or [{len(batch)}, {tasks}]" if tasks > 1 else ", for example with .squeeze(1)")
            )
        return logits.view(len(batch), -1) if logits.dim() == 2 else logits.unsqueeze(1)

    def _leaves(
        self, indexed: IndexedBatch, rows: tuple[Floats, ...], *, requires_grad: bool
    ) -> tuple[Leaves, ...]:
        leaves = []
        for i, (group, index, rows_UW) in enumerate(zip(self.groups, indexed.indices, rows, strict=True)):
            wide = group.dim if self.needs.embedding else 0
            embedding_ND = self._expand(f"{i} embedding", index, rows_UW, 0, wide) if wide else None
            linear_N = None
            if self.needs.linear:
                linear_N = self._expand(f"{i} linear", index, rows_UW, wide, wide + 1).view(-1)
            for leaf in (embedding_ND, linear_N):
                if leaf is not None:
                    leaf.requires_grad_(requires_grad)
            leaves.append(Leaves(embedding_ND, linear_N))
        return tuple(leaves)

    def _expand(self, name: str, index: _core.Occurrences, rows_UW: Floats, begin: int, end: int) -> Tensor:
        """Columns [begin, end) of every occurrence's row."""
        out_NP = self.buffers.floats(name, len(index), end - begin)
        index.expand(rows_UW, begin, end, out_NP, self.threads)
        return torch.from_numpy(out_NP)

    def _row_push(self, i: int, index: _core.Occurrences, tables_U: Tables, leaves: Leaves) -> RowPush:
        parts = [leaf for leaf in (leaves.embedding_ND, leaves.linear_N) if leaf is not None]
        widths = [1 if leaf.dim() == 1 else leaf.shape[1] for leaf in parts]
        sums_UW = self.buffers.floats(f"{i} sums", len(index.unique_U), sum(widths))
        begin, finite = 0, True
        for leaf, width in zip(parts, widths, strict=True):
            if leaf.grad is None:  # the model did not use this part
                sums_UW[:, begin : begin + width] = 0.0
            else:
                grads_NP = leaf.grad.reshape(-1, width).contiguous().numpy()
                finite &= index.sum(grads_NP, begin, begin + width, sums_UW, self.threads)
            begin += width
        return RowPush(index.unique_U, sums_UW, index.counts_U, finite, tables_U)
