"""The process of a worker: it reads the examples of its leases, pulls their parameters, computes and pushes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import torch

from gearshift.data.batch import Floats
from gearshift.data.ranges import Ranges, Shuffle
from gearshift.embedding.lookup import IndexedBatch
from gearshift.embedding.sharded import IdPlacement
from gearshift.engine.protocol.all_reduce import GroupRank
from gearshift.engine.protocol.messages import ComingRange, Rows, WantedRows
from gearshift.engine.protocol.replica_exchange import Exchanger
from gearshift.engine.protocol.worker import Job, WorkerRole
from gearshift.engine.ray.all_reduce import AllReduceError, AllReduceMember
from gearshift.engine.ray.connection import layout_of
from gearshift.engine.ray.dense_copy import DenseCopy, wants_spread
from gearshift.engine.ray.process_context import Membership, ProcessContext
from gearshift.engine.wire.driver import AllReduceFailed, Computed, ComputeFailed, ComputeResult
from gearshift.parameters.push import NO_PREDICTIONS, GroupRowsPush, GroupSumPush, Push, ShardPush
from gearshift.parameters.shard import ShardLayout
from gearshift.sync.events import Begin
from gearshift.training.ended import measured_of
from gearshift.training.lease_accounts import NOT_FINITE
from gearshift.training.training import Training
from gearshift.training.worker import NotFinitePush, compute_lease, stream_of

STARTS = 1 << 20  # the number of role boots that each process has
LOOPBACK = "127.0.0.1"

PlacedBatch = tuple[IndexedBatch, list[IdPlacement]]  # no placements if there is one shard
Range = tuple[int, int, int]  # first example, number of examples, pass over the data


def work(member: Membership, context: ProcessContext) -> None:
    context.enter(restarted=member.restarted)
    if member.me.number == 0:  # one worker and the shards are enough: more would only load the file system
        context.folder.keep_lease(f"{member.me.role}-{member.me.number}")
    training = context.build().training
    layout, connection = layout_of(training.learner, context.shards), context.connection
    group = AllReduceMember(
        connection.meeting_place(context.folder.path),
        member.host if connection.wire == "curve" else LOOPBACK,
        layout.dense[-1].stop,
        connection.settings.patience,
        spread=wants_spread(training.learner.server),
    )
    assert context.fitted is not None, "workers start after the coordinator has read the data"
    hands = WorkerComputation(training, layout, member.me.number, context.fitted.shuffle, group)
    replicas = Exchanger(member.me.number, training.learner.server, layout, time.monotonic)
    boots = itertools.count(member.boot * STARTS)
    with closing(connection.endpoint(member, training, context.shards)) as endpoint, closing(hands):
        role = WorkerRole(
            member.me.number,
            context.shards,
            lambda: next(boots),
            hands.ids,
            replicas,
            hands.ids_ahead,
            partial(relay_in, member),
        )
        connection.driver(member, endpoint).run(role, hands.compute)


def relay_in(member: Membership) -> int | None:
    """The relay of this machine: a worker hears of no other."""
    return next((contact.who.number for contact in member.contacts() if contact.who.role == "relay"), None)


class WorkerComputation:
    """Computes the gradients of a worker's leases."""

    def __init__(
        self, training: Training, layout: ShardLayout, number: int, shuffle: bool, group: AllReduceMember
    ) -> None:
        self._training, self._layout, self._number, self._shuffle = training, layout, number, shuffle
        self._learner = training.learner
        self._worker, self._buffers = self._learner.worker, dict(self._learner.model.named_buffers())
        self._ranges = Ranges(training.train)
        self._dense_copy, self._group = DenseCopy(self._learner.server, layout), group
        # The batches of the newest leases. A worker that must rejoin may begin a lease while it still computes one.
        self._read: dict[int, PlacedBatch] = {}
        self._ahead: tuple[Range, PlacedBatch] | None = None  # read for the shards; probably the next lease

    def close(self) -> None:
        self._ranges.close()
        self._group.close()

    def ids(self, begin: Begin, epoch: int) -> Sequence[WantedRows]:
        """The rows that the lease needs, by shard."""
        lease = begin.lease
        placed = self._placed((lease.first, lease.count, epoch))
        self._read = {**dict(list(self._read.items())[-1:]), lease.number: placed}
        return self._by_shard(placed)

    def ids_ahead(self, begin: Begin, epoch: int, coming: ComingRange) -> Sequence[WantedRows]:
        """The rows of a coming range, or none if reading it now could mean that the data are read from the start."""
        follows = coming.first == begin.lease.first + begin.lease.count
        if not follows and not self._ranges.skips(self._order(epoch)):
            return ()
        place = coming.first, coming.count, epoch
        self._ahead = place, self._placed(place)
        return self._by_shard(self._ahead[1])

    def _order(self, epoch: int) -> Shuffle:
        return (self._training.plan.seed, epoch) if self._shuffle else None

    def _placed(self, place: Range) -> PlacedBatch:
        if self._ahead is not None and self._ahead[0] == place:
            return self._ahead[1]
        first, count, epoch = place
        indexed = self._learner.find(self._ranges.read(first, count, self._order(epoch)))
        several = self._layout.shards > 1
        return indexed, [IdPlacement(ids_U, self._layout.shards) for ids_U in indexed.ids] if several else []

    def _by_shard(self, placed: PlacedBatch) -> list[WantedRows]:
        indexed, places = placed
        if not places:
            return [WantedRows(indexed.ids, indexed.tables)]
        return [
            WantedRows(
                tuple(ids_U[place.groups[s]] for ids_U, place in zip(indexed.ids, places, strict=True)),
                tuple(
                    tables_U[place.groups[s]] for tables_U, place in zip(indexed.tables, places, strict=True)
                ),
            )
            for s in range(self._layout.shards)
        ]

    def compute(self, job: Job) -> ComputeResult:
        since, (indexed, places) = time.monotonic(), self._read[job.begin.lease.number]
        self._group.stay_in(job.answers[0].incarnation, job.place.ring)
        self._take_dense(job)
        rows = self._rows(indexed, places, job.answers)
        seed = self._learner.seed + stream_of(job.epoch, job.begin.lease.first)
        try:
            push = compute_lease(self._worker, indexed, rows, seed)
        except NotFinitePush as error:
            if not job.place.group:
                return ComputeFailed(f"{NOT_FINITE}: {error}")
            push = replace(error.push, examples=0.0)  # the other members wait for it; its weight is 0
        if self._training.pacer is not None:
            self._training.pacer.pad(self._number, job.begin.lease.count, since)
        content, computed_at = measured_of(indexed.batch, push), time.monotonic()
        try:
            given = self._reduced(job.place, push) if job.place.ring else push
        except AllReduceError as error:
            return AllReduceFailed(str(error))
        waited = time.monotonic() - computed_at
        return Computed(self._split(given, job.answers[0]), content, waited)

    def _reduced(self, place: GroupRank, push: Push) -> GroupSumPush | GroupRowsPush:
        """The push with the dense sum of all members, or without it if another member carries the sum."""
        self._group.reduce(place, push.dense, push.examples)
        if not place.carries:
            return GroupRowsPush(place.group, push.rows, push.examples)
        dense, variance = self._group.sum_P, self._group.variance_P
        return GroupSumPush(place.group, push.rows, dense, variance, push.examples)

    def _take_dense(self, job: Job) -> None:
        """Copies the dense parameters: the current ones of the worker's replica if it has one."""
        if job.flat is None:
            self._dense_copy.take(job.answers, self._group.sum_P, self._group.variance_P)
        with torch.no_grad():
            if job.flat is not None:
                self._worker.dense.flat.copy_(job.flat)
            for name, values in self._buffers.items():
                values.copy_(job.answers[0].statistics[name])

    def _rows(
        self, indexed: IndexedBatch, places: list[IdPlacement], answers: tuple[Rows, ...]
    ) -> tuple[Floats, ...]:
        if len(answers) == 1:
            return answers[0].rows
        rows = []
        for i, (ids_U, place) in enumerate(zip(indexed.ids, places, strict=True)):
            width = answers[0].rows[i].shape[1]
            rows_UW = self._worker.buffers.floats(f"{i} rows", len(ids_U), width)
            for at, answer in zip(place.groups, answers, strict=True):
                rows_UW[at] = answer.rows[i]
            rows.append(rows_UW)
        return tuple(rows)

    def _split(self, push: ShardPush, first: Rows) -> list[ShardPush]:
        changes = {name: values - first.statistics[name] for name, values in self._buffers.items()}
        if isinstance(push, Push):
            push = replace(push, probabilities_BT=NO_PREDICTIONS)
        push = replace(push, buffer_changes=changes)
        return [push] if self._layout.shards == 1 else self._layout.split(push)
