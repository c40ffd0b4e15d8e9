"""A few cores shared in equal parts by all computing workers (processor sharing), in virtual time.

With n jobs on C cores each runs at the speed min(1, C/n). All jobs run equally fast, so one clock of work done
per job orders them, and a job costs one heap operation, however many jobs start and end in the meantime.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf


class SharedCores:
    def __init__(self, cores: float) -> None:
        self.cores, self.now = cores, 0.0
        self._done = 0.0  # seconds of work that a job present from the start would have received
        self._jobs: list[tuple[float, int]] = []  # the clock value at which the job is done; its lease
        self._present: set[int] = set()

    def add(self, lease: int, work: float, now: float) -> None:
        self._advance(now)
        heappush(self._jobs, (self._done + work, lease))
        self._present.add(lease)

    def remove(self, lease: int, now: float) -> None:
        self._advance(now)
        self._present.discard(lease)

    def next_end(self) -> float:
        while self._jobs and self._jobs[0][1] not in self._present:
            heappop(self._jobs)
        if not self._jobs:
            return inf
        return self.now + max(0.0, self._jobs[0][0] - self._done) / self._speed

    def pop(self, now: float) -> int:
        """Removes and returns the job that ends now."""
        self._advance(now)
        self._done, lease = heappop(self._jobs)
        self._present.discard(lease)
        return lease

    @property
    def _speed(self) -> float:
        return min(1.0, self.cores / len(self._present))

    def _advance(self, now: float) -> None:
        if self._present:
            self._done += (now - self.now) * self._speed
        self.now = now
