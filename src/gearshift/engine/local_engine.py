"""The engine of this process: `LocalEngine` trains epoch by epoch, `LocalEpoch` is one of them.

An epoch's workers compute in a loop: that of inline.py for one worker, that of threads.py for several. Between two
steps the epoch measures time, evaluates, carries out requested switches, and calls the observer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor

from gearshift.embedding.lookup import IndexedBatch
from gearshift.engine.epoch import Epoch, UnusableGradient
from gearshift.engine.inline import InlineLoop
from gearshift.engine.lease_batches import LeaseBatches, examples_at_once
from gearshift.engine.local_replicas import EpochReplicas
from gearshift.engine.threads import Compute, ThreadsLoop
from gearshift.parameters.local_shards import LocalShards
from gearshift.parameters.push import LocalPush
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.events import Action, Begin, Event
from gearshift.sync.registry import make_strategy
from gearshift.sync.strategy import Strategy, cuts
from gearshift.training.ended import Ended, measured_of
from gearshift.training.engine import NotFinite, Observer
from gearshift.training.epoch_host import EpochHost
from gearshift.training.learner import Learner, ModelCopy
from gearshift.training.lease_accounts import NOT_FINITE
from gearshift.training.look_ahead import read_ahead
from gearshift.training.training import Training
from gearshift.training.worker import stream_of

PATIENCE = 300.0  # seconds without an answer after which a worker is declared lost


class LocalEngine:
    """Workers in this process: one in the caller's thread, or several in separate threads."""

    name = "threads"

    def run(self, training: Training, observer: Observer) -> bool:
        while training.has_next_epoch:
            epoch = LocalEpoch(training, observer)
            try:
                if not epoch.run():
                    return False
            except (
                FloatingPointError
            ) as error:  # raised by a server; an error of a worker would only discard its batch
                raise NotFinite(f"{error}. Lower optimizer.embeddings.lr or optimizer.dense.lr") from error
            epoch.end_epoch()
        return True


