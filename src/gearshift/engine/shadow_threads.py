"""Replicas in one process: workers step them from their threads, shadows exchange them from theirs.

A shadow is a thread beside a trainer's workers: copy, exchange, merge, again. Workers and shadows touch a replica
without locks. What must not overlap with a step (a merge in the training loop, an evaluation of the mean, a switch)
shuts the `PauseGate`, and waits until those inside are out. A trainer whose exchange fails is out: its workers are told
at their next step, and nobody waits for it. The shadow of a finished trainer goes on with weight 0 until all are done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor

from gearshift.parameters.push import Push
from gearshift.parameters.replicas.arithmetic import centre_step
from gearshift.parameters.replicas.group import Replicas
from gearshift.parameters.replicas.replica import DenseReplica
from gearshift.sync.exchange import Background, Choices, EverySteps

# Seconds between exchanges: in one memory they take no time, and back to back would leave none for training.
BREATH = 0.005
ENDING = 60.0  # seconds in which a shadow may end the exchange it is in


class Partner(Protocol):
    """With whom a shadow exchanges: sync servers, or the other shadows."""

    def exchange(self, member: int, sent: Tensor, weight: float) -> Tensor | None:
        """What the trainer merges with; None when there is nobody left to exchange with."""

    def leave(self, member: int) -> None:
        """It does not come again; nobody waits for it."""


class LocalCentre:
    """The centre on several sync servers, each with its part of it and its own lock."""

    def __init__(self, centre: Tensor, parts: tuple[slice, ...], choices: Choices) -> None:
        self._choices = choices
        self._servers = [(centre[own], own, threading.Lock()) for own in parts]

    def exchange(self, member: int, sent: Tensor, weight: float) -> Tensor:
        target = sent.clone()
        for part, own, lock in self._servers:
            with lock:
                target[own] = centre_step(part, sent[own], self._choices) if weight else part
        return target

    def leave(self, member: int) -> None:
        """The centre waits for nobody."""


class LocalMean:
    """Rounds of all members: the last to come makes the mean and lets all go. Members may come and leave."""

    def __init__(self, meet: Callable[[list[Tensor], list[float]], Tensor]) -> None:
        self._meet = meet
        self._changed = threading.Condition()
        self._members: set[int] = set()
        self._given: dict[int, tuple[Tensor, float]] = {}
        self._round = 0
        self._target: Tensor | None = None  # of the last round
        self._closed = False

    def join(self, member: int) -> None:
        with self._changed:
            self._members.add(member)

    def leave(self, member: int) -> None:
        with self._changed:
            self._members.discard(member)
            self._given.pop(member, None)
            self._end_round()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def exchange(self, member: int, sent: Tensor, weight: float) -> Tensor | None:
        with self._changed:
            mine = self._round
            self._given[member] = sent, weight
            self._end_round()
            self._changed.wait_for(lambda: self._closed or self._round > mine)
            return self._target if self._round > mine else None

    def _end_round(self) -> None:
        if self._members and self._members <= self._given.keys():
            given = [self._given[member] for member in sorted(self._members)]
            self._target = self._meet([sent for sent, _ in given], [weight for _, weight in given])
            self._given.clear()
            self._round += 1
            self._changed.notify_all()


class PauseGate:
    """Many may be inside, or none: one thread shuts it and opens it again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self.shut = False

    def close(self) -> None:
        """Returns when nobody is inside any more."""
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
        """For what is done here; one that was shut before stays shut."""
        was = self.shut
        self.close()
        try:
            yield
        finally:
            if not was:
                self.open()


