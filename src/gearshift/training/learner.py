"""A model in training: a worker that computes gradients, and a server that holds and updates the parameters.

Defines how one step is made and what a checkpoint contains. Does not depend on data sets, epochs or schedules.
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
from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.lookup import IndexedBatch, find
from gearshift.embedding.rule_figures import RuleCounts, rule_counts
from gearshift.embedding.store import RowBlock, RowPart, RowStore, StoreSnapshot
from gearshift.embedding.table_store import MemoryStore
from gearshift.embedding.tier_figures import TierSummary, tier_summary
from gearshift.errors import UserError
from gearshift.optim.first_order import DenseOptimizer
from gearshift.optim.layout import Layout
from gearshift.parameters.average import (
    AVERAGE,
    DenseAverage,
    arrays_of,
    restore_average,
    shown,
    shown_arrays,
)
from gearshift.parameters.average_rule import AverageRule
from gearshift.parameters.checkpoint import Arrays, Checkpoint
from gearshift.parameters.dense_settings import DensePolicy
from gearshift.parameters.push import Push
from gearshift.parameters.server import RowSettings, Server, make_stores
from gearshift.parameters.shard import ShardLayout
from gearshift.training.worker import Worker, compute_lease


def is_of_rows(file: str) -> bool:
    """Whether a checkpoint's file holds embedding rows. All other files are needed by every process."""
    return re.match(r"(baseline-)?(rows|rules)\d+-", file) is not None


@dataclass(frozen=True)
class Snapshot:
    """What a learner saves in a checkpoint: files of arrays, and a cut of each store."""

    arrays: dict[str, Arrays]
    rows: dict[str, StoreSnapshot]

    def close(self) -> None:
        for cut in self.rows.values():
            cut.close()


