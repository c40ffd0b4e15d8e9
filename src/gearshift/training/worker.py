"""One step of one worker: a batch and its pulled rows in, gradients out.

Gradients are of the *sum* of the loss, with the number of examples beside them, so that whoever applies them
decides what is averaged with what. A worker has no thread, no network and no clock, applies nothing, and
touches no store: rows reach it as arrays.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gearshift import _core
from gearshift.data.batch import Batch, Floats, Ids
from gearshift.data.schema import Bag, Field, Schema, Sequence
from gearshift.embedding.lookup import Buffers, FieldGroup, Found, field_groups
from gearshift.errors import UserError
from gearshift.models.inputs import Fields, Inputs, Needs, SequenceRows, pad_rows, pool_rows
from gearshift.models.losses import Loss, binary_cross_entropy, summed
from gearshift.parameters.dense import DenseParameters

NO_VALUES = torch.empty(0)


@dataclass(frozen=True)
class RowPush:
    """Gradients for one store: one line per distinct id of the batch; valid until the worker's next step."""

    ids_U: Ids
    sums_UW: Floats
    counts_U: NDArray[np.uint32]
    finite: bool = True  # whether all sums are, also squared, as optimizers do


@dataclass(frozen=True)
class Push:
    """What a worker sends: gradients of the summed loss, and over how many examples it was summed."""

    rows: tuple[RowPush, ...]
    dense: Tensor  # [P], valid until the worker's next step
    examples: float  # the sum of example weights; the number of examples where there are none
    loss: float  # summed
    probabilities_BT: Floats  # before this push is applied: what progressive measures count
    # By how much it moved the running statistics of a replica's module.
    buffer_changes: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    applied: bool = False  # its worker has made the step on a replica of its own; only the accounts are left
    ring: int = (
        0  # its dense gradient is in the sum of this ring, which one push of it carries; the others have none
    )
    variance: Tensor = NO_VALUES  # [P], of the gradients in that sum, if it is wanted

    def kept(self) -> Push:
        """A copy of its own, for as long as it waits."""
        rows = tuple(RowPush(r.ids_U, r.sums_UW.copy(), r.counts_U) for r in self.rows)
        return replace(self, rows=rows, dense=self.dense.clone(), variance=self.variance.clone())


@dataclass(frozen=True)
class Leaves:
    """The rows of every occurrence of one store, as autograd leaves."""

    embedding_ND: Tensor | None
    linear_N: Tensor | None


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
        model.train()  # every part of it; `compute` and `predict` look at the whole alone

    def finds_like(self, other: Worker) -> bool:
        """Whether both lay out a batch's ids in the same way, so that what one found serves the other."""
        return [(g.singles, g.ragged) for g in self.groups] == [(g.singles, g.ragged) for g in other.groups]

    def compute(self, found: Found, rows: tuple[Floats, ...]) -> Push:
        batch = found.batch
        if not self.model.training:  # said anew on every small batch, it costs 4 % of a step
            self.model.train()
        self.dense.zero_grad()
        leaves = self._leaves(found, rows, requires_grad=True)
        labels_BT = torch.from_numpy(batch.labels_BT)
        logits_BT = self._logits(batch, leaves)
        weights_B = None if batch.weights_B is None else torch.from_numpy(batch.weights_B)
        loss = summed(self.loss, logits_BT, labels_BT, weights_B)
        loss.backward()  # type: ignore[no-untyped-call]
        return Push(
            tuple(self._row_push(i, *part) for i, part in enumerate(zip(found.indices, leaves, strict=True))),
            self.dense.grad,
            float(len(batch) if batch.weights_B is None else batch.weights_B.sum()),
            float(loss.detach()),
            torch.sigmoid(logits_BT.detach()).numpy(),
        )

    @torch.no_grad()
    def predict(self, found: Found, rows: tuple[Floats, ...]) -> Floats:
        """Probabilities [B, T]; dropout off, running statistics used, nothing changed."""
        if self.model.training:
            self.model.eval()
        logits_BT = self._logits(found.batch, self._leaves(found, rows, requires_grad=False))
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

    def _leaves(self, found: Found, rows: tuple[Floats, ...], *, requires_grad: bool) -> tuple[Leaves, ...]:
        leaves = []
        for i, (group, index, rows_UW) in enumerate(zip(self.groups, found.indices, rows, strict=True)):
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

    def _row_push(self, i: int, index: _core.Occurrences, leaves: Leaves) -> RowPush:
        parts = [leaf for leaf in (leaves.embedding_ND, leaves.linear_N) if leaf is not None]
        widths = [1 if leaf.dim() == 1 else leaf.shape[1] for leaf in parts]
        sums_UW = self.buffers.floats(f"{i} sums", len(index.unique_U), sum(widths))
        begin, finite = 0, True
        for leaf, width in zip(parts, widths, strict=True):
            if leaf.grad is None:  # the model left this part out of its graph
                sums_UW[:, begin : begin + width] = 0.0
            else:
                grads_NP = leaf.grad.reshape(-1, width).contiguous().numpy()
                finite &= index.sum(grads_NP, begin, begin + width, sums_UW, self.threads)
            begin += width
        return RowPush(index.unique_U, sums_UW, index.counts_U, finite)


