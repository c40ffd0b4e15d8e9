"""The loop that runs a role over an endpoint: poll, decode, `handle`, send the role's messages, and `tick` regularly.

One thread does all of this; no other thread touches role or endpoint (`post` hands it work from other threads). A
worker computes in a separate thread: torch and the core release the GIL, so a long batch delays neither heartbeats nor
resends, and a request to rejoin arrives during the computation. Handing over a batch costs some tens of microseconds. A
computation that hangs must not look alive forever: after `hang_after` the worker stops its heartbeats, and the
coordinator reissues its leases.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Protocol

from gearshift.engine.protocol.coordinator import CoordinatorRole
from gearshift.engine.protocol.coordinator_figures import coordinator_figures
from gearshift.engine.protocol.messages import COORDINATOR, Message
from gearshift.engine.protocol.relay import RelayRole
from gearshift.engine.protocol.shard import ShardRole
from gearshift.engine.protocol.worker import Job, WorkerRole
from gearshift.engine.wire.endpoint import Endpoint
from gearshift.engine.wire.keys import Contact
from gearshift.parameters.push import ShardPush
from gearshift.training.ended import BatchMeasures

LAST_BATCH = 10.0  # time for a computation to finish when the worker ends
KEPT = 1000  # messages
FAREWELL = 10.0  # maximum time for workers to be told that the run has ended


@dataclass(frozen=True)
class Computed:
    parts: Sequence[ShardPush]  # by shard, in memory that does not change
    content: BatchMeasures | None = None
    waited: float = 0.0  # seconds spent waiting for others in its all-reduce group


@dataclass(frozen=True)
class ComputeFailed:
    """There is no usable gradient."""

    reason: str


@dataclass(frozen=True)
class AllReduceFailed:
    """The all-reduce group of this lease has no sum."""

    reason: str


ComputeResult = Computed | ComputeFailed | AllReduceFailed
Compute = Callable[[Job], ComputeResult]


Role = CoordinatorRole | ShardRole | WorkerRole | RelayRole


class RoleRunner(Protocol):
    """A role as the loop sees it."""

    @property
    def role(self) -> Role: ...
    def handle(self, message: Any) -> None: ...
    def tick(self) -> None: ...
    def over(self) -> bool: ...
    def busy(self) -> bool:
        """Whether the role is computing while the loop waits."""

    def wake_at(self) -> float:
        """The `time.monotonic` time at which to call `wake`; inf: never."""

    def wake(self) -> None: ...

    def figures(self) -> dict[str, float]:
        """May be called from any thread."""


class Driver:
    def __init__(
        self,
        endpoint: Endpoint,
        *,
        tick: float = 1.0,
        look: Callable[[], Iterable[Contact]] = lambda: (),
        notify: Callable[[str], None] = print,
        alone_after: float = 300.0,
        hang_after: float = 300.0,
    ) -> None:
        """`look` returns the known contacts. Raises after `alone_after` seconds without the coordinator."""
        self.endpoint, self.interval, self.look, self.notify = endpoint, tick, look, notify
        self.alone_after, self.hang_after = alone_after, hang_after
        self._posted = queue.SimpleQueue[Callable[[], None]]()
        self._kept: deque[Message] = deque(
            maxlen=KEPT
        )  # received in the middle of a turn; messages that do not fit are dropped and resent
        self._due = 0.0
        self._cpu = 0.0  # CPU seconds of the loop
        self._stopped = False
        self._runner: RoleRunner | None = None
        self._waited = 0.0  # idle seconds, spent waiting for other processes

    def post(self, do: Callable[[], None]) -> None:
        """Runs `do` in the loop, between two messages. May be called from any thread."""
        self._posted.put(do)
        self.endpoint.wake()

    def stop(self) -> None:
        """May be called from any thread."""
        self.post(self._stop)

    def run(self, role: Role, compute: Compute | None = None) -> None:
        """Runs until the work is over (a shard's never is) or it is stopped; raises errors of role and computation."""
        match role:
            case WorkerRole():
                assert compute is not None, "a worker computes"
                runner = WorkerRunner(role, compute, self.post, self.hang_after)
                try:
                    self.steer(runner)
                finally:
                    runner.close()
            case CoordinatorRole():
                self.steer(CoordinatorRunner(role, self.interval))
            case ShardRole():
                self.steer(ShardRunner(role))
            case RelayRole():
                self.steer(RelayRunner(role))

    def steer(self, runner: RoleRunner) -> None:
        """Runs the loop of this role to its end."""
        self._runner = runner
        self.send(runner.role)
        while not (self._stopped or runner.over()):
            self._turn(runner)
            self._cpu = time.thread_time()

    def _turn(self, runner: RoleRunner) -> None:
        while self._kept:  # handled before the timers, because they may have waited for a long time
            runner.handle(self._kept.popleft())
            self.send(runner.role)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self.interval
            self._look_around()
            runner.tick()
            self.send(runner.role)
        for message in self._receive(runner, min(self._due, runner.wake_at()) - time.monotonic()):
            runner.handle(message)
            self.send(runner.role)
        if time.monotonic() >= runner.wake_at():
            runner.wake()
            self.send(runner.role)
        while not self._posted.empty():
            self._posted.get()()
            self.send(runner.role)

    def _receive(self, runner: RoleRunner | None, seconds: float) -> list[Message]:
        busy, began = runner is not None and runner.busy(), time.monotonic()
        messages = self.endpoint.receive(seconds)
        self._waited += 0.0 if busy else time.monotonic() - began
        return messages

    def figures(self) -> dict[str, float]:
        """Metrics of this process since its start. May be called from any thread."""
        figures = self._runner.figures() if self._runner is not None else {}
        return {
            **self.endpoint.counts.figures(),
            "waited_seconds": self._waited,
            "loop_cpu_seconds": self._cpu,
            **figures,
        }

    def listen(self, take: Callable[[Message], bool], enough: Callable[[], bool]) -> None:
        """Receives in the middle of a turn, for one tick or until `enough`. Other messages wait for the next turn."""
        until = time.monotonic() + self.interval
        while not enough() and (left := until - time.monotonic()) > 0:
            for message in self._receive(self._runner, left):
                if not take(message):
                    self._kept.append(message)
        if not enough():
            self._look_around()

    def send(self, role: Role) -> None:
        out, role.out = role.out, []
        for to, message in out:
            self.endpoint.send(to, message)

    def _look_around(self) -> None:
        self.endpoint.learn(self.look())
        self.endpoint.connections.mend()
        for sentence in self.endpoint.counts.news():
            self.notify(sentence)
        if self.endpoint.connections.cut_off(COORDINATOR) > self.alone_after:
            raise ConnectionError(f"there was no connection to the coordinator for {self.alone_after:g} s")

    def _stop(self) -> None:
        self._stopped = True


class NeverWoken:
    """A role that acts only on a message or at a tick."""

    def wake_at(self) -> float:
        return inf

    def wake(self) -> None:
        pass


class ShardRunner(NeverWoken):
    def __init__(self, role: ShardRole) -> None:
        self.role = role

    def handle(self, message: Any) -> None:
        self.role.handle(message)

    def tick(self) -> None:
        self.role.tick()

    def over(self) -> bool:
        return False

    def busy(self) -> bool:
        return False

    def figures(self) -> dict[str, float]:
        return self.role.figures()


class RelayRunner(NeverWoken):
    """Ends when its workers are gone."""

    def __init__(self, role: RelayRole) -> None:
        self.role = role

    def handle(self, message: Any) -> None:
        self.role.handle(message)

    def tick(self) -> None:
        self.role.tick()

    def over(self) -> bool:
        return self.role.deserted

    def busy(self) -> bool:
        return False

    def figures(self) -> dict[str, float]:
        return self.role.figures()


class CoordinatorRunner:
    """After the end of the work the loop continues until no worker sends requests, so that all of them are notified."""

    def __init__(self, role: CoordinatorRole, interval: float) -> None:
        self.role, self._quiet = role, 2.5 * interval
        self._began = self._heard = self._awake = time.monotonic()
        self._done: float | None = None

    def handle(self, message: Any) -> None:
        self._heard = time.monotonic()
        self.role.handle(message, self._now())

    def tick(self) -> None:
        self.role.tick(self._now())

    def wake_at(self) -> float:
        wakes_in = self.role.wakes_in(self._now())
        return inf if wakes_in is None else self._awake + wakes_in

    def wake(self) -> None:
        self.role.time_passed(self._now())

    def _now(self) -> float:
        """Time in which this process received nothing (frozen, or in a long evaluation) does not count."""
        now = time.monotonic()
        if (slept := now - self._awake) > self.role.patience / 2:
            self._began += slept
        self._awake = now
        return now - self._began

    def over(self) -> bool:
        now = time.monotonic()
        if not self.role.over:
            self._done = None
            return False
        self._done = self._done or now
        return now - self._done > FAREWELL or now - max(self._heard, self._done) > self._quiet

    def busy(self) -> bool:
        return False

    def figures(self) -> dict[str, float]:
        return coordinator_figures(self.role)


class WorkerRunner:
    def __init__(
        self,
        role: WorkerRole,
        compute: Compute,
        post: Callable[[Callable[[], None]], None],
        hang_after: float,
    ) -> None:
        self.role, self._compute, self._post, self._hang_after = role, compute, post, hang_after
        self._job: Job | None = None
        self._since = 0.0  # the start of the current computation
        self._batches, self._seconds = 0, 0.0  # number of batches computed, and the total time
        self._jobs = queue.SimpleQueue[Job | None]()
        self._thread = threading.Thread(target=self._loop, name="gearshift-compute", daemon=True)
        self._thread.start()

    def handle(self, message: Any) -> None:
        self.role.handle(message)
        if self.role.job is not self._job:
            self._job, self._since = self.role.job, time.monotonic()
            if self._job is not None:
                self._jobs.put(self._job)

    def tick(self) -> None:
        if self.role.job is None or time.monotonic() - self._since < self._hang_after:
            self.role.tick()

    def wake_at(self) -> float:
        due = self.role.replicas.due
        return inf if due is None else due

    def wake(self) -> None:
        self.role.wake()

    def over(self) -> bool:
        return self.role.state == "over"

    def busy(self) -> bool:
        return self.role.job is not None

    def figures(self) -> dict[str, float]:
        figures, counts = (
            {"batches": self._batches, "computing_seconds": self._seconds},
            self.role.replicas.held.counts,
        )
        if counts.batches:
            figures |= {"exchanges": counts.exchanges, "exchanged_bytes": counts.bytes}
        return figures

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join(LAST_BATCH)

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job is not self.role.job:
                continue  # the worker had to rejoin before this job's turn came
            began = time.perf_counter()
            try:
                result: ComputeResult | BaseException = self._compute(job)
            except BaseException as error:
                result = error
            self._post(partial(self._done, job, result, time.perf_counter() - began))

    def _done(self, job: Job, result: ComputeResult | BaseException, seconds: float) -> None:
        seconds -= result.waited if isinstance(result, Computed) else 0.0
        self._batches, self._seconds = self._batches + 1, self._seconds + seconds
        match result:
            case Computed(parts, content):
                self.role.computed(job, parts, content, seconds)
            case ComputeFailed(reason):
                self.role.failed(job, reason)
            case AllReduceFailed(reason):
                self.role.broke(job, reason)
            case _:
                raise result
