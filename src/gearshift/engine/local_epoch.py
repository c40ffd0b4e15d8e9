"""One epoch of a training under way: gives an engine its workers and batches, and hears what it did.

Between two steps it measures time, evaluates, switches the strategy if somebody asked, and lets the observer look.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial

import torch

from gearshift.embedding.lookup import IndexedBatch
from gearshift.engine import inline
from gearshift.engine.epoch import Epoch, UnusableGradient
from gearshift.engine.lease_batches import LeaseBatches
from gearshift.engine.local_replicas import EpochReplicas
from gearshift.engine.threads import Compute, ThreadsEngine
from gearshift.parameters.local_shards import LocalShards
from gearshift.parameters.push import Push
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.messages import Action, Begin, Event
from gearshift.sync.registry import make_strategy
from gearshift.sync.strategy import Strategy
from gearshift.training.ended import Ended, measured_of
from gearshift.training.engine import NotFinite, Observer
from gearshift.training.epoch_host import NOT_FINITE, EpochHost
from gearshift.training.learner import Learner, Replica
from gearshift.training.training import Training
from gearshift.training.worker import stream_of

PATIENCE = 300.0  # seconds without an answer after which a worker is given up


class LocalEngine:
    """Workers in this process: one in the caller's thread, several in threads of their own."""

    name = "threads"

    def run(self, training: Training, observer: Observer) -> bool:
        while training.goes_on:
            try:
                if not LocalEpoch(training, observer).run():
                    return False
            except FloatingPointError as error:  # of a server: a worker's is a batch to leave out
                raise NotFinite(f"{error}. Lower optimizer.embeddings.lr or optimizer.dense.lr") from error
            training.next_epoch(observer)
        return True

    def refresh(self) -> None:
        pass

    def check_replicas(self, strategy: Strategy) -> None:
        pass


class LocalEpoch(EpochHost):
    """One epoch under way in this process: the host of its engine."""

    def __init__(self, training: Training, observer: Observer) -> None:
        super().__init__(training, observer)
        progress, learner = training.progress, training.learner
        observer.began()
        coordinator = Coordinator(training.strategy, make_strategy, step=learner.server.step)
        self.shards = LocalShards(learner.server, learner.layout)
        self.replicas = EpochReplicas(training, self.shards, coordinator.work, observer.tell)
        training.settle = self.replicas.settle
        self.epoch = Epoch[Push](coordinator, self.shards, self, self._observe)
        self.batches = LeaseBatches(
            lambda start, size: training.found(progress.epoch, start, size),
            position=progress.position,
            batch=training.strategy.batch,
            ranges=[(first, count) for first, count in progress.open],
        )
        self._engine: ThreadsEngine | None = None

    def run(self) -> bool:
        """False if the run ends within this epoch."""
        threads = self.training.learner.worker.threads
        torch.set_num_threads(threads)
        try:
            with closing(self.batches), closing(self.shards):
                if self._stays_alone():
                    inline.run(self.epoch, self.shards, self.batches, self._compute, self._stays_alone)
                if not self.epoch.done:
                    self._engine = self._threads_engine(self.training.workers)
                    self._engine.run(self.epoch, self.batches, self.handle_requests)
                    torch.set_num_threads(threads)  # the workers' own number stays behind as the process's
        finally:
            self.replicas.fold()
        self._tick()
        return not self.epoch.stopped

    def _threads_engine(self, workers: int) -> ThreadsEngine:
        threads_each = max(1, self.training.learner.worker.threads // workers)

        def employ(worker: int) -> Compute:
            return partial(self._guarded, worker, self.training.learner.replica(threads_each))

        return ThreadsEngine(
            workers,
            employ,
            self.shards,
            threads_each=threads_each,
            patience=PATIENCE,
            tell=self.observer.tell,
            wake=self._wake,
        )

    def _compute(self, begin: Begin, found: IndexedBatch) -> Push | UnusableGradient:
        return self._guarded(0, self.training.learner, begin, found)

    def _guarded(
        self, worker: int, on: Learner | Replica, begin: Begin, found: IndexedBatch
    ) -> Push | UnusableGradient:
        stream = stream_of(self.training.progress.epoch, begin.lease.first)
        since, pacer = time.monotonic(), self.training.pacer
        try:
            push = on.compute(found, stream, *self.replicas.flat(worker))
            if pacer is not None:
                pacer.pad(worker, begin.lease.count, since)
            return self.replicas.step(begin, push)
        except FloatingPointError as error:
            return UnusableGradient(f"{NOT_FINITE}: {error}")

    def _observe(self, event: Event, actions: list[Action]) -> None:
        self.training.observe(event, actions)
        self.replicas.observe(event, actions)

    def meet(self, number: int) -> bool:
        self.replicas.meet()
        return True

    def ended(self, leases: Sequence[Ended[Push]]) -> None:
        measured = []
        for ended in leases:
            found, push = self.batches.drop(ended.lease.first), ended.report
            if push is not None:
                self.training.step_baseline(found)
            report = None if push is None else measured_of(found.batch, push)
            measured.append(Ended(ended.worker, ended.lease, report, ended.part))
        self._account(measured)
        self.replicas.ended(ended.lease.number for ended in leases)

    def stepped(self) -> bool:
        go_on = super().stepped()
        self.replicas.go_on()
        if not go_on:
            self._wake()
        return go_on

    def _wake(self) -> None:
        """Nobody waits on purpose any more: the run ends."""
        self.replicas.release()
        if self.training.pacer is not None:
            self.training.pacer.close()

    def _stays_alone(self) -> bool:
        self.handle_requests()
        return self.training.workers == 1 and self.replicas.live is None

    def _position(self) -> tuple[int, list[list[int]]]:
        return self.batches.position, [
            list(r) for r in sorted([*self.epoch.open_ranges(), *self.batches.pending])
        ]

    def _under_way(self) -> int:
        work = self.epoch.coordinator.work
        return len(work.flying) + len(work.waiting)

    def _switch(self, name: str, strategy: Strategy, reason: str) -> None:
        self.replicas.switch(
            self.training.strategy, strategy, lambda: self.epoch.switch(name, asdict(strategy), reason)
        )
        self.batches.resize(strategy.batch)

    def _resize(self, workers: int) -> None:
        if self._engine is not None:
            self._engine.resize(workers)
