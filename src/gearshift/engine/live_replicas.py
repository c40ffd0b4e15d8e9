"""Replicas shared by the threads of one process: workers step them, the deciding thread evaluates and merges them.

Actions that must not overlap with a step (a merge in the training loop, an evaluation of the mean, a switch) close the
`PauseGate`, and wait until the threads inside have left. Background exchanges are in `shadow_threads.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor

from gearshift.engine.shadow_threads import ShadowThreads
from gearshift.parameters.push import LocalPush, Push
from gearshift.parameters.replicas.group import Replicas
from gearshift.sync.exchange import Background, Choices, EverySteps


class PauseGate:
    """Many threads may be inside while it is open; one thread closes it and opens it again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self.shut = False

    def close(self) -> None:
        """Closes the gate. Returns when no thread is inside any more."""
        with self._changed:
            self.shut = True
            self._changed.wait_for(lambda: not self._inside)

    def open(self) -> None:
        with self._changed:
            self.shut = False
            self._changed.notify_all()

    @contextmanager
    def inside(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self.shut)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """A context in which the gate is closed. If it was closed before, it stays closed."""
        was = self.shut
        self.close()
        try:
            yield
        finally:
            if not was:
                self.open()


class LiveReplicas:
    """`Replicas` shared by threads, and the shadow threads that exchange them in the background."""

    def __init__(self, replicas: Replicas, parts: tuple[slice, ...], notify: Callable[[str], None]) -> None:
        """`parts`: the sync servers' shares of the dense buffer."""
        self.replicas, self._parts, self._notify = replicas, parts, notify
        self._gate = PauseGate()
        self._open = True
        self._stepped: set[int] = set()  # leases whose step was made but is not yet accounted for
        self._exchanged_at: dict[int, float] = {}
        self._exchanging: dict[int, threading.Lock] = {}  # by replica
        self._failed: dict[int, str] = {}  # replicas that can no longer exchange, and why
        self._shadows = ShadowThreads(replicas, parts, self._failed, notify)

    # ---- from workers' threads ----

    def flat(self, worker: int) -> Tensor | None:
        """The weights that the worker computes on; None: the server's."""
        self.replicas.busy(worker)
        replica = self.replicas.of(worker)
        return replica.flat if replica is not None and self._open else None

    def step(self, worker: int, lease: int, push: Push, *, lr_scale: float) -> LocalPush:
        """Steps the worker's replica; after a switch to a gradient strategy, returns the gradient for the servers."""
        with self._gate.inside():
            number = self.replicas.choices.replica_of(worker)
            if number in self._failed:
                raise RuntimeError(f"replica {number} can no longer exchange: {self._failed[number]}")
            if not self._open or number not in self.replicas.members:
                return push
            applied = self.replicas.step(worker, push, lr_scale=lr_scale)
            self._stepped.add(lease)
            self._exchange_if_due(number)
            return applied

    def _exchange_if_due(self, number: int) -> None:
        """Exchanges with the centre in the training loop. Meetings of all workers are called by the coordinator."""
        choices, replica = self.replicas.choices, self.replicas.members[number]
        trigger = choices.trigger
        if choices.exchange != "centre" or isinstance(trigger, Background):
            return
        now = time.monotonic()
        with self._exchanging.setdefault(number, threading.Lock()):  # several workers may share a replica
            if isinstance(trigger, EverySteps):
                due = replica.unexchanged >= trigger.steps * choices.workers_per_replica
            else:
                due = now - self._exchanged_at.setdefault(number, now) >= trigger.seconds
            if due:
                self._exchanged_at[number] = now
                self._shadows.exchange(number)

    # ---- from the thread that decides ----

    def hold(self) -> bool:
        """Stops all steps. Returns whether every step made so far is accounted for.

        Only then do the accounts match what rows and replicas have learned, and may be saved with them.
        """
        self._gate.close()
        return self.settled

    @property
    def settled(self) -> bool:
        return not self._stepped

    def release(self) -> None:
        self._gate.open()

    def ended(self, leases: Iterable[int]) -> None:
        """These leases are accounted for."""
        self._stepped.difference_update(leases)

    def join(self, worker: int) -> None:
        number = self.replicas.choices.replica_of(worker)
        with self._gate.closed():
            new = number not in self.replicas.members
            self.replicas.join(worker)
        if new:
            self._shadows.join(number)

    def leave(self, worker: int) -> None:
        number = self.replicas.choices.replica_of(worker)
        with self._gate.closed():
            self.replicas.leave(worker)
        if number not in self.replicas.members:
            self._shadows.leave(number)

    def meet(self) -> None:
        with self._gate.closed():
            self.replicas.meet()

    def show(self) -> None:
        """Copies the result of the replicas to the server, for evaluation or saving."""
        with self._gate.closed():
            self.replicas.show()

    def rechoose(self, choices: Choices) -> None:
        self._shadows.stop()
        with self._gate.closed():
            self.replicas.rechoose(choices)
        self._shadows = ShadowThreads(self.replicas, self._parts, self._failed, self._notify)

    def fold(self) -> None:
        """Ends the replicas: shadow threads stop, the server takes the evaluated weights, workers push to it again."""
        self._shadows.stop()
        with self._gate.closed():
            self._open = False
            self.replicas.fold()
        self._gate.open()