class Learner:
    """`worker` computes; the parameters, their optimizers and the rows are in `server`."""

    def __init__(
        self,
        worker: Worker,
        *,
        rows: RowSettings,
        optimizer: DenseOptimizer,
        dense: DensePolicy = DensePolicy(),
        seed: int = 1,
        shards: int = 1,
        prefix: str = "",
        tier: ColdTier | None = None,
        average: AverageRule | None = None,
    ) -> None:
        """`dense` defines how the dense gradient is processed; `prefix` is the prefix of this learner's file names.

        With `average` the dense weights are averaged while they train, and predictions use the average.

        Without a `tier` all rows stay in memory; with several shards, each shard gets its own tier.
        """
        self.worker, self.model, self.schema = worker, worker.model, worker.schema
        self.lookahead = None if tier is None else tier.lookahead
        self.memory_explained = "" if tier is None else tier.explained
        self.prefix, self.seed = prefix, seed << 32
        self._new_stores = partial(make_stores, worker.groups, worker.needs, rows, seed, shards, tier)
        flat = worker.dense
        self.server = Server(
            flat.flat,
            self._new_stores(),
            optimizer,
            dense=dense,
            rows=rows,
            layout=Layout.of(flat.names, flat.shapes, flat.offsets),
            buffers=dict(self.model.named_buffers()),
            threads=worker.threads,
        )
        if average is not None:
            self.server.average = DenseAverage.starting_at(average, flat.flat, self.server.buffers)
        # Of the shards, where rows are in other processes:
        self.tiers_elsewhere: TierSummary | None = None
        self.rules_elsewhere: RuleCounts | None = None
        self.layout = ShardLayout.of(shards, len(flat), flat.offsets, together=dense.clip_norm is not None)

    def find(self, batch: Batch) -> IndexedBatch:
        return find(batch, self.worker.groups)

    def step(self, indexed: IndexedBatch, *, lr_scale: float = 1.0) -> Push:
        """Pulls, computes and applies. Returns the push, which has the loss and the predictions."""
        push = self.compute(indexed, self.server.step)
        self.server.apply(push, lr_scale=lr_scale)
        return push

    def compute(self, indexed: IndexedBatch, draw: int) -> Push:
        """Pulls, and computes directly on the server's parameters; `draw` seeds dropout."""
        before = {name: values.clone() for name, values in self.server.buffers.items()}
        rows = self.server.pull(indexed, self.worker.buffers)
        try:
            return compute_lease(self.worker, indexed, rows, self.seed + draw)
        except FloatingPointError:
            for name, values in before.items():  # the forward pass has changed the running statistics
                self.server.buffers[name].copy_(values)
            raise

    def model_copy(self, threads: int = 1) -> ModelCopy:
        return ModelCopy(self, threads)

    def predict(self, indexed: IndexedBatch) -> Floats:
        """By the average of the dense weights, if there is one; else by the newest."""
        rows = self.server.peek(indexed, self.worker.buffers)
        if self.server.average is None:
            return self.worker.predict(indexed, rows)
        with self.worker.dense.showing(*shown(self.server)):
            return self.worker.predict(indexed, rows)

    @property
    def evaluated_weights(self) -> str:
        """Which dense weights predictions use, in words."""
        return "newest" if self.server.average is None else str(self.server.average.rule)

    @property
    def rows(self) -> int:
        return sum(len(store) for store in self.server.stores)

    @property
    def tier(self) -> TierSummary | None:
        """What the disk tiers of its stores did; None if all rows stay in memory."""
        return tier_summary(self.server.stores) if self.tiers_elsewhere is None else self.tiers_elsewhere

    @property
    def rule_counts(self) -> RuleCounts:
        """What rules of admission and expiry have done, by table; empty without such rules."""
        return rule_counts(self.server.stores) if self.rules_elsewhere is None else self.rules_elsewhere

    @property
    def row_bytes(self) -> int:
        return sum(store.memory_bytes() for store in self.server.stores)

    def snapshot(self) -> Snapshot:
        """The current state. Rows are a copy-on-write cut, so training can continue while they are written."""
        arrays: dict[str, Arrays] = {
            f"{self.prefix}dense": {name: t.numpy() for name, t in self.worker.dense.state().items()},
            f"{self.prefix}optimizer": {
                name: t.clone().numpy() for name, t in self.server.optimizer_state.items()
            },
        }
        if (average := self.server.average) is not None:
            arrays[f"{self.prefix}{AVERAGE}"] = arrays_of(average, self.worker.dense)
        rows = {f"{self.prefix}rows{i}": store.cut() for i, store in enumerate(self.server.stores)}
        return Snapshot(arrays, rows)

    def restore(
        self,
        checkpoint: Checkpoint,
        *,
        trainable: bool = True,
        keep: Callable[[RowBlock], RowBlock] | None = None,
    ) -> None:
        """Loads a checkpoint's parameters; with `trainable=False` no optimizer state is read or kept.

        `keep` filters each block of rows.
        """
        self._check_same(checkpoint, trainable)
        dense, average = checkpoint.arrays(f"{self.prefix}dense"), self._saved_average(checkpoint)
        if not trainable and average is not None:
            dense = shown_arrays(dense, average)
        self.worker.dense.load({name: torch.from_numpy(array) for name, array in dense.items()})
        if self.server.average is not None:
            restore_average(self.server, self.worker.dense, average)
        if trainable:
            for name, array in checkpoint.arrays(f"{self.prefix}optimizer").items():
                self.server.optimizer_state[name].copy_(torch.from_numpy(array))
        self.server.stores = self._new_stores()
        for i, store in enumerate(self.server.stores):
            if trainable:
                store.lifetimes.restore(checkpoint.rules(f"{self.prefix}rows{i}"))
            self._restore_rows(checkpoint, f"{self.prefix}rows{i}", store, trainable, keep)
        self.server.step = int(checkpoint.facts["step"])

    def _saved_average(self, checkpoint: Checkpoint) -> Arrays | None:
        name = f"{self.prefix}{AVERAGE}"
        return checkpoint.arrays(name) if checkpoint.has(name) else None

    def _restore_rows(
        self,
        checkpoint: Checkpoint,
        name: str,
        store: RowStore,
        trainable: bool,
        keep: Callable[[RowBlock], RowBlock] | None,
    ) -> None:
        stacks = checkpoint.stacks(name)
        if stacks and trainable and keep is None:
            with checkpoint.naming_damage():
                if store.adopt(stacks):
                    return
        for block in checkpoint.rows(name):
            kept = keep(block) if keep else block
            store.load(kept if trainable else without_state(kept))

    def _check_same(self, checkpoint: Checkpoint, trainable: bool) -> None:
        if self.prefix:
            return  # a baseline has no separate settings
        saved, here = checkpoint.facts["model"]["text"], describe(self.model)
        if saved != here:
            raise UserError(
                f"checkpoint {checkpoint.path} was made for {saved}; this config has {here}. "
                f"Warm-start the embeddings only: --init-from {checkpoint.path}"
            )
        if trainable and checkpoint.facts["settings"] != self.settings:
            theirs, ours = _differences(checkpoint.facts["settings"].split("; "), self.settings.split("; "))
            raise UserError(
                f"checkpoint {checkpoint.path} was trained with {', '.join(theirs)}; this config has "
                f"{', '.join(ours)}. Resume with the optimizers of the run, or start a new run with --init-from"
            )

    @property
    def settings(self) -> str:
        """The optimizers and their settings, which must be the same when training resumes from a checkpoint."""
        parts = [f"{p.name}[{p.width}] {p.optimizer}" for s in self.server.stores for p in s.parts]
        rules = [
            f"rows {rule}"
            for s in self.server.stores
            for rule in s.lifetimes.rules
            if rule.is_gated or rule.expire
        ]
        return "; ".join([f"dense {self.server.optimizer}", *parts, *rules])

    @property
    def parts(self) -> list[list[tuple[str, int]]]:
        """(name, width) of the parts of each store's rows."""
        return [[(part.name, part.width) for part in store.parts] for store in self.server.stores]

    def warm_start(self, checkpoint: Checkpoint) -> int:
        """Loads the rows of another model: each part whose name and width match. All else keeps its first values."""
        rules = [part.optimizer for store in self.server.stores for part in store.parts]
        if name := next((rule.name for rule in rules if rule.weights_from_state), None):
            raise UserError(
                f"rows moved by {name} follow from its state and cannot start from other rows; use adagrad"
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
                f"checkpoint {checkpoint.path} has {_widths(checkpoint.facts['parts'])}, but this model needs "
                f"{_widths(self.parts)}: give both the same model.dim, or start without --init-from"
            )
        return taken


