"""Several workers in this process, a thread each, around its shards: torch and the row store release the GIL.

Workers share nothing but the shards: each has a copy of the model, pulls the dense parameters and the rows it needs
once the shards have the version it must see, leaves its gradient with them and reports to the one thread that runs
`Epoch` (the caller's), which alone gives orders to the shards. A worker that raises ends the run with its error,
unless `spare` workers may be lost; one that hangs past `patience` is fenced: its lease is given to others and
whatever it sends later is refused. `resize` lets workers join at once, and leave when they have ended their batch.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gearshift.embedding.lookup import IndexedBatch
from gearshift.engine.epoch import Epoch, UnusableGradient
from gearshift.engine.lease_batches import LeaseBatches
from gearshift.errors import brief
from gearshift.parameters.local_shards import LocalShards
from gearshift.parameters.push import Push
from gearshift.sync.messages import Begin

Compute = Callable[[Begin, IndexedBatch], Push | UnusableGradient]
Employ = Callable[[int], Compute]  # what a worker needs, made in its own thread and gone with it
TICK = 0.2  # seconds between looks at who hangs
LAST_BATCH = 60.0  # seconds in which workers may end the batch they have when the run ends


@dataclass(frozen=True)
class WorkerReport:
    """What a worker sends: its gradient, or why it has none."""

    worker: int
    begin: Begin
    push: Push | UnusableGradient | None
    seconds: float = 0.0
    version: int = 0  # the oldest step that its pull may have seen
    error: BaseException | None = None


class WorkerThreads:
    """The worker threads: `tell` gives one its work, `reports` has what comes back."""

    def __init__(self, employ: Employ, shards: LocalShards, threads_each: int) -> None:
        self.reports: queue.Queue[WorkerReport] = queue.Queue()
        self._taken: dict[int, queue.Queue[bool]] = {}
        self._work: dict[int, queue.Queue[tuple[Begin, IndexedBatch] | None]] = {}
        self._employ, self._shards, self._threads_each = employ, shards, threads_each
        self._threads: dict[int, threading.Thread] = {}

    def hire(self, worker: int) -> None:
        self._threads = {w: thread for w, thread in self._threads.items() if thread.is_alive()}
        self._taken[worker], self._work[worker] = queue.Queue(), queue.Queue()
        name = f"gearshift-worker-{worker}"
        self._threads[worker] = threading.Thread(target=self._loop, args=(worker,), name=name, daemon=True)
        self._threads[worker].start()

    def dismiss(self, worker: int) -> None:
        """It ends when it has nothing to do; nothing will be told to it any more."""
        self._work.pop(worker).put(None)
        del self._taken[worker]

    def tell(self, begin: Begin, found: IndexedBatch) -> None:
        self._work[begin.worker].put((begin, found))

    def release(self, worker: int) -> None:
        """The worker's gradient was taken; it may use its buffers again."""
        self._taken[worker].put(True)

    def close(self, fenced: set[int]) -> list[int]:
        """Ends the threads; those that do not end in time."""
        for worker, work in self._work.items():
            work.put(None)
            self._taken[worker].put(False)
        until = time.monotonic() + LAST_BATCH
        for worker, thread in self._threads.items():
            if worker not in fenced:
                thread.join(max(0.0, until - time.monotonic()))
        return [w for w, thread in self._threads.items() if w not in fenced and thread.is_alive()]

    def _loop(self, worker: int) -> None:
        torch.set_num_threads(self._threads_each)
        work, taken = self._work[worker], self._taken[worker]
        compute: Compute | None = None
        while (task := work.get()) is not None:
            (begin, found), since = task, time.perf_counter()
            try:
                version = self._shards.wait_for(begin.version)
                compute = compute or self._employ(worker)
                push = compute(begin, found)
                if isinstance(push, Push):
                    self._shards.push(begin.lease.number, push)
                report = WorkerReport(worker, begin, push, time.perf_counter() - since, version)
            except BaseException as error:
                report = WorkerReport(worker, begin, None, error=error)
            self.reports.put(report)
            if not taken.get():
                return