def assemble(
    schema: Schema,
    groups: tuple[FieldGroup, ...],
    needs: Needs,
    batch: Batch,
    leaves: tuple[Leaves, ...],
) -> Inputs:
    """The rows of all occurrences, as the model sees them; without bags and sequences nothing is copied."""
    numeric = torch.from_numpy(batch.numeric_BN)
    names = tuple(f.name for f in schema.fields)
    B, F = batch.ids_BF.shape
    if len(groups) == 1 and not batch.ragged:
        one = leaves[0]
        rows_ND = one.embedding_ND
        fields = Fields((), []) if rows_ND is None else Fields(names, rows_ND.view(B, F, -1))
        return Inputs(numeric, fields, {}, None if one.linear_N is None else one.linear_N.view(B, F))
    return _assemble_ragged(schema, groups, needs, batch, leaves)


def _assemble_ragged(
    schema: Schema,
    groups: tuple[FieldGroup, ...],
    needs: Needs,
    batch: Batch,
    leaves: tuple[Leaves, ...],
) -> Inputs:
    rows = _segments(groups, batch, [leaf.embedding_ND for leaf in leaves])
    terms = _segments(groups, batch, [leaf.linear_N for leaf in leaves])
    offsets = [torch.from_numpy(r.offsets) for r in batch.ragged]
    fields: dict[str, Tensor] = {}
    sequences: dict[str, SequenceRows] = {}
    linear: list[Tensor] = []

    def pooled(field: Field, part: Tensor, place: Place) -> Tensor:
        if place.kind == "single":
            return part
        return pool_rows(part, offsets[place.number], field.pool if isinstance(field, Bag) else "mean")

    for field, place in _places(schema):
        if place in rows and isinstance(field, Sequence) and needs.sequences:
            sequences[field.name] = pad_rows(rows[place], offsets[place.number], field.max_len)
        elif place in rows:
            fields[field.name] = pooled(field, rows[place], place)
        if place in terms:
            linear.append(pooled(field, terms[place].unsqueeze(1), place).squeeze(1))
    return Inputs(
        torch.from_numpy(batch.numeric_BN),
        Fields(tuple(fields), list(fields.values())),
        sequences,
        torch.stack(linear, 1) if linear else None,
    )


class Place(NamedTuple):
    """Where a field's ids are in a batch: a column of `ids_BF`, or an entry of `ragged`."""

    kind: Literal["single", "ragged"]
    number: int


def _places(schema: Schema) -> Iterator[tuple[Field, Place]]:
    """The fields in schema order."""
    single, ragged = itertools.count(), itertools.count()
    for field in schema.fields:
        is_ragged = isinstance(field, Bag | Sequence)
        yield field, Place("ragged", next(ragged)) if is_ragged else Place("single", next(single))


def _segments(
    groups: tuple[FieldGroup, ...], batch: Batch, parts: list[Tensor | None]
) -> dict[Place, Tensor]:
    """Each field's own occurrences, cut out of its store's: [B, D] of a single field, [nnz, D] of a ragged one."""
    found: dict[Place, Tensor] = {}
    for group, part in zip(groups, parts, strict=True):
        if part is None:
            continue
        end = len(batch) * len(group.singles)
        table = part[:end].view(len(batch), len(group.singles), *part.shape[1:])
        for column, single in enumerate(group.singles):
            found[Place("single", single)] = table[:, column]
        for ragged in group.ragged:
            begin, end = end, end + len(batch.ragged[ragged].ids)
            found[Place("ragged", ragged)] = part[begin:end]
    return found
