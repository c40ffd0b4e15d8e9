"""Closed-form throughput of a cluster, as a reference for the simulator and for measurements.

possible   the sum of the workers' rates: no waiting, nothing discarded. gba and async come close to it.
sync       a global batch per (expected slowest of a round + network + all-reduce); with one lease per worker.

Both are exact for independent batches; neither models the end of the data.
"""

from __future__ import annotations

import itertools
from collections import Counter
from math import exp, log, prod
from statistics import NormalDist

from gearshift.cluster_model.cluster import ClusterModel
from gearshift.cluster_model.durations import WorkerTimes, worker_times

_phi = NormalDist().cdf
_Branch = tuple[float, float, float]  # probability, seconds, sigma
_GRID = 4000


def possible_rate(cluster: ClusterModel, batch: int, until: float = 0.0) -> float:
    """Examples per second without waiting; absences and slow periods are averaged over [0, until]."""
    everyone = worker_times(cluster)
    total = sum(_rate(times, cluster, batch, until) for times in everyone)
    if cluster.cores is None:
        return total
    demand = sum(_cores_wanted(times, cluster, batch) for times in everyone)
    alone = sum(_rate(times, cluster, batch, 0.0) for times in everyone)
    return min(total, alone * cluster.cores / demand) if demand else total


def _cores_wanted(times: WorkerTimes, cluster: ClusterModel, batch: int) -> float:
    """The share of time in which a worker that never waits needs a core."""
    compute = times.mean_seconds(batch)
    cpu = cluster.cpu.seconds(batch) if cluster.cpu else compute
    return cpu / max(cpu, compute + cluster.network.pull + cluster.network.push)


def _rate(times: WorkerTimes, cluster: ClusterModel, batch: int, until: float) -> float:
    compute, network = times.mean_seconds(batch), cluster.network.pull + cluster.network.push
    if not until or not (times.periods or times.planned or times.failures):
        return batch / (compute + network)
    return (
        sum(
            (end - start) * batch / (compute * times.period_factor(start) + network)
            for start, end in _present(times, until)
        )
        / until
    )


def _present(times: WorkerTimes, until: float) -> list[tuple[float, float]]:
    """Intervals of [0, until] in which the worker is present with constant slowness."""
    away = []
    for absence in times.absences():
        if absence.start >= until:
            break
        away.append((absence.start, absence.end))
    cuts = {0.0, until, *(t for a in away for t in a)}
    cuts |= {t for period in times.periods for t in (period.start, period.end)}
    edges = sorted(t for t in cuts if 0 <= t <= until)
    stretches = itertools.pairwise(edges)
    return [(a, b) for a, b in stretches if not any(start <= a < end for start, end in away)]


def sync_rate(cluster: ClusterModel, batch: int) -> float:
    """Examples per second of sync with one lease of `batch` per worker and round; includes stragglers, not absences."""
    network = cluster.network
    overhead = network.pull + network.push + network.sync_step(cluster.workers)
    return cluster.workers * batch / (expected_slowest(cluster, batch) + overhead)


def expected_slowest(cluster: ClusterModel, batch: int) -> float:
    """E[max over workers of the seconds per batch] = integral of 1 - product of the distribution functions."""
    kinds = Counter(tuple(_branches(times, batch)) for times in worker_times(cluster))
    if all(sigma == 0 for kind in kinds for _, _, sigma in kind):
        edges = sorted({seconds for kind in kinds for _, seconds, _ in kind})
        lows = [0.0, *edges[:-1]]
        return sum((b - a) * (1 - _all_below(kinds, a)) for a, b in zip(lows, edges, strict=True))
    low = min(seconds * exp(-10 * sigma) for kind in kinds for _, seconds, sigma in kind)
    high = max(seconds * exp(10 * sigma) for kind in kinds for _, seconds, sigma in kind)
    ratio = exp(log(high / low) / _GRID)
    edges = [low * ratio**i for i in range(_GRID + 1)]
    middles = ((b - a) * (1 - _all_below(kinds, (a + b) / 2)) for a, b in itertools.pairwise(edges))
    return low + sum(middles)


def _branches(times: WorkerTimes, batch: int) -> list[_Branch]:
    """The worker's batch time as a mixture of lognormals."""
    sigma = sum(s * s for s, _ in times.sigmas) ** 0.5
    branches = [(1.0, times.compute.seconds(batch) * times.factor, sigma)]
    for burst, _ in times.bursts:
        hit = [(p * burst.share, seconds * burst.factor, s) for p, seconds, s in branches]
        branches = [(p * (1 - burst.share), seconds, s) for p, seconds, s in branches] + hit
    return branches


def _all_below(kinds: Counter[tuple[_Branch, ...]], t: float) -> float:
    return prod(sum(p * _below(t, s, sigma) for p, s, sigma in kind) ** many for kind, many in kinds.items())


def _below(t: float, seconds: float, sigma: float) -> float:
    if sigma == 0 or t <= 0:
        return float(t >= seconds)
    return _phi(log(t / seconds) / sigma + sigma / 2) if seconds > 0 else 1.0
