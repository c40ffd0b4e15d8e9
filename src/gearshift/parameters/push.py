"""What a worker sends after a batch: gradients of the summed loss for the dense parameters and for each row it used.

A worker computes a `Push`. What reaches a shard depends on which process makes the dense step:

    Push              the shard makes the step, from this gradient
    GroupSumPush      the shard makes it, from the sum of an all-reduce group, sent by one member
    GroupRowsPush     the same, for the other members: their dense gradients are in the sum
    ReplicaRowsPush   the worker has made it, on its replica; only rows are left
    AppliedPush       the worker has made it and pushed the rows (in one process); only the accounts are left
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gearshift.data.batch import Floats, Ids
from gearshift.embedding.store import Tables
from gearshift.parameters.marked_types import (
    DenseGradient,
    GradientVariance,
    GroupNumber,
    Predictions,
    Statistics,
)

NO_PREDICTIONS = np.empty((0, 1), np.float32)
BufferChanges = Statistics  # the change of a replica's running statistics by one batch


@dataclass(frozen=True)
class RowPush:
    """Gradients for one store, one row per distinct id of the batch. Valid until the worker's next step."""

    ids_U: Ids
    sums_UW: Floats
    counts_U: NDArray[np.uint32]
    finite: bool = True  # whether all sums are finite, even when squared
    tables_U: Tables = dataclasses.field(default_factory=lambda: np.zeros(0, np.uint16))  # unknown if empty

    def __post_init__(self) -> None:
        if not len(self.tables_U):
            object.__setattr__(self, "tables_U", np.zeros(len(self.ids_U), np.uint16))

    def copied(self) -> RowPush:
        return replace(self, sums_UW=self.sums_UW.copy())

    def where(self, chosen_U: NDArray[np.bool_]) -> RowPush:
        """The gradients of some of the rows."""
        return RowPush(
            self.ids_U[chosen_U],
            self.sums_UW[chosen_U],
            self.counts_U[chosen_U],
            self.finite,
            self.tables_U[chosen_U],
        )


@dataclass(frozen=True)
class Push:
    """A push as a worker computes it: gradients of the summed loss, and the number of examples summed over."""

    rows: tuple[RowPush, ...]
    dense: DenseGradient  # [P], valid until the worker's next step
    examples: float  # sum of the example weights, or the number of examples without weights
    loss: float  # summed
    probabilities_BT: Predictions  # predictions before this push is applied, for progressive measures
    buffer_changes: BufferChanges = dataclasses.field(default_factory=dict)
    gradients: int = 1  # of how many workers this is the sum

    def kept(self) -> Push:
        """A copy with its own memory, kept while the push waits."""
        return replace(self, rows=tuple(own.copied() for own in self.rows), dense=self.dense.clone())


@dataclass(frozen=True)
class GroupSumPush:
    """The rows of one worker, and the dense sum of its all-reduce group."""

    group: GroupNumber
    rows: tuple[RowPush, ...]
    dense: DenseGradient  # [P], the sum
    variance: GradientVariance  # [P], the variance of the gradients in the sum, if the optimizer needs it
    examples: float  # of this worker
    buffer_changes: BufferChanges = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class GroupRowsPush:
    """The rows of one worker; its dense gradient is in the sum of its all-reduce group, which another push carries."""

    group: GroupNumber
    rows: tuple[RowPush, ...]
    examples: float
    buffer_changes: BufferChanges = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class ReplicaRowsPush:
    """The rows of one worker, which has made the dense step on its replica."""

    rows: tuple[RowPush, ...]
    examples: float
    buffer_changes: BufferChanges = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class AppliedPush:
    """The step was already made; only the accounts are left."""

    examples: float
    loss: float
    probabilities_BT: Floats


ShardPush = Push | GroupSumPush | GroupRowsPush | ReplicaRowsPush  # has rows for the shards
LocalPush = Push | AppliedPush  # of a worker in this process
AnyPush = ShardPush | AppliedPush


def group_of(push: AnyPush) -> int:
    """The all-reduce group that has its dense gradient in a sum; 0: none."""
    return push.group if isinstance(push, GroupSumPush | GroupRowsPush) else 0


def part_of(push: ShardPush, rows: tuple[RowPush, ...], own: slice, *, first: bool) -> ShardPush:
    """A shard's share, copied: these rows, and the slice `own` of the dense values.

    Running statistics go to the `first` shard.
    """
    changes = push.buffer_changes if first else {}
    match push:
        case Push():
            dense = push.dense[own].clone()
            return Push(rows, dense, push.examples, push.loss, NO_PREDICTIONS, changes, push.gradients)
        case GroupSumPush():
            dense = push.dense[own].clone()
            variance = None if push.variance is None else push.variance[own].clone()
            return GroupSumPush(push.group, rows, dense, variance, push.examples, changes)
        case _:
            return replace(push, rows=rows, buffer_changes=changes)