class LocalEpoch(EpochHost):
    """One epoch in this process: the host of the loop that its workers compute in."""

    def __init__(self, training: Training, observer: Observer) -> None:
        super().__init__(training, observer)
        progress, learner = training.progress, training.learner
        observer.began(first_lease=0)
        coordinator = Coordinator(training.strategy, make_strategy, step=learner.server.step)
        self.shards = LocalShards(learner.server, learner.layout)
        self.replicas = EpochReplicas(training, self.shards, coordinator.work, observer.notify)
        self.epoch = Epoch[LocalPush](coordinator, self.shards, self, self._begin, self.observe)
        shuffle = (training.plan.seed, progress.epoch) if training.plan.shuffle else None
        learners = training.baseline.beside(learner) if progress.epoch == 0 else [learner]
        self.batches = LeaseBatches(
            lambda start, size: read_ahead(
                training.train.batches(size, start=start, shuffle=shuffle),
                learners,
                training.workers,
                cut=cuts(training.strategy),
            ),
            learner.find,
            position=progress.position,
            size=examples_at_once(training.strategy),
            ranges=[(first, count) for first, count in progress.open],
        )
        self._loop: InlineLoop | ThreadsLoop = InlineLoop(partial(self._compute, 0, learner), self.shards)

    def run(self) -> bool:
        """False if the run ends within this epoch."""
        threads = self.training.learner.worker.threads
        torch.set_num_threads(threads)
        try:
            with closing(self.batches), closing(self.shards):
                if self._stays_alone() and isinstance(self._loop, InlineLoop):
                    self._loop.run(self.epoch, self.batches, self._stays_alone)
                if not self.epoch.done:
                    self._loop = self._threads_loop(self.training.workers)
                    self._loop.run(self.epoch, self.handle_requests)
                    torch.set_num_threads(threads)  # workers have changed the number of the whole process
        finally:
            self.replicas.fold()
        self.clock.count()
        return not self.epoch.stopped

    def _threads_loop(self, workers: int) -> ThreadsLoop:
        def employ(worker: int) -> Compute:
            copy = self.training.learner.model_copy()

            def compute(begin: Begin, indexed: IndexedBatch) -> LocalPush | UnusableGradient:
                copy.use_threads(self._threads_each)
                return self._compute(worker, copy, begin, indexed)

            return compute

        return ThreadsLoop(
            workers,
            employ,
            self.shards,
            self.batches,
            patience=PATIENCE,
            notify=self.observer.notify,
            wake=self._wake,
        )

    @property
    def _threads_each(self) -> int:
        """The CPU threads of each of several workers. After a resize they are divided again."""
        return max(1, self.training.learner.worker.threads // self.training.workers)

    def _begin(self, begin: Begin) -> None:
        self._loop.begin(begin)

    def _compute(
        self, worker: int, on: Learner | ModelCopy, begin: Begin, indexed: IndexedBatch
    ) -> LocalPush | UnusableGradient:
        stream = stream_of(self.training.progress.epoch, begin.lease.first)
        since, pacer = time.monotonic(), self.training.pacer
        try:
            # A worker that is alone computes on the parameters themselves: there is nothing to predict.
            values = self._values(worker, begin) if isinstance(on, ModelCopy) else ()
            push = on.compute(indexed, stream, *values)
            if pacer is not None:
                pacer.pad(worker, begin.lease.count, since)
            return self.replicas.step(begin, push)
        except FloatingPointError as error:
            return UnusableGradient(f"{NOT_FINITE}: {error}")

    def _values(self, worker: int, begin: Begin) -> tuple[Tensor] | tuple[None, Tensor] | tuple[()]:
        """A replica's dense values, or extrapolated ones; nothing if the worker computes on those of the servers."""
        if replica := self.replicas.flat(worker):
            return replica
        extrapolated = self.shards.extrapolate(begin)
        return () if extrapolated is None else (None, extrapolated)

    def observe(self, event: Event, actions: list[Action]) -> None:
        super().observe(event, actions)
        self.replicas.observe(event, actions)

    def meet(self, number: int) -> bool:
        self.replicas.meet()
        return True

    def ended(self, leases: Sequence[Ended[LocalPush]]) -> None:
        measured = []
        for ended in leases:
            batch, push = self.batches.drop(ended.lease.first, ended.lease.count), ended.report
            if push is not None and self.training.progress.epoch == 0:  # like all progressive measures
                self.training.baseline.step(batch.indexed(), lr_scale=self.training.rates.last)
            report = None if push is None else measured_of(batch.batch, push)
            measured.append(Ended(ended.worker, ended.lease, report, ended.part))
        self._account(measured)
        self.replicas.ended(ended.lease.number for ended in leases)

    def stepped(self) -> bool:
        proceed = super().stepped()
        self.replicas.continue_steps()
        if not proceed:
            self._wake()
        return proceed

    def _wake(self) -> None:
        """Ends injected delays when the run ends."""
        self.replicas.release()
        if self.training.pacer is not None:
            self.training.pacer.close()

    def _stays_alone(self) -> bool:
        self.handle_requests()
        return self.training.workers == 1 and self.replicas.live is None

    def _position(self) -> tuple[int, list[list[int]]]:
        return self.batches.position, [
            list(r) for r in sorted([*self.epoch.leases.ranges(), *self.batches.pending])
        ]

    def _settle(self) -> bool:
        return self.replicas.settle()

    def _refresh(self) -> None:
        """Nothing to do: the shards step the learner's parameters themselves."""

    def _switch(self, name: str, strategy: Strategy, reason: str) -> int:
        work = self.epoch.coordinator.work
        adopted = len(work.flying) + len(work.waiting)
        self.replicas.switch(
            self.training.strategy, strategy, lambda: self.epoch.switch(name, asdict(strategy), reason)
        )
        self.batches.resize(examples_at_once(strategy))
        return adopted

    def _resize(self, workers: int) -> None:
        if isinstance(self._loop, ThreadsLoop):
            self._loop.resize(workers)
