"""A model in training: a worker that computes, a server that keeps and moves the parameters.

Knows how one step is made and what of it belongs into a checkpoint; knows no data set, no epoch and no schedule.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gearshift.data.batch import Batch, Floats
from gearshift.data.schema import Schema
from gearshift.embedding.lookup import IndexedBatch, find
from gearshift.embedding.store import RowBlock, RowFTRL, RowPart, RowStore, StoreSnapshot
from gearshift.errors import UserError
from gearshift.models.losses import Loss, binary_cross_entropy
from gearshift.optim.first_order import DenseOptimizer
from gearshift.optim.layout import Layout
from gearshift.parameters.checkpoint import Arrays, Checkpoint
from gearshift.parameters.push import Push
from gearshift.parameters.server import EmbeddingReduce, RowSettings, RowTrust, Server, make_stores
from gearshift.parameters.shard import ShardLayout
from gearshift.training.worker import Worker, compute_lease


def is_of_rows(file: str) -> bool:
    """Whether a checkpoint's file holds rows, rather than what every process needs."""
    return re.match(r"(baseline-)?rows\d+-", file) is not None


@dataclass(frozen=True)
class Snapshot:
    """What a learner puts into a checkpoint: files of arrays, and a cut of each store."""

    arrays: dict[str, Arrays]
    rows: dict[str, StoreSnapshot]

    def close(self) -> None:
        for cut in self.rows.values():
            cut.close()


