"""Shadows: threads that exchange replicas in the background with an exchange partner.

A shadow runs in parallel with a trainer's workers: copy, exchange, merge, repeat. Workers and shadows access a replica
without locks. A trainer whose exchange fails is excluded: its workers get the error at their next step, and no other
trainer waits for it. The shadow of a finished trainer continues with weight 0 until all are done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from gearshift.parameters.replicas.arithmetic import centre_step
from gearshift.parameters.replicas.group import Replicas
from gearshift.sync.exchange import Background, Choices

# Seconds between exchanges: in shared memory they are so fast that without a pause they would starve the training.
BREATH = 0.005
ENDING = 60.0  # how long a shadow may take to finish its exchange


class Partner(Protocol):
    """The exchange partner of a shadow: sync servers, or the other shadows."""

    def exchange(self, member: int, sent: Tensor, weight: float) -> Tensor | None:
        """The weights that the trainer merges with; None when there is no partner left."""

    def leave(self, member: int) -> None:
        """The member leaves; others no longer wait for it."""


class LocalCentre:
    """The centre on several sync servers, each with its part and a lock."""

    def __init__(self, centre: Tensor, parts: tuple[slice, ...], choices: Choices) -> None:
        self._choices = choices
        self._servers = [(centre[columns], columns, threading.Lock()) for columns in parts]

    def exchange(self, member: int, sent: Tensor, weight: float) -> Tensor:
        target = sent.clone()
        for part, columns, lock in self._servers:
            with lock:
                target[columns] = centre_step(part, sent[columns], self._choices) if weight else part
        return target

    def leave(self, member: int) -> None:
        """The centre does not wait for anyone."""


class LocalMean:
    """Rounds of all members: the last to arrive computes the mean and releases all. Members may join and leave."""

    def __init__(self, meet: Callable[[list[Tensor], list[float]], Tensor]) -> None:
        self._meet = meet
        self._changed = threading.Condition()
        self._members: set[int] = set()
        self._given: dict[int, tuple[Tensor, float]] = {}
        self._round = 0
        self._target: Tensor | None = None  # result of the last round
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


class ShadowThreads:
    """One for each replica if the strategy exchanges in the background; otherwise the training loop exchanges."""

    def __init__(
        self,
        replicas: Replicas,
        parts: tuple[slice, ...],
        failed: dict[int, str],
        notify: Callable[[str], None],
    ) -> None:
        """`parts`: the sync servers' shares of the dense buffer; `failed` collects failed replicas with reasons."""
        self._replicas, self._failed, self._notify = replicas, failed, notify
        self._trigger = replicas.choices.trigger
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._mean: LocalMean | None = None
        self._partner: Partner
        if replicas.choices.exchange == "centre":
            self._partner = LocalCentre(replicas.common.centre, parts, replicas.choices)
        else:
            self._partner = self._mean = LocalMean(replicas.common.meet_all)
        for number in replicas.members:
            self.join(number)

    def join(self, number: int) -> None:
        """Starts the shadow of a new replica."""
        if not isinstance(self._trigger, Background):
            return
        if self._mean is not None:
            self._mean.join(number)
        run = threading.Thread(
            target=self._run, args=(number,), name=f"gearshift-shadow-{number}", daemon=True
        )
        self._threads.append(run)
        run.start()

    def leave(self, number: int) -> None:
        """A replica has left; others no longer wait for it."""
        self._partner.leave(number)

    def exchange(self, number: int) -> bool:
        """Copies, exchanges and merges. False when there is no partner left."""
        replica = self._replicas.members[number]
        target = self._partner.exchange(number, replica.send(), replica.weight)
        if target is None:
            replica.sent = None
            return False
        replica.receive(target, self._replicas.moved)
        self._replicas.exchanged()
        return True

    def stop(self) -> None:
        self._ending.set()
        if self._mean is not None:
            self._mean.close()
        until = time.monotonic() + ENDING
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self, number: int) -> None:
        assert isinstance(self._trigger, Background)
        try:
            pause = max(BREATH, self._trigger.pause)
            while not self._ending.wait(pause) and number in self._replicas.members:
                if not self.exchange(number):
                    return
        except Exception as error:
            self._failed[number] = str(error)
            self._notify(f"replica {number} can no longer exchange ({error}); the others continue")
        finally:
            self._partner.leave(number)
