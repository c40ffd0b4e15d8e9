"""Which members have been silent for too long, and how often one may restart. Independent of Ray and of any clock.

A member is late after the fraction `WARN` of the patience: a message announces that it will be replaced. It is overdue
after the full patience. Time during which this process slept (frozen, or on a suspended machine) does not count,
because it could not receive heartbeats.

Restarts are limited by progress, not by time: a start may take seconds or minutes. A member has made progress if the
run has passed its furthest step since the member started; a worker must also have computed a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from gearshift.engine.protocol.messages import To
from gearshift.run.retry import backoff

WARN = 0.4  # fraction of the patience
DEATHS = 8  # restarts without progress that end the run, if the process leaves no error
FAILURES = 3  # the same, if it fails with an error


@dataclass(frozen=True)
class LateProcess:
    who: To
    seconds: float  # since its last heartbeat
    overdue: bool


class Heartbeats:
    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._heard: dict[To, float] = {}
        self._warned: set[To] = set()
        self._looked: float | None = None

    def heard(self, who: To, now: float) -> None:
        self._heard[who] = now
        self._warned.discard(who)

    def knows(self, who: To) -> bool:
        return who in self._heard

    def forget(self, who: To) -> None:
        self._heard.pop(who, None)
        self._warned.discard(who)

    def look(self, now: float) -> list[LateProcess]:
        """Reports each member once when it is late, and again when it is overdue, which restarts its timer."""
        self._leave_out_our_sleep(now)
        late = []
        for who, heard in self._heard.items():
            silent = now - heard
            if silent >= self.patience:
                self._heard[who] = now
                self._warned.discard(who)
                late.append(LateProcess(who, silent, overdue=True))
            elif silent >= WARN * self.patience and who not in self._warned:
                self._warned.add(who)
                late.append(LateProcess(who, silent, overdue=False))
        return late

    def _leave_out_our_sleep(self, now: float) -> None:
        if self._looked is not None and (slept := now - self._looked) > self.patience / 4:
            self._heard = {who: min(now, heard + slept) for who, heard in self._heard.items()}
        self._looked = now


@dataclass
class _Starts:
    restarts: int = -1  # without progress
    failures: int = 0  # without progress, with an error
    reached: int = 0  # the run's furthest step at the member's last start
    progress: bool = False


class RestartBudget:
    def __init__(self) -> None:
        self._starts: dict[To, _Starts] = {}
        self._furthest = 0

    def started(self, who: To) -> int:
        """Counts a start. Returns the number of restarts without progress."""
        starts = self._starts.setdefault(who, _Starts())
        if starts.progress:
            starts.restarts, starts.failures = -1, 0
        starts.restarts, starts.reached, starts.progress = starts.restarts + 1, self._furthest, False
        return starts.restarts

    def failed(self, who: To) -> int:
        """Counts an end with an error. Returns the number of failures without progress."""
        starts = self._starts.setdefault(who, _Starts())
        if starts.progress:
            starts.restarts, starts.failures, starts.progress = -1, 0, False
        starts.failures += 1
        return starts.failures

    def alive(self, who: To, works: bool, step: int) -> None:
        """The run is at this step; `works`: this member has contributed to it."""
        self._furthest = max(self._furthest, step)
        starts = self._starts.setdefault(who, _Starts())
        starts.progress |= works and self._furthest > starts.reached

    def forget(self, who: To) -> None:
        self._starts.pop(who, None)

    def delay(self, who: To) -> float:
        """Seconds before it may begin: the first restart is immediate, later delays grow."""
        restarts = self._starts[who].restarts
        return backoff(restarts - 2) if restarts >= 2 else 0.0
