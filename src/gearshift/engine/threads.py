"""Several workers in this process, a thread each, around its shards: torch and the row store release the GIL.

Workers share nothing but the shards: each has a copy of the model, pulls the dense parameters and the rows it needs
once the shards have the version it must see, pushes its gradient to them and reports to the one thread that runs
`Epoch` (the caller's), which alone gives orders to the shards. A worker that raises ends the run with its error. A
worker that hangs longer than `patience` is fenced: its lease is reissued and anything it sends later is refused. After
`resize`, new workers join at once; surplus ones leave after their batch.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from gearshift.embedding.lookup import IndexedBatch
from gearshift.engine.epoch import Epoch, UnusableGradient
from gearshift.engine.lease_batches import LeaseBatch, LeaseBatches, supply_hungry
from gearshift.engine.strategy_failures import stuck
from gearshift.parameters.local_shards import LocalShards
from gearshift.parameters.push import LocalPush
from gearshift.sync.events import Begin

Compute = Callable[[Begin, IndexedBatch], LocalPush | UnusableGradient]
Employ = Callable[[int], Compute]  # creates a worker's state, in the worker's thread
TICK = 0.2  # interval of checks for hanging workers
LAST_BATCH = 60.0  # time for workers to finish their batch when the run ends


@dataclass(frozen=True)
class WorkerReport:
    """A worker's report: its gradient, or why it has none."""

    worker: int
    begin: Begin
    push: LocalPush | UnusableGradient | None
    seconds: float = 0.0
    version: int = 0  # the oldest step that its pull can have read
    error: BaseException | None = None


class WorkerThreads:
    """The worker threads: `assign` gives a worker its work; results arrive in `reports`."""

    def __init__(self, employ: Employ, shards: LocalShards) -> None:
        self.reports: queue.Queue[WorkerReport] = queue.Queue()
        self._taken: dict[int, queue.Queue[bool]] = {}
        self._work: dict[int, queue.Queue[tuple[Begin, LeaseBatch] | None]] = {}
        self._employ, self._shards = employ, shards
        self._threads: dict[int, threading.Thread] = {}

    def hire(self, worker: int) -> None:
        self._threads = {w: thread for w, thread in self._threads.items() if thread.is_alive()}
        self._taken[worker], self._work[worker] = queue.Queue(), queue.Queue()
        name = f"gearshift-worker-{worker}"
        self._threads[worker] = threading.Thread(target=self._loop, args=(worker,), name=name, daemon=True)
        self._threads[worker].start()

    def dismiss(self, worker: int) -> None:
        """Ends this worker when it is idle. It gets no more work."""
        self._work.pop(worker).put(None)
        del self._taken[worker]

    def assign(self, begin: Begin, batch: LeaseBatch) -> None:
        self._work[begin.worker].put((begin, batch))

    def release(self, worker: int) -> None:
        """The worker's gradient has been taken; it may reuse its buffers."""
        self._taken[worker].put(True)

    def close(self, fenced: set[int]) -> list[int]:
        """Ends the threads. Returns the workers that did not end in time."""
        for worker, work in self._work.items():
            work.put(None)
            self._taken[worker].put(False)
        until = time.monotonic() + LAST_BATCH
        for worker, thread in self._threads.items():
            if worker not in fenced:
                thread.join(max(0.0, until - time.monotonic()))
        return [w for w, thread in self._threads.items() if w not in fenced and thread.is_alive()]

    def _loop(self, worker: int) -> None:
        work, taken = self._work[worker], self._taken[worker]
        compute: Compute | None = None
        while (task := work.get()) is not None:
            (begin, batch), since = task, time.perf_counter()
            try:
                indexed = batch.indexed()
                version = self._shards.wait_for(begin.version)
                compute = compute or self._employ(worker)
                push = compute(begin, indexed)
                if not isinstance(push, UnusableGradient):
                    self._shards.push(begin.lease.number, push)
                report = WorkerReport(worker, begin, push, time.perf_counter() - since, version)
            except BaseException as error:
                report = WorkerReport(worker, begin, None, error=error)
            self.reports.put(report)
            if not taken.get():
                return