class ThreadsEngine:
    def __init__(
        self,
        workers: int,
        employ: Employ,
        shards: LocalShards,
        *,
        threads_each: int = 1,
        patience: float = 300.0,
        spare: int = 0,
        tell: Callable[[str], None] = print,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.workers, self.employ, self.shards, self.threads_each = workers, employ, shards, threads_each
        self.patience, self.spare, self.tell, self.wake = patience, spare, tell, wake

    def run(self, epoch: Epoch[Push], batches: LeaseBatches, before_step: Callable[[], None]) -> None:
        """To the end of the data, or until the host says stop."""
        threads = WorkerThreads(self.employ, self.shards, self.threads_each)
        self._busy: dict[int, float] = {}  # since when
        self._fenced: set[int] = set()
        self._here: dict[int, None] = {}  # who works, in the order of coming
        self._leaving: set[int] = set()
        self._looked = time.monotonic()
        self._missing = 0  # fenced since the last resize: nobody takes their place
        self._numbers = itertools.count()

        def tell(begin: Begin) -> None:
            self._busy[begin.worker] = time.monotonic()
            threads.tell(begin, batches[begin.lease.first])

        epoch.tell = tell
        try:
            while not epoch.done:
                before_step()
                self._adjust_workers(epoch, threads)
                if epoch.done:
                    break
                self._supply(epoch, batches)
                self._receive(epoch, threads)
        except BaseException:
            self.wake()
            raise
        finally:
            self.shards.close()  # nobody waits for a step that will not come
            for worker in threads.close(self._fenced):
                self.tell(f"worker {worker} does not end; it is left behind")

    def resize(self, workers: int) -> None:
        """So many shall work: newcomers begin before the next step, the newest leave when they end their batch."""
        self.workers, self._missing = workers, 0

    def _adjust_workers(self, epoch: Epoch[Push], threads: WorkerThreads) -> None:
        staying = [worker for worker in self._here if worker not in self._leaving]
        for _ in range(len(staying) + self._missing, self.workers):
            worker = next(self._numbers)
            threads.hire(worker)
            self._here[worker] = None
            epoch.joined(worker)
            epoch.requested(worker)
        for worker in staying[self.workers :]:
            self._leaving.add(worker)
            if worker not in self._busy:
                self._leave(epoch, worker, threads)

    def _leave(self, epoch: Epoch[Push], worker: int, threads: WorkerThreads) -> None:
        threads.dismiss(worker)
        self._leaving.remove(worker)
        del self._here[worker]
        epoch.lost(worker, f"worker {worker} left")

    def _supply(self, epoch: Epoch[Push], batches: LeaseBatches) -> None:
        while epoch.hungry:
            found = next(batches, None)
            if found is None:
                epoch.exhausted()
            else:
                epoch.supply(found.batch.first, len(found.batch))

    def _receive(self, epoch: Epoch[Push], threads: WorkerThreads) -> None:
        """One report, or a look at who hangs; nothing if nobody works."""
        if not self._busy:
            if not epoch.done:
                raise epoch.stuck()
            return
        if time.monotonic() - self._looked > TICK:
            self._fence_the_hanging(epoch)
        try:
            report = threads.reports.get(timeout=TICK)
        except queue.Empty:
            return
        self._take(epoch, report)
        threads.release(report.worker)
        if report.worker in self._leaving:
            self._leave(epoch, report.worker, threads)

    def _take(self, epoch: Epoch[Push], report: WorkerReport) -> None:
        worker = report.worker
        if worker in self._fenced:
            return
        del self._busy[worker]
        if report.push is None:
            assert report.error is not None
            if len(self._fenced) >= self.spare:
                raise report.error
            self._fence(epoch, worker, f"worker {worker} failed: {brief(report.error)}")
            return
        lease = report.begin.lease.number
        if isinstance(report.push, UnusableGradient):
            epoch.refused(worker, lease, report.push.reason)
        else:
            epoch.arrived(worker, lease, report.push, report.seconds, report.version)
            self.shards.keep(lease)
        if not epoch.done and worker not in self._leaving:
            epoch.requested(worker)

    def _fence_the_hanging(self, epoch: Epoch[Push]) -> None:
        now = self._looked = time.monotonic()
        for worker, since in list(self._busy.items()):
            if now - since > self.patience:
                del self._busy[worker]
                self._fence(epoch, worker, f"worker {worker} has not answered for {self.patience:g} s")

    def _fence(self, epoch: Epoch[Push], worker: int, reason: str) -> None:
        self._fenced.add(worker)
        self._missing += 1
        del self._here[worker]
        self._leaving.discard(worker)
        self.tell(f"{reason}; its examples go to the others")
        epoch.lost(worker, reason)
        if self._leaving == self._here.keys():
            self._leaving.clear()  # whoever was about to go is needed now
        if not self._here:
            raise RuntimeError(f"no worker is left: {reason}")
