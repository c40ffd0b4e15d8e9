"""How long workers take for their leases, learned from those that they have computed.

A lease of n examples takes a worker the time of n + `overhead` examples: what a lease costs besides its examples is
assumed to be the same share of any worker's time. The time runs from the lease's begin to its arrival, as the
coordinator sees it, so a log of events gives the same speeds. Newer leases count more.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf

MEMORY = 3.0  # rounds after which a time counts a third
OVERHEAD_MEMORY = 10.0  # the same, for what a lease costs besides its examples
WORST = 3.0  # a time that is further off than this many predicted times counts as this far
SLOWEST = 30.0  # a time counts as at most this many predicted times: all may have been suspended for a night
LEAST_SLOPE = 0.5  # of time by examples: a lease costs at most as much again as its examples
UNLIKE = 0.3  # sizes of leases that differ by this share tell what a lease costs besides its examples


@dataclass(frozen=True, slots=True)
class Past:
    """The leases of a worker: their number, examples and seconds."""

    leases: float = 0.0
    examples: float = 0.0
    seconds: float = 0.0

    def and_one(self, examples: int, seconds: float, keep: float) -> Past:
        """Earlier leases keep this share of their weight."""
        return Past(keep * self.leases + 1, keep * self.examples + examples, keep * self.seconds + seconds)


class Speeds:
    def __init__(self) -> None:
        self._past: dict[int, Past] = {}
        self._unknown: set[int] = set()  # workers that have computed nothing yet
        self._errors, self._weight = 0.0, 0.0  # of the predicted times, weighted by time
        self._sizes, self._slopes = 0.0, 0.0  # variance of the sizes of leases, covariance with their times
        self.overhead = 0.0  # of a lease, in examples
        self._examples_per_second, self._leases_per_second = 0.0, 0.0  # sums over workers

    def join(self, worker: int) -> None:
        self._unknown.add(worker)

    def leave(self, worker: int) -> None:
        self._forget(worker)
        self._unknown.discard(worker)

    def note(self, worker: int, examples: int, seconds: float, global_batch: int) -> None:
        """The worker has computed this many examples."""
        if seconds <= 0 or not (worker in self._past or worker in self._unknown):
            return
        expected, all_rates = self.seconds(worker, examples), self.of_all or inf
        seconds = min(seconds, SLOWEST * expected) if expected else seconds
        rounds = min(1.0, max(seconds * all_rates, examples) / global_batch)
        if expected and worker in self._past:
            self._learn(worker, examples, seconds / expected, rounds)
        past = self._forget(worker)
        self._unknown.discard(worker)
        self._past[worker] = past = past.and_one(examples, seconds, exp(-rounds / MEMORY))
        self._examples_per_second += past.examples / past.seconds
        self._leases_per_second += past.leases / past.seconds

    def _forget(self, worker: int) -> Past:
        past = self._past.pop(worker, None)
        if past is None:
            return Past()
        self._examples_per_second -= past.examples / past.seconds
        self._leases_per_second -= past.leases / past.seconds
        return past

    def _learn(self, worker: int, examples: int, ratio: float, rounds: float) -> None:
        """From a lease that took `ratio` times as long as the earlier ones of its worker predict."""
        share = rounds / len(self._past)
        fade = exp(-share / MEMORY)
        self._errors = fade * self._errors + rounds * min(abs(ratio - 1), WORST)
        self._weight = fade * self._weight + rounds
        past, fade = self._past[worker], exp(-share / OVERHEAD_MEMORY)
        size = past.examples / past.leases
        as_many = (
            ratio * (examples + self.overhead) * size / (size + self.overhead)
        )  # examples in the same time
        longer = min(as_many - size, WORST * size)
        self._sizes = fade * self._sizes + (examples - size) ** 2
        self._slopes = fade * self._slopes + (examples - size) * longer
        unknown = (UNLIKE * size) ** 2  # as if sizes had differed by so much, and times in proportion
        slope = (self._slopes + unknown) / (self._sizes + unknown)
        self.overhead = size * (1 / min(1.0, max(LEAST_SLOPE, slope)) - 1)

    # ---- what is known ----

    def of(self, worker: int) -> float | None:
        """Examples per second, if a lease cost nothing. A worker of unknown speed counts as typical."""
        past = self._past.get(worker)
        return self._typical if past is None else (past.examples + self.overhead * past.leases) / past.seconds

    def seconds(self, worker: int, examples: int) -> float | None:
        """What a lease of this many examples takes; None if nothing is known yet."""
        rate = self.of(worker)
        return None if rate is None else (examples + self.overhead) / rate

    @property
    def of_all(self) -> float | None:
        typical = self._typical
        return None if typical is None else typical * (len(self._past) + len(self._unknown))

    @property
    def error(self) -> float:
        """How much a time differs from its prediction on average, as a share of it."""
        return self._errors / self._weight if self._weight else 1.0

    @property
    def _typical(self) -> float | None:
        if not self._past:
            return None
        return (self._examples_per_second + self.overhead * self._leases_per_second) / len(self._past)