class ThreadsLoop:
    """Runs the leases of an epoch."""

    def __init__(
        self,
        workers: int,
        employ: Employ,
        shards: LocalShards,
        batches: LeaseBatches,
        *,
        patience: float = 300.0,
        notify: Callable[[str], None] = print,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.workers, self.shards, self._batches = workers, shards, batches
        self.patience, self.notify, self.wake = patience, notify, wake
        self._threads = WorkerThreads(employ, shards)
        self._busy: dict[int, float] = {}  # start time of the current batch, by worker
        self._fenced: set[int] = set()
        self._present: dict[int, None] = {}  # workers, in the order in which they joined
        self._leaving: set[int] = set()
        self._looked = time.monotonic()
        self._missing = 0  # fenced since the last resize; they are not replaced
        self._numbers = itertools.count()

    def begin(self, begin: Begin) -> None:
        self._busy[begin.worker] = time.monotonic()
        self._threads.assign(begin, self._batches.lease(begin.lease.first, begin.lease.count))

    def run(self, epoch: Epoch[LocalPush], before_step: Callable[[], None]) -> None:
        """Runs to the end of the data, or until the host stops it."""
        try:
            while not epoch.done:
                before_step()
                self._adjust_workers(epoch)
                if epoch.done:
                    break
                supply_hungry(epoch, self._batches)
                self._receive(epoch)
        except BaseException:
            self.wake()
            raise
        finally:
            self.shards.close()  # releases workers that wait for a step that will not come
            for worker in self._threads.close(self._fenced):
                self.notify(f"worker {worker} does not end; the run ends without it")

    def resize(self, workers: int) -> None:
        """Sets the number of workers: new ones join before the next step, the newest leave after their batch."""
        self.workers, self._missing = workers, 0

    def _adjust_workers(self, epoch: Epoch[LocalPush]) -> None:
        staying = [worker for worker in self._present if worker not in self._leaving]
        for _ in range(len(staying) + self._missing, self.workers):
            worker = next(self._numbers)
            self._threads.hire(worker)
            self._present[worker] = None
            epoch.joined(worker)
            epoch.requested(worker)
        for worker in staying[self.workers :]:
            self._leaving.add(worker)
            if worker not in self._busy:
                self._leave(epoch, worker)

    def _leave(self, epoch: Epoch[LocalPush], worker: int) -> None:
        self._threads.dismiss(worker)
        self._leaving.remove(worker)
        del self._present[worker]
        epoch.lost(worker, f"worker {worker} left")

    def _receive(self, epoch: Epoch[LocalPush]) -> None:
        """Handles one report and fences hanging workers; does nothing if no worker is busy."""
        if not self._busy:
            if not epoch.done:
                raise stuck(epoch.coordinator)
            return
        if time.monotonic() - self._looked > TICK:
            self._fence_the_hanging(epoch)
        wakes_in = epoch.wakes_in
        timeout = TICK if wakes_in is None else min(TICK, max(wakes_in, 0.0))
        try:
            report = self._threads.reports.get(timeout=timeout)
        except queue.Empty:
            epoch.time_passed()
            return
        self._take(epoch, report)
        self._threads.release(report.worker)
        if report.worker in self._leaving:
            self._leave(epoch, report.worker)

    def _take(self, epoch: Epoch[LocalPush], report: WorkerReport) -> None:
        worker = report.worker
        if worker in self._fenced:
            return
        del self._busy[worker]
        if report.push is None:
            assert report.error is not None
            raise report.error
        lease = report.begin.lease.number
        if isinstance(report.push, UnusableGradient):
            epoch.refused(worker, lease, report.push.reason)
        else:
            epoch.arrived(worker, lease, report.push, report.seconds, report.version)
            self.shards.keep(lease)
        if not epoch.done and worker not in self._leaving:
            epoch.requested(worker)

    def _fence_the_hanging(self, epoch: Epoch[LocalPush]) -> None:
        now = self._looked = time.monotonic()
        for worker, since in list(self._busy.items()):
            if now - since > self.patience:
                del self._busy[worker]
                self._fence(epoch, worker, f"worker {worker} has not answered for {self.patience:g} s")

    def _fence(self, epoch: Epoch[LocalPush], worker: int, reason: str) -> None:
        self._fenced.add(worker)
        self._missing += 1
        del self._present[worker]
        self._leaving.discard(worker)
        self.notify(f"{reason}; its examples go to the others")
        epoch.lost(worker, reason)
        if self._leaving == self._present.keys():
            self._leaving.clear()  # workers that were about to leave are needed now
        if not self._present:
            raise RuntimeError(f"no worker is left: {reason}")