class Learner:
    def __init__(
        self,
        model: nn.Module,
        schema: Schema,
        *,
        rows: RowSettings,
        optimizer: DenseOptimizer,
        max_norm: float | None = None,
        embedding_reduce: EmbeddingReduce = "mean",
        row_trust: RowTrust = "dense_only",
        loss: Loss = binary_cross_entropy,
        seed: int = 1,
        threads: int = 1,
        shards: int = 1,
        prefix: str = "",
    ) -> None:
        self.model, self.schema, self.prefix, self.seed = model, schema, prefix, seed << 32
        self.worker = Worker(model, schema, loss=loss, threads=threads)
        self._new_stores = partial(make_stores, self.worker.groups, self.worker.needs, rows, seed, shards)
        dense = self.worker.dense
        self.server = Server(
            self.worker.dense.flat,
            self._new_stores(),
            optimizer,
            max_norm=max_norm,
            embedding_reduce=embedding_reduce,
            row_trust=row_trust,
            layout=Layout.of(dense.names, dense.shapes, dense.offsets),
            threads=threads,
        )
        self.server.buffers = dict(model.named_buffers())
        self.layout = ShardLayout.of(shards, len(dense), dense.offsets, together=max_norm is not None)

    def find(self, batch: Batch) -> IndexedBatch:
        return find(batch, self.worker.groups)

    def step(self, found: IndexedBatch, *, lr_scale: float = 1.0) -> Push:
        """Pull, compute, apply. The push comes back for its loss and its predictions."""
        push = self.compute(found, self.server.step)
        self.server.apply(push, lr_scale=lr_scale)
        return push

    def compute(self, found: IndexedBatch, draw: int) -> Push:
        """Pull and compute on the server's own parameters; `draw` fixes what dropout drops."""
        before = {name: values.clone() for name, values in self.server.buffers.items()}
        rows = self.server.pull(found, self.worker.buffers)
        try:
            return compute_lease(self.worker, found, rows, self.seed + draw)
        except FloatingPointError:
            for name, values in before.items():  # the forward pass has moved running statistics
                self.server.buffers[name].copy_(values)
            raise

    def replica(self, threads: int = 1) -> Replica:
        return Replica(self, threads)

    def predict(self, found: IndexedBatch) -> Floats:
        return self.worker.predict(found, self.server.peek(found, self.worker.buffers))

    @property
    def rows(self) -> int:
        return sum(len(store) for store in self.server.stores)

    @property
    def row_bytes(self) -> int:
        return sum(store.memory_bytes() for store in self.server.stores)

    def snapshot(self) -> Snapshot:
        """Everything as of now; rows are a cut, so training may go on while they are written."""
        arrays: dict[str, Arrays] = {
            f"{self.prefix}dense": {name: t.numpy() for name, t in self.worker.dense.state().items()},
            f"{self.prefix}optimizer": {
                name: t.clone().numpy() for name, t in self.server.optimizer_state.items()
            },
        }
        rows = {f"{self.prefix}rows{i}": store.cut() for i, store in enumerate(self.server.stores)}
        return Snapshot(arrays, rows)

    def restore(
        self,
        checkpoint: Checkpoint,
        *,
        trainable: bool = True,
        keep: Callable[[RowBlock], RowBlock] = lambda block: block,
    ) -> None:
        """Takes a checkpoint's parameters; with `trainable=False` no optimizer state is read or kept.

        Of the rows, those that `keep` leaves.
        """
        self._check_same(checkpoint, trainable)
        dense = checkpoint.arrays(f"{self.prefix}dense")
        self.worker.dense.load({name: torch.from_numpy(array) for name, array in dense.items()})
        if trainable:
            for name, array in checkpoint.arrays(f"{self.prefix}optimizer").items():
                self.server.optimizer_state[name].copy_(torch.from_numpy(array))
        self.server.stores = self._new_stores()
        for i, store in enumerate(self.server.stores):
            for block in checkpoint.rows(f"{self.prefix}rows{i}"):
                kept = keep(block)
                store.load(kept if trainable else without_state(kept))
        self.server.step = int(checkpoint.facts["step"])

    def _check_same(self, checkpoint: Checkpoint, trainable: bool) -> None:
        if self.prefix:
            return  # a baseline is what we made it
        saved, here = checkpoint.facts["model"]["text"], describe(self.model)
        if saved != here:
            raise UserError(
                f"checkpoint {checkpoint.path} was made for {saved}; this config asks {here}. "
                f"Warm-start the embeddings only: --init-from {checkpoint.path}"
            )
        if trainable and checkpoint.facts["settings"] != self.settings:
            theirs, ours = _apart(checkpoint.facts["settings"].split("; "), self.settings.split("; "))
            raise UserError(
                f"checkpoint {checkpoint.path} was trained with {', '.join(theirs)}; this config asks "
                f"{', '.join(ours)}. Resume with the optimizers of the run, or start anew with --init-from"
            )

    @property
    def settings(self) -> str:
        """What must be the same for training to go on from a checkpoint: the optimizers and their state."""
        parts = [f"{p.name}[{p.width}] {p.optimizer}" for s in self.server.stores for p in s.parts]
        return "; ".join([f"dense {self.server.optimizer}", *parts])

    @property
    def parts(self) -> list[list[tuple[str, int]]]:
        """(name, width) of the parts of each store's rows."""
        return [[(part.name, part.width) for part in store.parts] for store in self.server.stores]

    def warm_start(self, checkpoint: Checkpoint) -> int:
        """Takes the rows of another model, each part where name and width agree; all else is as born."""
        if any(isinstance(part.optimizer, RowFTRL) for store in self.server.stores for part in store.parts):
            raise UserError(
                "rows moved by ftrl follow from its state and cannot start from other rows; use adagrad"
            )
        taken = 0
        for i, theirs in enumerate(checkpoint.facts["parts"]):
            for store, unmoved_1S in zip(
                self.server.stores, map(_first_state, self._new_stores()), strict=True
            ):
                columns = _shared_columns(store.parts, theirs)
                if columns:
                    taken += _take_rows(store, unmoved_1S, checkpoint.rows(f"rows{i}"), columns)
        if not taken:
            raise UserError(
                f"checkpoint {checkpoint.path} has {_widths(checkpoint.facts['parts'])}, this model wants "
                f"{_widths(self.parts)}: give both the same model.dim, or start without --init-from"
            )
        return taken


