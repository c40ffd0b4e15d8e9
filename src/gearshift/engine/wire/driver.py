"""The loop that runs a role over an endpoint: poll, decode, `handle`, send what the role left, `tick` every so often.

One thread does all of that; nobody else touches role or endpoint (`post` brings it work from other threads). A worker
computes in a thread of its own: torch and the core release the interpreter, so a batch of any length holds up neither
`Alive` nor what is said again, and an order to start anew arrives in the middle of it. Handing a batch over costs
some tens of microseconds. A computation that hangs must not look alive for ever: after `hang_after` the worker falls
silent, and the coordinator gives its leases to others.
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
from gearshift.engine.protocol.messages import COORDINATOR, Message
from gearshift.engine.protocol.shard import ShardRole
from gearshift.engine.protocol.worker import Job, WorkerRole
from gearshift.engine.wire.endpoint import Endpoint
from gearshift.engine.wire.keys import Contact
from gearshift.parameters.push import Push
from gearshift.training.ended import BatchMeasures

LAST_BATCH = 10.0  # seconds that a computation may take to end when the worker does
KEPT = 1000  # messages
FAREWELL = 10.0  # seconds at most in which workers hear that it is over


@dataclass(frozen=True)
class Computed:
    parts: Sequence[Push]  # by shard, in memory that stays as it is
    content: BatchMeasures | None = None
    ring: int = 0  # whose sum has its dense part
    waited: float = 0.0  # seconds, for others in that ring: they say nothing of this worker


@dataclass(frozen=True)
class ComputeFailed:
    """There is no gradient that could be used."""

    reason: str


@dataclass(frozen=True)
class AllReduceFailed:
    """The ring of this work broke."""

    reason: str


ComputeResult = Computed | ComputeFailed | AllReduceFailed
Compute = Callable[[Job], ComputeResult]


Role = CoordinatorRole | ShardRole | WorkerRole


class RoleRunner(Protocol):
    """A role as the loop sees it."""

    @property
    def role(self) -> Role: ...
    def handle(self, message: Any) -> None: ...
    def tick(self) -> None: ...
    def over(self) -> bool: ...
    def busy(self) -> bool:
        """Whether it works while the loop waits."""

    def alarm(self) -> float:
        """When `ring` shall be called, by `time.monotonic`; inf: not at all."""

    def ring(self) -> None: ...

    def figures(self) -> dict[str, float]:
        """From any thread."""


class Driver:
    def __init__(
        self,
        endpoint: Endpoint,
        *,
        tick: float = 1.0,
        look: Callable[[], Iterable[Contact]] = lambda: (),
        tell: Callable[[str], None] = print,
        alone_after: float = 300.0,
        hang_after: float = 300.0,
    ) -> None:
        """`look` is asked every `tick` who is there; without the coordinator for `alone_after` seconds it gives up."""
        self.endpoint, self.interval, self.look, self.tell = endpoint, tick, look, tell
        self.alone_after, self.hang_after = alone_after, hang_after
        self._posted = queue.SimpleQueue[Callable[[], None]]()
        self._kept: deque[Message] = deque(
            maxlen=KEPT
        )  # heard in the middle of a turn; what is lost is said again
        self._due = 0.0
        self._cpu = 0.0  # that the loop has taken
        self._stopped = False
        self._runner: RoleRunner | None = None
        self._waited = 0.0  # seconds for others

    def post(self, do: Callable[[], None]) -> None:
        """From any thread: to be done between two messages."""
        self._posted.put(do)
        self.endpoint.wake()

    def stop(self) -> None:
        """From any thread."""
        self.post(self._stop)

    def run(self, role: Role, compute: Compute | None = None) -> None:
        """Until its work is over (a shard's never is) or it is stopped. A role or a computation that fails ends it."""
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

    def steer(self, runner: RoleRunner) -> None:
        """Runs the loop of this role to its end."""
        self._runner = runner
        self.send(runner.role)
        while not (self._stopped or runner.over()):
            self._turn(runner)
            self._cpu = time.thread_time()

    def _turn(self, runner: RoleRunner) -> None:
        while self._kept:  # before the clock: they may have waited for long
            runner.handle(self._kept.popleft())
            self.send(runner.role)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self.interval
            self._look_around()
            runner.tick()
            self.send(runner.role)
        for message in self._receive(runner, min(self._due, runner.alarm()) - time.monotonic()):
            runner.handle(message)
            self.send(runner.role)
        if time.monotonic() >= runner.alarm():
            runner.ring()
            self.send(runner.role)
        while not self._posted.empty():
            self._posted.get()()
            self.send(runner.role)

    def _receive(self, runner: RoleRunner | None, seconds: float) -> list[Message]:
        busy, began = runner is not None and runner.busy(), time.monotonic()
        found = self.endpoint.receive(seconds)
        self._waited += 0.0 if busy else time.monotonic() - began
        return found

    def figures(self) -> dict[str, float]:
        """What this process did since its start. From any thread."""
        own = self._runner.figures() if self._runner is not None else {}
        return {
            **self.endpoint.figures(),
            "waited_seconds": self._waited,
            "loop_cpu_seconds": self._cpu,
            **own,
        }

    def listen(self, take: Callable[[Message], bool], enough: Callable[[], bool]) -> None:
        """In the middle of a turn: for one tick, or until it is enough. What is not taken waits for its own turn."""
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
        self.endpoint.mend()
        for sentence in self.endpoint.news():
            self.tell(sentence)
        if self.endpoint.cut_off(COORDINATOR) > self.alone_after:
            raise ConnectionError(f"there was no connection to the coordinator for {self.alone_after:g} s")

    def _stop(self) -> None:
        self._stopped = True


class WithoutAlarm:
    """A role that acts only on a message or at a tick."""

    def alarm(self) -> float:
        return inf

    def ring(self) -> None:
        pass


class ShardRunner(WithoutAlarm):
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


class CoordinatorRunner(WithoutAlarm):
    """When the work is done it stays until nobody asks any more, so that every worker hears it."""

    def __init__(self, role: CoordinatorRole, interval: float) -> None:
        self.role, self._quiet = role, 2.5 * interval
        self._began = self._heard = self._awake = time.monotonic()
        self._done: float | None = None

    def handle(self, message: Any) -> None:
        self._heard = time.monotonic()
        self.role.handle(message, self._now())

    def tick(self) -> None:
        self.role.tick(self._now())

    def _now(self) -> float:
        """Time in which we slept (a frozen process, a long evaluation) does not count: we heard nobody then."""
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
        return self.role.figures()


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
        self._since = 0.0  # it computes
        self._batches, self._seconds = 0, 0.0  # computed, and in what time
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

    def alarm(self) -> float:
        due = self.role.replicas.due
        return inf if due is None else due

    def ring(self) -> None:
        self.role.wake()

    def over(self) -> bool:
        return self.role.state == "over"

    def busy(self) -> bool:
        return self.role.job is not None

    def figures(self) -> dict[str, float]:
        found, counts = (
            {"batches": self._batches, "computing_seconds": self._seconds},
            self.role.replicas.counts,
        )
        if counts.batches:
            found |= {"exchanges": counts.exchanges, "exchanged_bytes": counts.bytes}
        return found

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join(LAST_BATCH)

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job is not self.role.job:
                continue  # the worker had to start anew before this one's turn came
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
            case Computed(parts, content, ring):
                self.role.computed(job, parts, content, seconds, ring)
            case ComputeFailed(reason):
                self.role.failed(job, reason)
            case AllReduceFailed(reason):
                self.role.broke(job, reason)
            case _:
                raise result
