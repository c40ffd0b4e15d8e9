"""A worker as a process: it reads the examples that it is given, pulls what they need, computes and gives."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from contextlib import closing

import torch

from gearshift.cluster.site import Member, Site, driver_of, endpoint_of, layout_of
from gearshift.data.batch import Floats, Ids
from gearshift.data.ranges import Ranges
from gearshift.embedding.lookup import Found
from gearshift.embedding.sharded import Placement
from gearshift.engine.roles.exchanger import Exchanger
from gearshift.engine.roles.messages import Rows, measured_of
from gearshift.engine.roles.worker import Job, WorkerRole
from gearshift.engine.wire.driver import Computed, Unusable
from gearshift.epoch_run import NOT_FINITE
from gearshift.learner import refuse_non_finite
from gearshift.models.layers import seed_dropout
from gearshift.shard import NO_PREDICTIONS, Layout
from gearshift.sync.messages import Begin
from gearshift.training import Training
from gearshift.worker import Push

STARTS = 1 << 20  # that a process has numbers for


def work(member: Member, site: Site) -> None:
    site.enter()
    training = site.build().training
    layout = layout_of(training.learner, site.shards)
    hands = Hands(training, layout, member.me.number, site.shuffle)
    replicas = Exchanger(member.me.number, training.learner.server, layout, time.monotonic)
    boots = itertools.count(member.boot * STARTS)
    with closing(endpoint_of(member, site, training)) as endpoint, closing(hands):
        role = WorkerRole(member.me.number, site.shards, lambda: next(boots), hands.ids, replicas)
        driver_of(member, site, endpoint).run(role, hands.compute)


class Hands:
    """What a worker does with its examples."""

    def __init__(self, training: Training, layout: Layout, number: int, shuffle: bool) -> None:
        self._training, self._layout, self._number, self._shuffle = training, layout, number, shuffle
        self._learner = training.learner
        self._worker, self._buffers = self._learner.worker, dict(self._learner.model.named_buffers())
        self._ranges = Ranges(training.train)
        # What was read for the newest leases: one may be computed while the worker, told to start anew, begins another.
        self._read: dict[int, tuple[Found, list[Placement]]] = {}

    def close(self) -> None:
        self._ranges.close()

    def ids(self, begin: Begin, epoch: int) -> Sequence[tuple[Ids, ...]]:
        """What the lease needs, by shard and store."""
        plan, lease = self._training.plan, begin.lease
        batch = self._ranges.read(lease.first, lease.count, (plan.seed, epoch) if self._shuffle else None)
        found = self._learner.find(batch)
        several = self._layout.shards > 1
        places = [Placement(own, self._layout.shards) for own in found.ids] if several else []
        self._read = {**dict(list(self._read.items())[-1:]), lease.number: (found, places)}
        if not several:
            return [found.ids]
        return [
            tuple(own[place.groups[s]] for own, place in zip(found.ids, places, strict=True))
            for s in range(self._layout.shards)
        ]

    def compute(self, job: Job) -> Computed | Unusable:
        since, (found, places) = time.monotonic(), self._read[job.begin.lease.number]
        self._take_dense(job)
        rows = self._rows(found, places, job.answers)
        draw = 1_000_003 * job.epoch + job.begin.lease.first
        seed_dropout(self._learner.model, self._learner.seed + draw)
        push = self._worker.compute(found, rows)
        try:
            refuse_non_finite(push)
        except FloatingPointError as error:
            return Unusable(f"{NOT_FINITE}: {error}")
        if self._training.pacer is not None:
            self._training.pacer.pad(self._number, job.begin.lease.count, since)
        return Computed(self._split(push, job.answers[0]), measured_of(found.batch, push))

    def _take_dense(self, job: Job) -> None:
        """Of the worker's own replica if it has one: as it is now, whatever is merged into it meanwhile."""
        with torch.no_grad():
            if job.flat is not None:
                self._worker.dense.flat.copy_(job.flat)
            else:
                for own, answer in zip(self._layout.dense, job.answers, strict=True):
                    self._worker.dense.flat[own].copy_(answer.dense)
            for name, values in self._buffers.items():
                values.copy_(job.answers[0].statistics[name])

    def _rows(self, found: Found, places: list[Placement], answers: tuple[Rows, ...]) -> tuple[Floats, ...]:
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
        push = Push(push.rows, push.dense, push.examples, push.loss, NO_PREDICTIONS, changes)
        return [push] if self._layout.shards == 1 else self._layout.split(push)
