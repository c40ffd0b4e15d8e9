"""A worker as a process: it reads the examples that it is given, pulls what they need, computes and gives."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import torch

from gearshift.data.batch import Floats, Ids
from gearshift.data.ranges import Ranges
from gearshift.embedding.lookup import IndexedBatch
from gearshift.embedding.sharded import IdPlacement
from gearshift.engine.protocol.messages import Rows
from gearshift.engine.protocol.replica_exchange import Exchanger
from gearshift.engine.protocol.worker import Job, WorkerRole
from gearshift.engine.ray.all_reduce import AllReduceError, AllReduceMember
from gearshift.engine.ray.dense_copy import DenseCopy, wants_spread
from gearshift.engine.ray.process_context import Membership, ProcessContext, driver_of, endpoint_of, layout_of
from gearshift.engine.wire.driver import AllReduceFailed, Computed, ComputeFailed, ComputeResult
from gearshift.parameters.push import Push
from gearshift.parameters.shard import NO_PREDICTIONS, ShardLayout
from gearshift.sync.messages import Begin
from gearshift.training.ended import measured_of
from gearshift.training.epoch_host import NOT_FINITE
from gearshift.training.training import Training
from gearshift.training.worker import NotFinitePush, compute_lease, stream_of

STARTS = 1 << 20  # that a process has numbers for
LOOPBACK = "127.0.0.1"


def work(member: Membership, context: ProcessContext) -> None:
    context.enter(restarted=member.restarted)
    if member.me.number == 0:  # with the shards that is enough: many workers would only load the file system
        context.keep_lease(member)
    training = context.build().training
    layout = layout_of(training.learner, context.shards)
    ring = AllReduceMember(
        context.meeting_place,
        member.host if context.wire == "curve" else LOOPBACK,
        layout.dense[-1].stop,
        context.patience,
        spread=wants_spread(training.learner.server),
    )
    hands = WorkerComputation(training, layout, member.me.number, context.shuffle, ring)
    replicas = Exchanger(member.me.number, training.learner.server, layout, time.monotonic)
    boots = itertools.count(member.boot * STARTS)
    with closing(endpoint_of(member, context, training)) as endpoint, closing(hands):
        role = WorkerRole(member.me.number, context.shards, lambda: next(boots), hands.ids, replicas)
        driver_of(member, context, endpoint).run(role, hands.compute)


class WorkerComputation:
    """What a worker does with its examples."""

    def __init__(
        self, training: Training, layout: ShardLayout, number: int, shuffle: bool, ring: AllReduceMember
    ) -> None:
        self._training, self._layout, self._number, self._shuffle = training, layout, number, shuffle
        self._learner = training.learner
        self._worker, self._buffers = self._learner.worker, dict(self._learner.model.named_buffers())
        self._ranges = Ranges(training.train)
        self._dense_copy, self._ring = DenseCopy(self._learner.server, layout), ring
        # What was read for the newest leases: one may be computed while the worker, told to start anew, begins another.
        self._read: dict[int, tuple[IndexedBatch, list[IdPlacement]]] = {}

    def close(self) -> None:
        self._ranges.close()
        self._ring.close()

    def ids(self, begin: Begin, epoch: int) -> Sequence[tuple[Ids, ...]]:
        """What the lease needs, by shard and store."""
        plan, lease = self._training.plan, begin.lease
        batch = self._ranges.read(lease.first, lease.count, (plan.seed, epoch) if self._shuffle else None)
        found = self._learner.find(batch)
        several = self._layout.shards > 1
        places = [IdPlacement(own, self._layout.shards) for own in found.ids] if several else []
        self._read = {**dict(list(self._read.items())[-1:]), lease.number: (found, places)}
        if not several:
            return [found.ids]
        return [
            tuple(own[place.groups[s]] for own, place in zip(found.ids, places, strict=True))
            for s in range(self._layout.shards)
        ]

    def compute(self, job: Job) -> ComputeResult:
        since, (found, places) = time.monotonic(), self._read[job.begin.lease.number]
        self._ring.stay_in(job.answers[0].incarnation, job.place.ring)
        self._take_dense(job)
        rows = self._rows(found, places, job.answers)
        seed = self._learner.seed + stream_of(job.epoch, job.begin.lease.first)
        try:
            push = compute_lease(self._worker, found, rows, seed)
        except NotFinitePush as error:
            if not job.place.ring:
                return ComputeFailed(f"{NOT_FINITE}: {error}")
            push = replace(error.push, examples=0.0)  # the other members wait for it; it counts for nothing
        if self._training.pacer is not None:
            self._training.pacer.pad(self._number, job.begin.lease.count, since)
        content, own = measured_of(found.batch, push), time.monotonic()
        if job.place.ring:
            try:
                push = self._reduced(job, push)
            except AllReduceError as error:
                return AllReduceFailed(str(error))
        waited = time.monotonic() - own
        return Computed(self._split(push, job.answers[0]), content, push.ring, waited)

    def _reduced(self, job: Job, push: Push) -> Push:
        """The push with the dense sum of all members, or without one if another carries it."""
        self._ring.reduce(job.place, push.dense, push.examples)
        dense, variance = self._ring.sum_P, self._ring.variance_P
        if not job.place.carries:
            dense, variance = dense[:0], variance[:0]
        return replace(push, dense=dense, variance=variance, ring=job.place.ring)

    def _take_dense(self, job: Job) -> None:
        """Of the worker's own replica if it has one: as it is now, whatever is merged into it meanwhile."""
        if job.flat is None:
            self._dense_copy.take(job.answers, self._ring.sum_P, self._ring.variance_P)
        with torch.no_grad():
            if job.flat is not None:
                self._worker.dense.flat.copy_(job.flat)
            for name, values in self._buffers.items():
                values.copy_(job.answers[0].statistics[name])

    def _rows(
        self, found: IndexedBatch, places: list[IdPlacement], answers: tuple[Rows, ...]
    ) -> tuple[Floats, ...]:
        if len(answers) == 1:
            return answers[0].rows
        rows = []
        for i, (ids_U, place) in enumerate(zip(found.ids, places, strict=True)):
            width = answers[0].rows[i].shape[1]
            rows_UW = self._worker.buffers.floats(f"{i} rows", len(ids_U), width)
            for at, answer in zip(place.groups, answers, strict=True):
                rows_UW[at] = answer.rows[i]
            rows.append(rows_UW)
        return tuple(rows)

    def _split(self, push: Push, first: Rows) -> list[Push]:
        changes = {name: values - first.statistics[name] for name, values in self._buffers.items()}
        push = replace(push, probabilities_BT=NO_PREDICTIONS, buffer_changes=changes)
        return [push] if self._layout.shards == 1 else self._layout.split(push)
