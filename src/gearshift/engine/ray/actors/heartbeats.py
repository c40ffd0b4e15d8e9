"""Who has not been heard for too long, and how often a member may restart. Knows neither Ray nor a clock.

A member is late after `WARN` of the patience: then it is announced that it will be replaced. It is overdue after the
whole patience. Time in which we slept ourselves (a frozen process, a suspended machine) does not count: nobody could be
heard.

Restarts are limited by progress, not by time: a start may take seconds or minutes. A member has made progress if the
run got further than ever since it started; a worker must also have computed a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from gearshift.engine.protocol.messages import To
from gearshift.run.retry import backoff

WARN = 0.4  # of the patience
DEATHS = 8  # restarts without progress that end the run, if the process leaves no error
FAILURES = 3  # the same, if it fails with an error of its own


@dataclass(frozen=True)
class LateProcess:
    who: To
    seconds: float  # since it was heard
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
        """Each is named once when it is late, and again when it is overdue; its time then begins again."""
        self._leave_out_our_sleep(now)
        found = []
        for who, heard in self._heard.items():
            silent = now - heard
            if silent >= self.patience:
                self._heard[who] = now
                self._warned.discard(who)
                found.append(LateProcess(who, silent, overdue=True))
            elif silent >= WARN * self.patience and who not in self._warned:
                self._warned.add(who)
                found.append(LateProcess(who, silent, overdue=False))
        return found

    def _leave_out_our_sleep(self, now: float) -> None:
        if self._looked is not None and (slept := now - self._looked) > self.patience / 4:
            self._heard = {who: min(now, heard + slept) for who, heard in self._heard.items()}
        self._looked = now


@dataclass
class _Starts:
    restarts: int = -1  # without progress
    failures: int = 0  # without progress, with an error
    reached: int = 0  # the furthest step of the run when it started last
    progress: bool = False


class RestartBudget:
    def __init__(self) -> None:
        self._starts: dict[To, _Starts] = {}
        self._furthest = 0

    def started(self, who: To) -> int:
        """How many restarts without progress that makes."""
        own = self._starts.setdefault(who, _Starts())
        if own.progress:
            own.restarts, own.failures = -1, 0
        own.restarts, own.reached, own.progress = own.restarts + 1, self._furthest, False
        return own.restarts

    def failed(self, who: To) -> int:
        """Its process ended with an error; how many times without progress that makes."""
        own = self._starts.setdefault(who, _Starts())
        if own.progress:
            own.restarts, own.failures, own.progress = -1, 0, False
        own.failures += 1
        return own.failures

    def alive(self, who: To, works: bool, step: int) -> None:
        """The run is at this step; `works`: this member has done something for it."""
        self._furthest = max(self._furthest, step)
        own = self._starts.setdefault(who, _Starts())
        own.progress |= works and self._furthest > own.reached

    def forget(self, who: To) -> None:
        self._starts.pop(who, None)

    def delay(self, who: To) -> float:
        """Seconds before it may begin: the first restart is immediate, then they are further and further apart."""
        restarts = self._starts[who].restarts
        return backoff(restarts - 2) if restarts >= 2 else 0.0
