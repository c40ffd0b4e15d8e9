"""The server holds parameters and applies steps: the dense buffer, the row stores and their optimizers.

The caller decides which pushes form a step, and their weights. Dense parameters and rows use the gradient
`sum(w * S) / sum(n)`: gradients of the summed loss divided by the number of examples. A push of weight 0 counts in the
divisor and changes nothing else. `RowPolicy.reduce` defines the divisor of rows: `mean`, as above; `touched`, the
examples of the pushes with the id; `sum`, no division. A variance-reduced optimizer (VR-x) computes r from the pushes
of the group; `RowPolicy.trust` defines whether rows get an r too.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import torch
from torch import Tensor

from gearshift.data.batch import Floats
from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.horizons import Horizons
from gearshift.embedding.lookup import Buffers, FieldGroup, IndexedBatch
from gearshift.embedding.row_rules import sketch_bytes
from gearshift.embedding.sharded import ShardedStore
from gearshift.embedding.store import CowClip, RowAdagrad, RowOptimizer, RowPart, RowStore
from gearshift.embedding.table_store import MemoryStore
from gearshift.errors import UserError, unknown_name
from gearshift.models.inputs import Needs
from gearshift.optim import row_ratios
from gearshift.optim.first_order import DenseOptimizer, clip_norm
from gearshift.optim.gsnr import LayerStatistics, Ratios
from gearshift.optim.layout import Layout, bind
from gearshift.optim.row_ratios import PushedRows, RowPartColumns
from gearshift.optim.spread import ShiftedSums, Spread, effective_number, spread_of
from gearshift.optim.trust_figures import ROWS
from gearshift.optim.variance_reduced import VarianceReduced
from gearshift.parameters.average import DenseAverage, follow
from gearshift.parameters.dense_settings import DensePolicy
from gearshift.parameters.merged_rows import MergedRows, merge_rows
from gearshift.parameters.push import (
    AnyPush,
    AppliedPush,
    GroupSumPush,
    Push,
    ReplicaRowsPush,
    RowPush,
    ShardPush,
    group_of,
)
from gearshift.parameters.row_settings import EmbeddingReduce, RowPolicy, RowTrust


@dataclass(frozen=True)
class RowSettings(RowPolicy):
    """How embedding rows are initialised and updated."""

    embeddings: RowOptimizer = field(default_factory=RowAdagrad)
    linear: RowOptimizer | None = None  # for the width-1 part (LR, FM, Wide & Deep); `embeddings` if None
    clip: CowClip | None = None  # clips the gradient of the embedding part of each row

    def __post_init__(self) -> None:
        if self.trust not in get_args(RowTrust):
            raise unknown_name("row trust", self.trust, get_args(RowTrust))
        if self.reduce not in get_args(EmbeddingReduce):
            raise unknown_name("row reduce", self.reduce, get_args(EmbeddingReduce))
        if self.clip is not None and not isinstance(self.clip, CowClip):
            raise UserError(f"RowSettings(clip=...) is {self.clip!r}: write clip=gs.CowClip(), or remove it")
        if self.clip is not None and self.reduce != "mean":
            raise UserError(
                f'clip needs the mean gradient of a row, but reduce="{self.reduce}": remove one of them'
            )


def row_parts(group: FieldGroup, needs: Needs, rows: RowSettings) -> tuple[RowPart, ...]:
    """The parts of one store's rows, embedding first: the columns that `Worker` reads."""
    parts = []
    if needs.embedding:
        parts.append(RowPart("embedding", group.dim, rows.embeddings, rows.init, rows.clip))
    if needs.linear:
        parts.append(RowPart("linear", 1, rows.linear or rows.embeddings, 0.0))
    return tuple(parts)