class Replica:
    """A worker beside others: a copy of the model, brought up to date at every pull, or living in a replica."""

    def __init__(self, learner: Learner, threads: int) -> None:
        self.server, self.seed = learner.server, learner.seed
        model, loss = copy.deepcopy(
            (learner.model, learner.worker.loss)
        )  # together: a loss may be the model's own
        self.worker = Worker(model, learner.schema, loss=loss, threads=threads)
        self._own = self.worker.dense.flat
        self.buffers = dict(self.worker.model.named_buffers())
        self._pulled = {name: values.clone() for name, values in self.buffers.items()}

    def compute(self, found: IndexedBatch, draw: int, flat: Tensor | None = None) -> Push:
        """On the server's parameters as of now, or on those that `flat` has while it computes."""
        self.worker.dense.live_in(self._own if flat is None else flat)
        with torch.no_grad(), self.server.dense_lock:
            if flat is None:
                self.worker.dense.copy_from(self.server.flat)
            for name, values in self.buffers.items():
                values.copy_(self.server.buffers[name])
                self._pulled[name].copy_(values)
        rows = self.server.pull(found, self.worker.buffers)
        push = compute_lease(self.worker, found, rows, self.seed + draw)
        return replace(
            push, buffer_changes={n: values - self._pulled[n] for n, values in self.buffers.items()}
        )


def _widths(stores: list[list[Any]]) -> str:
    """In words: embedding rows of width 16."""
    widths = sorted({width for parts in stores for name, width in parts if name == "embedding"})
    return f"embedding rows of width {' and '.join(map(str, widths))}" if widths else "no embedding rows"


def _shared_columns(ours: tuple[RowPart, ...], theirs: list[list[Any]]) -> list[tuple[slice, slice]]:
    """(our columns, their columns) of each part that both have; none unless the embeddings agree."""
    places, begin = {}, 0
    for name, width in theirs:
        places[name, width] = slice(begin, begin + width)
        begin += width
    shared, begin = [], 0
    for part in ours:
        if (part.name, part.width) in places:
            shared.append((slice(begin, begin + part.width), places[part.name, part.width]))
        elif part.name == "embedding":
            return []
        begin += part.width
    return shared


def _take_rows(
    store: RowStore, unmoved_1S: Floats, blocks: Iterator[RowBlock], columns: list[tuple[slice, slice]]
) -> int:
    taken = 0
    for block in blocks:
        count = len(block.ids_U)
        weights_UW = store.peek(block.ids_U)
        for ours, theirs in columns:
            weights_UW[:, ours] = block.weights_UW[:, theirs]
        never = np.zeros(count, np.uint32)
        store.load(
            RowBlock(block.ids_U, weights_UW, np.repeat(unmoved_1S, count, 0), block.touches_U, never, never)
        )
        taken += count
    return taken


def describe(model: nn.Module) -> str:
    """DeepFM(dim=16), for headers and error sentences."""
    return f"{type(model).__name__}(dim={getattr(model, 'dim', 16)})"


def _first_state(store: RowStore) -> Floats:
    """[1, S]: the optimizer state that every row is born with."""
    store.pull(np.zeros(1, np.int64))
    return next(store.blocks()).state_US


def without_state(block: RowBlock) -> RowBlock:
    return replace(block, state_US=np.zeros((len(block.ids_U), 0), np.float32))


def _apart(had: Sequence[str], asked: Sequence[str]) -> tuple[list[str], list[str]]:
    """What differs of settings such as `dense Adam(lr=0.1, ...)`: of the same rule the values alone."""
    theirs, ours = [x for x in had if x not in asked], [x for x in asked if x not in had]
    rules = [[re.sub(r"=[^,()]+", "", text) for text in texts] for texts in (theirs, ours)]
    if rules[0] != rules[1]:
        return theirs, ours
    values = [
        [f"{text.split()[0]} {value}" for text in texts for value in re.findall(r"\w+=[^,()]+", text)]
        for texts in (theirs, ours)
    ]
    both = [pair for pair in zip(*values, strict=True) if pair[0] != pair[1]]
    return [one for one, _ in both], [other for _, other in both]