class ModelCopy:
    """The model of one of several workers: it takes the parameters at every pull, or computes on a dense replica."""

    def __init__(self, learner: Learner, threads: int) -> None:
        self.server, self.seed = learner.server, learner.seed
        model, loss = copy.deepcopy(
            (learner.model, learner.worker.loss)
        )  # together, because the loss may be part of the model
        self.worker = Worker(model, learner.schema, loss=loss, threads=threads)
        self._threads: int | None = None  # the number of threads set in torch
        self._private_flat = self.worker.dense.flat
        self.buffers = dict(self.worker.model.named_buffers())
        self._pulled = {name: values.clone() for name, values in self.buffers.items()}

    def use_threads(self, count: int) -> None:
        """Computes with this many CPU threads. Called in the worker's thread, because torch keeps a number for each."""
        if count != self._threads:
            torch.set_num_threads(count)
            self.worker.threads = self._threads = count

    def compute(
        self,
        indexed: IndexedBatch,
        draw: int,
        flat: Tensor | None = None,
        predicted: Tensor | None = None,
    ) -> Push:
        """Computes on a copy of the server's dense parameters, or of `predicted` ones, or directly on `flat`."""
        self.worker.dense.live_in(self._private_flat if flat is None else flat)
        with torch.no_grad(), self.server.dense_lock:
            if flat is None:
                self.worker.dense.copy_from(self.server.flat if predicted is None else predicted)
            for name, values in self.buffers.items():
                values.copy_(self.server.buffers[name])
                self._pulled[name].copy_(values)
        rows = self.server.pull(indexed, self.worker.buffers)
        push = compute_lease(self.worker, indexed, rows, self.seed + draw)
        return replace(
            push, buffer_changes={n: values - self._pulled[n] for n, values in self.buffers.items()}
        )


def _widths(stores: list[list[Any]]) -> str:
    """For messages: `embedding rows of width 16`."""
    widths = sorted({width for parts in stores for name, width in parts if name == "embedding"})
    return f"embedding rows of width {' and '.join(map(str, widths))}" if widths else "no embedding rows"


def _shared_columns(ours: tuple[RowPart, ...], theirs: list[list[Any]]) -> list[tuple[slice, slice]]:
    """(our columns, their columns) of each part that both models have; empty unless the embeddings match."""
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
    """DeepFM(dim=16), for headers and error messages."""
    return f"{type(model).__name__}(dim={getattr(model, 'dim', 16)})"


def _first_state(store: RowStore) -> Floats:
    """[1, S]: the optimizer state of a new row."""
    without_rules = MemoryStore(store.parts, seed=0)
    without_rules.pull(np.zeros(1, np.int64))
    return next(without_rules.blocks()).state_US


def without_state(block: RowBlock) -> RowBlock:
    return replace(block, state_US=np.zeros((len(block.ids_U), 0), np.float32))


def _differences(saved: Sequence[str], here: Sequence[str]) -> tuple[list[str], list[str]]:
    """The settings that differ, such as `dense Adam(lr=0.1, ...)`; only the values if the optimizer is the same."""
    theirs, ours = [x for x in saved if x not in here], [x for x in here if x not in saved]
    rules = [[re.sub(r"=[^,()]+", "", text) for text in texts] for texts in (theirs, ours)]
    if rules[0] != rules[1]:
        return theirs, ours
    values = [
        [f"{text.split()[0]} {value}" for text in texts for value in re.findall(r"\w+=[^,()]+", text)]
        for texts in (theirs, ours)
    ]
    both = [pair for pair in zip(*values, strict=True) if pair[0] != pair[1]]
    return [one for one, _ in both], [other for _, other in both]