class LiveReplicas:
    """`Replicas` in use by threads, and the shadows of those that exchange in the background."""

    def __init__(self, replicas: Replicas, parts: tuple[slice, ...], tell: Callable[[str], None]) -> None:
        """`parts`: the sync servers' shares of the dense buffer."""
        self.replicas, self._parts, self._tell = replicas, parts, tell
        self._gate = PauseGate()
        self._open = True
        self._failed: dict[int, str] = {}
        self._stepped: set[int] = set()  # leases whose step is made and not yet accounted for
        self._exchanged_at: dict[int, float] = {}
        self._exchanging: dict[int, threading.Lock] = {}  # by replica
        self._start()

    # ---- from workers' threads ----

    def flat(self, worker: int) -> Tensor | None:
        """What it computes on, or None: the server's."""
        self.replicas.busy(worker)
        replica = self.replicas.of(worker)
        return replica.flat if replica is not None and self._open else None

    def step(self, worker: int, lease: int, push: Push, *, lr_scale: float) -> Push:
        """On its replica; after a switch to a gradient strategy, the gradient as it is, for the servers."""
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
        """In the training loop with the centre; where all meet, the coordinator says when."""
        choices, replica = self.replicas.choices, self.replicas.members[number]
        trigger = choices.trigger
        if choices.exchange != "centre" or isinstance(trigger, Background):
            return
        now = time.monotonic()
        with self._exchanging.setdefault(number, threading.Lock()):  # several workers may be here
            if isinstance(trigger, EverySteps):
                due = replica.unexchanged >= trigger.steps * choices.workers_per_replica
            else:
                due = now - self._exchanged_at.setdefault(number, now) >= trigger.seconds
            if due:
                self._exchanged_at[number] = now
                self._exchange(number, replica)

    def _exchange(self, number: int, replica: DenseReplica) -> bool:
        target = self._partner.exchange(number, replica.send(), replica.weight)
        if target is None:
            replica.sent = None
            return False
        replica.receive(target, self.replicas.moved)
        return True

    # ---- from the thread that decides ----

    def hold(self) -> bool:
        """No step is made from here on; whether every step that was made is accounted for.

        Only then do the accounts say what rows and replicas have learned, and may be saved with them.
        """
        self._gate.close()
        return self.settled

    @property
    def settled(self) -> bool:
        return not self._stepped

    def release(self) -> None:
        self._gate.open()

    def ended(self, leases: Iterable[int]) -> None:
        """They are accounted for."""
        self._stepped.difference_update(leases)

    def join(self, worker: int) -> None:
        number = self.replicas.choices.replica_of(worker)
        with self._gate.closed():
            new = number not in self.replicas.members
            self.replicas.join(worker)
        if new:
            self._hire(number)

    def leave(self, worker: int) -> None:
        number = self.replicas.choices.replica_of(worker)
        with self._gate.closed():
            self.replicas.leave(worker)
        if number not in self.replicas.members:
            self._partner.leave(number)

    def idle(self, worker: int) -> None:
        self.replicas.idle(worker)

    def meet(self) -> None:
        with self._gate.closed():
            self.replicas.meet()

    def show(self) -> None:
        """Puts what is to be evaluated or saved where it is."""
        with self._gate.closed():
            self.replicas.show()

    def shift(self, change: Tensor) -> None:
        self.replicas.shift(change)

    def rechoose(self, choices: Choices) -> None:
        self._stop()
        with self._gate.closed():
            self.replicas.rechoose(choices)
        self._start()

    def fold(self) -> None:
        """The end: shadows stop, the server takes what was shown, and workers push to it again."""
        self._stop()
        with self._gate.closed():
            self._open = False
            self.replicas.fold()
        self._gate.open()

    # ---- shadows ----

    def _start(self) -> None:
        choices, replicas = self.replicas.choices, self.replicas
        self._ending = threading.Event()
        self._shadows: list[threading.Thread] = []
        self._mean: LocalMean | None = None
        self._partner: Partner
        if choices.exchange == "centre":
            self._partner = LocalCentre(replicas.centre, self._parts, choices)
        else:
            self._partner = self._mean = LocalMean(replicas.meet_all)
        for number in replicas.members:
            self._hire(number)

    def _hire(self, number: int) -> None:
        if not isinstance(self.replicas.choices.trigger, Background):
            return
        if self._mean is not None:
            self._mean.join(number)
        name = f"gearshift-shadow-{number}"
        self._shadows.append(threading.Thread(target=self._shadow, args=(number,), name=name, daemon=True))
        self._shadows[-1].start()

    def _stop(self) -> None:
        self._ending.set()
        if self._mean is not None:
            self._mean.close()
        until = time.monotonic() + ENDING
        for shadow in self._shadows:
            shadow.join(max(0.0, until - time.monotonic()))

    def _shadow(self, number: int) -> None:
        trigger, partner, ending = self.replicas.choices.trigger, self._partner, self._ending
        assert isinstance(trigger, Background)
        try:
            while not ending.wait(max(BREATH, trigger.pause)) and number in self.replicas.members:
                if not self._exchange(number, self.replicas.members[number]):
                    return
        except Exception as error:
            self._failed[number] = str(error)
            self._tell(f"replica {number} can no longer exchange ({error}); the others go on")
        finally:
            partner.leave(number)
