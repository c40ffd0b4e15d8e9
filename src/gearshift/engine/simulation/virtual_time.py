"""Virtual time: a queue of events in the order of their times. Events at the same time keep the order of `set`."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

Happen = Callable[[int, int], None]  # called with a worker and one more number


class VirtualTime:
    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Happen, int, int]] = []
        self._order = 0

    def set(self, at: float, happen: Happen, worker: int, what: int) -> None:
        if at < inf:
            self._order += 1
            heappush(self._heap, (at, self._order, happen, worker, what))

    @property
    def next_at(self) -> float:
        """The time of the next event; inf if there is none."""
        return self._heap[0][0] if self._heap else inf

    def go_on(self) -> None:
        """Runs the next event."""
        self.now, _, happen, worker, what = heappop(self._heap)
        happen(worker, what)
