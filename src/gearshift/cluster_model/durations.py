"""Draws the duration of each worker's n-th batch, and its absences, from the description of a cluster.

Every draw depends only on (seed, worker, n). Two runs with different strategies therefore see the same delay of the
same batch and the same failures, and their difference is due to the strategy (common random numbers). Threads that
inject delays may query in any order. Pure Python: splitmix64 with n as counter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import merge
from math import exp, inf, log
from statistics import NormalDist

from gearshift.cluster_model.cluster import Bursts, ClusterModel, Failures, SlowPeriod

_MASK, _GOLDEN = (1 << 64) - 1, 0x9E3779B97F4A7C15
_JITTER, _BURST, _FAILURE = 1, 1001, 2001  # streams of one worker, with room for a thousand of each
_normal = NormalDist().inv_cdf


def mixed(z: int) -> int:
    """Mix 64 bits (the finaliser of splitmix64; Steele, Lea and Flood 2014)."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def key(seed: int, worker: int, stream: int) -> int:
    return mixed((mixed((mixed(seed & _MASK) + worker + 1) & _MASK) + stream) & _MASK)


def uniform(key: int, n: int) -> float:
    """The n-th number of a stream, inside (0, 1)."""
    return ((mixed((key + n * _GOLDEN) & _MASK) >> 12) + 0.5) * 2.0**-52


@dataclass(frozen=True, slots=True)
class Absence:
    """The worker is absent from `start` to `end`; this is noticed `notice` seconds after it left."""

    start: float
    end: float
    notice: float
    reason: str


class WorkerTimes:
    """The durations of one worker, prepared for fast repeated queries."""

    __slots__ = (
        "_notice",
        "_seed",
        "bursts",
        "compute",
        "factor",
        "failures",
        "periods",
        "planned",
        "sigmas",
        "worker",
    )

    def __init__(self, cluster: ClusterModel, worker: int) -> None:
        self.worker, self.compute, self.factor = worker, cluster.compute, 1.0
        self._seed, self._notice = cluster.seed, cluster.notice
        self.sigmas: list[tuple[float, int]] = []  # with the key of its stream
        self.bursts: list[tuple[Bursts, int]] = []
        self.periods: list[SlowPeriod] = []
        self.failures: list[Failures] = []
        self.planned: list[Absence] = []

    def seconds(self, n: int, examples: int, at: float) -> float:
        """Seconds to compute the worker's n-th batch, started at `at`."""
        seconds = self.compute.seconds(examples) * self.factor
        for sigma, stream in self.sigmas:
            seconds *= exp(sigma * _normal(uniform(stream, n)) - sigma * sigma / 2)
        for burst, stream in self.bursts:
            if uniform(stream, n) < burst.share:
                seconds *= burst.factor
        return seconds * self.period_factor(at) if self.periods else seconds

    def mean_seconds(self, examples: int) -> float:
        """The mean of `seconds` outside slow periods."""
        seconds = self.compute.seconds(examples) * self.factor
        for burst, _ in self.bursts:
            seconds *= 1 + burst.share * (burst.factor - 1)
        return seconds

    def period_factor(self, at: float) -> float:
        factor = 1.0
        for period in self.periods:
            if period.start <= at < period.end:
                factor *= period.factor
        return factor

    def absences(self) -> Iterator[Absence]:
        """The absences in order, without overlap; endless if the worker fails at random."""
        streams = (self._drawn(failures, i) for i, failures in enumerate(self.failures))
        current: Absence | None = None
        for absence in merge(self.planned, *streams, key=lambda absence: absence.start):
            if current is None:
                current = absence
            elif absence.start <= current.end:
                current = replace(current, end=max(current.end, absence.end))
            else:
                yield current
                current = absence
            if current.end == inf:
                break
        if current is not None:
            yield current

    def _drawn(self, failures: Failures, i: int) -> Iterator[Absence]:
        stream, n, back = key(self._seed, self.worker, _FAILURE + i), 0, 0.0
        while back < inf:
            start = back - failures.every * log(uniform(stream, n))
            n, back = n + 1, start + failures.restart
            yield Absence(start, back, self._notice, "it died")


def worker_times(cluster: ClusterModel) -> list[WorkerTimes]:
    """The durations of each worker."""
    times = [WorkerTimes(cluster, worker) for worker in range(cluster.workers)]
    everyone, seed = range(cluster.workers), cluster.seed
    for slow in cluster.slow:
        for worker in everyone if slow.workers is None else slow.workers:
            times[worker].factor *= slow.factor
    for i, jitter in enumerate(cluster.lognormal):
        for worker in everyone if jitter.workers is None else jitter.workers:
            times[worker].sigmas.append((jitter.sigma, key(seed, worker, _JITTER + i)))
    for i, burst in enumerate(cluster.bursts):
        for worker in everyone if burst.workers is None else burst.workers:
            times[worker].bursts.append((burst, key(seed, worker, _BURST + i)))
    for period in cluster.slow_periods:
        for worker in everyone if period.workers is None else period.workers:
            times[worker].periods.append(period)
    _add_absences(cluster, times)
    return times


def _add_absences(cluster: ClusterModel, times: list[WorkerTimes]) -> None:
    everyone = range(cluster.workers)
    for crash in cluster.crashes:
        absence = Absence(crash.at, crash.at + crash.restart, cluster.notice, "it died")
        for worker in everyone if crash.workers is None else crash.workers:
            times[worker].planned.append(absence)
    for leave in cluster.preemptions:
        absence = Absence(leave.start, leave.end, 0.0, "it was preempted")
        for worker in everyone if leave.workers is None else leave.workers:
            times[worker].planned.append(absence)
    for failures in cluster.failures:
        for worker in everyone if failures.workers is None else failures.workers:
            times[worker].failures.append(failures)
    for one in times:
        one.planned.sort(key=lambda absence: absence.start)