def make_stores(
    groups: tuple[FieldGroup, ...],
    needs: Needs,
    rows: RowSettings,
    seed: int,
    shards: int = 1,
    tier: ColdTier | None = None,
) -> tuple[RowStore, ...]:
    """`tier` is that of each shard; its stores divide it in proportion to their row sizes and numbers of fields.

    Sketches of `min_count` are extra.
    """
    sizes = [group.dim * (len(group.singles) + len(group.ragged)) for group in groups]

    def store(group: FieldGroup, size: int) -> RowStore:
        own = sketch_bytes(group.rules) // shards
        part = tier and tier.share(size / sum(sizes)).with_sketch(own)
        made = [
            MemoryStore(
                row_parts(group, needs, rows), seed=seed, tier=part, rules=group.rules, tables=group.tables
            )
            for _ in range(shards)
        ]
        return made[0] if shards == 1 else ShardedStore(made)

    return tuple(map(store, groups, sizes))


class Server:
    """Holds all parameters, or a shard's part of them; `flat` has the dense values that workers copy."""

    def __init__(
        self,
        flat: Tensor,
        stores: tuple[RowStore, ...],
        optimizer: DenseOptimizer,
        *,
        dense: DensePolicy = DensePolicy(),
        rows: RowPolicy = RowPolicy(),
        layout: Layout | None = None,
        buffers: dict[str, Tensor] | None = None,
        threads: int = 1,
    ) -> None:
        """`layout` maps the parts of `flat` to layers, for optimizers that work per layer.

        `buffers` are the model's running statistics, updated with the mean of a step's pushes.
        """
        self.flat = flat
        self.stores = stores
        self.optimizer, self.layers = optimizer, layout or Layout.whole("dense", flat.shape)
        self.rule = bind(optimizer, self.layers)
        self._sums: ShiftedSums | None = None  # this and the next attribute: buffers of VR-x
        self._reduced: Tensor | None = None
        self.trust: Ratios | None = None  # r of the last step, kept for statistics until the next step
        self.row_ratios: dict[int, tuple[Ratios, ...]] = {}  # the same for rows, by store
        self.split_into: tuple[Server, ...] = ()  # the servers of several shards, which share its memory
        self.optimizer_state = optimizer.init(flat.numel())
        self._gradient = torch.empty_like(flat)
        self.dense_policy, self.row_policy = dense, rows
        self.threads = threads
        self.step = 0
        self.rate = 0.0  # factor of the dense learning rate in the last step; 0 before the first
        self.dense_lock = threading.Lock()  # held while dense values are read or written
        self.buffers = {} if buffers is None else buffers
        self.average: DenseAverage | None = None  # of the dense values; moves while `dense_lock` is held
        self.block_velocity: Tensor | None = None  # velocity of bmuf's global step, if a shard makes it

    def pull(self, batch: IndexedBatch, buffers: Buffers) -> tuple[Floats, ...]:
        """The rows of each store, in the caller's buffers. New ids are created."""
        return tuple(
            store.pull(
                ids,
                buffers.floats(f"{i} rows", len(ids), store.width),
                tables_U=tables_U,
                threads=self.threads,
            )
            for i, (store, ids, tables_U) in enumerate(zip(self.stores, batch.ids, batch.tables, strict=True))
        )

    def peek(self, batch: IndexedBatch, buffers: Buffers) -> tuple[Floats, ...]:
        """Like `pull`, but creates no rows."""
        return tuple(
            store.peek(ids, buffers.floats(f"{i} rows", len(ids), store.width), threads=self.threads)
            for i, (store, ids) in enumerate(zip(self.stores, batch.ids, strict=True))
        )

    def apply(self, push: Push, *, lr_scale: float) -> None:
        """Make one step from one push."""
        self.apply_group([(push, 1.0)], lr_scale=lr_scale)

    @torch.no_grad()
    def apply_group(
        self,
        parts: Sequence[tuple[AnyPush, float]],
        *,
        lr_scale: float,
        over_kept: bool = False,
        late: Sequence[tuple[AnyPush, int]] = (),
        dense_rate: float = 1.0,
        share: float = 1.0,
        horizons: Horizons | None = None,
    ) -> None:
        """Make one step, `share` of a global batch, from weighted pushes that have been checked.

        Only the sum of their rows may be too large. `dense_rate` is another factor of the dense learning rate. Of
        `late` pushes, which have weight 0, the gradients of rows count that have not changed since the given step.
        """
        self.step += 1
        if self.average is not None:
            with self.dense_lock:
                self.average.count(share)
        if horizons is not None:
            self.move_horizons(horizons)
        kept = [
            (push, weight)
            for push, weight in parts
            if weight > 0 and push.examples > 0 and not isinstance(push, AppliedPush)
        ]
        rows_of = [(push, step) for push, step in late if push.examples > 0 and isinstance(push, ShardPush)]
        examples = sum(push.examples for push, _ in (kept if over_kept and kept else parts))
        if not kept and not rows_of:
            return  # a step of total weight 0, or one that was made on a replica
        # Rows first: a store refuses gradients that are too large to square before it changes anything.
        self._push_rows(kept, examples, lr_scale, self.step, rows_of)
        if not kept:
            return
        dense = [(push, weight) for push, weight in kept if isinstance(push, Push | GroupSumPush)]
        if not dense or not len(
            self.flat
        ):  # workers have made the dense step on replicas, or there are no dense values here
            with self.dense_lock:
                self._move_buffers(kept)
            return
        gradient = self._dense_gradient(dense, examples)
        if self.dense_policy.clip_norm is not None:
            clip_norm(gradient, self.dense_policy.clip_norm)
        with self.dense_lock:
            self.rate = lr_scale * dense_rate
            self._step_dense(lambda sums: self._spread(kept, dense, sums), gradient, self.rate)
            self._move_buffers(kept)
            follow(self)

    def move_horizons(self, horizons: Horizons) -> None:
        """Rows that have not been trained since do not exist any more, if their table has such a rule."""
        for store in self.stores:
            store.lifetimes.move_horizons(horizons)

    @torch.no_grad()
    def step_beside(
        self, dense: Tensor, variance: Tensor | None, examples: float, gradients: float, lr_scale: float
    ) -> None:
        """Repeat the dense part of a step that another server has made from one sum, bit for bit.

        `variance` is that of the gradients in the sum, if the optimizer needs it; `gradients` is their effective
        number.
        """

        def spread_in(sums: ShiftedSums) -> Spread:
            assert variance is not None, "an optimizer that reduces variance needs it with the sum"
            return sums.of_total(dense, variance, examples, gradients, round(gradients))

        gradient = torch.mul(dense, 1.0 / examples, out=self._gradient)
        if self.dense_policy.clip_norm is not None:
            clip_norm(gradient, self.dense_policy.clip_norm)
        with self.dense_lock:
            self._step_dense(spread_in, gradient, lr_scale)

    def statistics(self) -> list[LayerStatistics]:
        """Statistics of r in the last step, by layer and part of the rows; empty without variance reduction."""
        if self.split_into:
            return [line for server in self.split_into for line in server.statistics()]
        with self.dense_lock:
            lines = list(self.trust.statistics()) if self.trust is not None else []
        for i, of_parts in self.row_ratios.items():
            for part, ratios in zip(self.stores[i].parts, of_parts, strict=True):
                (line,) = ratios.statistics()
                line = replace(line, layer=f"{ROWS}{part.name}[{part.width}]")
                if self.row_policy.trust == "row_wise":  # a row's mean covers only the pushes with its id
                    line = replace(line, noise=math.nan, signal=math.nan)
                lines.append(line)
        return lines

    def push_rows(self, push: ReplicaRowsPush, *, lr_scale: float) -> None:
        """Applies the rows of one gradient immediately. May be called from any thread."""
        if push.examples > 0:
            self._push_rows([(push, 1.0)], push.examples, lr_scale, self.step + 1)

    def move_buffers(self, push: ReplicaRowsPush) -> None:
        """Updates running statistics with one gradient. May be called from any thread."""
        with self.dense_lock:
            self._move_buffers([(push, 1.0)])

    def _push_rows(
        self,
        kept: Sequence[tuple[ShardPush, float]],
        examples: float,
        lr_scale: float,
        step: int,
        late: Sequence[tuple[ShardPush, int]] = (),
    ) -> None:
        for i, store in enumerate(self.stores):
            parts_of_i = [(push.rows[i], weight, push.examples) for push, weight in kept]
            for push, seen in late:
                rows_of_push = push.rows[i]
                unchanged_U = store.last_steps(rows_of_push.ids_U) <= seen
                parts_of_i.append((rows_of_push.where(unchanged_U), 1.0, push.examples))
            rows = self._trusted(i, parts_of_i, merge_rows(parts_of_i, self.threads))
            if self.row_policy.reduce == "touched":
                rows.sums_UW[:] *= (examples / rows.examples_U)[:, None]
            try:
                store.push(
                    rows.ids_U,
                    rows.sums_UW,
                    rows.counts_U,
                    examples=1.0 if self.row_policy.reduce == "sum" else examples,
                    step=step,
                    lr_scale=lr_scale,
                    tables_U=rows.tables_U,
                    threads=self.threads,
                )
            except ValueError as error:
                if "too large to square" not in str(error):
                    raise
                # the sum of all pushes, each of which was finite
                message = f"embedding gradient became too large to square at step {step}"
                raise FloatingPointError(message) from error

    def _step_dense(
        self, spread_in: Callable[[ShiftedSums], Spread], gradient: Tensor, lr_scale: float
    ) -> None:
        rule = self.rule
        if not isinstance(rule, VarianceReduced):
            rule.step(self.flat, gradient, self.optimizer_state, lr_scale=lr_scale)
            return
        if self._sums is None:
            self._sums, self._reduced = ShiftedSums(self.flat), torch.empty_like(self.flat)
        self.trust = rule.gsnr.ratios(spread_in(self._sums), self.layers)
        rule.step(
            self.flat,
            gradient,
            self.optimizer_state,
            ratio=self.trust.values,
            lr_scale=lr_scale,
            spare=self._reduced,
        )

    def _spread(
        self,
        kept: Sequence[tuple[ShardPush, float]],
        dense: Sequence[tuple[Push | GroupSumPush, float]],
        sums: ShiftedSums,
    ) -> Spread:
        """The spread of the pushes; for gradients summed by an all-reduce group, the one that the group computed."""
        for push, _ in dense:
            if isinstance(push, GroupSumPush) and push.variance is not None:
                sizes = [own.examples for own, _ in kept if group_of(own) == push.group]
                number = effective_number(sizes)
                return sums.of_total(push.dense, push.variance, sum(sizes), number, len(sizes))
        return spread_of([(push.dense, push.examples, weight) for push, weight in dense], sums)

    def _trusted(self, i: int, parts: Sequence[tuple[RowPush, float, float]], rows: MergedRows) -> MergedRows:
        """The rows of a step, scaled by their r if rows have one."""
        rule = self.rule
        if self.row_policy.trust == "dense_only" or not isinstance(rule, VarianceReduced):
            return rows
        of_rows = row_ratios.touched if self.row_policy.trust == "touched" else row_ratios.row_wise
        pushed = [PushedRows(part.ids_U, part.sums_UW, weight, n) for part, weight, n in parts]
        ratios = of_rows(pushed, rule.gsnr, _columns(self.stores[i]))
        self.row_ratios[i] = ratios.parts
        return rows if ratios.values_UW is None else replace(rows, sums_UW=rows.sums_UW * ratios.values_UW)

    def _move_buffers(self, kept: Sequence[tuple[ShardPush, float]]) -> None:
        """Moves the statistics by the mean of the pushes' changes; counters of batches count the step as one."""
        total = sum(weight * (push.gradients if isinstance(push, Push) else 1) for push, weight in kept)
        for name, values in self.buffers.items():
            changes = [(p.buffer_changes[name], weight) for p, weight in kept if name in p.buffer_changes]
            if changes and values.is_floating_point():
                values.add_(torch.stack([change * (weight / total) for change, weight in changes]).sum(0))
            elif changes:
                values.add_(torch.stack([change for change, _ in changes]).amax(0))

    def _dense_gradient(self, dense: Sequence[tuple[Push | GroupSumPush, float]], examples: float) -> Tensor:
        (first, weight), *others = dense
        gradient = torch.mul(first.dense, weight / examples, out=self._gradient)
        for push, weight in others:
            gradient.add_(push.dense, alpha=weight / examples)
        return gradient


def _columns(store: RowStore) -> list[RowPartColumns]:
    ends = list(itertools.accumulate(part.width for part in store.parts))
    return [
        RowPartColumns(part.name, end - part.width, end) for part, end in zip(store.parts, ends, strict=True)
    ]
