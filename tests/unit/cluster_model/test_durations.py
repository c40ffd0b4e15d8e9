"""How long batches take, and when workers are away."""

from itertools import islice, pairwise
from math import inf
from statistics import mean

import pytest

from gearshift.cluster_model.cluster import (
    Bursts,
    ClusterModel,
    Compute,
    Crash,
    Failures,
    Lognormal,
    Preemption,
    Slow,
    SlowPeriod,
)
from gearshift.cluster_model.durations import WorkerTimes, key, mixed, uniform, worker_times


def first(cluster: ClusterModel) -> WorkerTimes:
    return worker_times(cluster)[0]


def test_the_nth_batch_of_a_worker_takes_as_long_whenever_it_is_asked_for() -> None:
    cluster = ClusterModel(3, lognormal=(Lognormal(0.4),), bursts=(Bursts(0.1, 10),), seed=7)
    once, again = worker_times(cluster), worker_times(cluster)
    forward = [[w.seconds(n, 64, 0.0) for n in range(50)] for w in once]
    backward = [[w.seconds(n, 64, 9.0) for n in reversed(range(50))][::-1] for w in reversed(again)][::-1]
    assert forward == backward
    assert forward[0] != forward[1]
    other = worker_times(ClusterModel(3, lognormal=(Lognormal(0.4),), bursts=(Bursts(0.1, 10),), seed=8))
    assert other[0].seconds(0, 64, 0.0) != forward[0][0]


def test_the_draws_are_uniform() -> None:
    draws = [uniform(key(1, worker, 5), n) for worker in range(100) for n in range(200)]
    assert mean(draws) == pytest.approx(0.5, abs=0.01)
    assert mean(u * u for u in draws) == pytest.approx(1 / 3, abs=0.01)
    tenths = [sum(int(u * 10) == i for u in draws) for i in range(10)]
    assert max(tenths) < 2200 and min(tenths) > 1800
    pairs = list(pairwise(draws))
    assert mean(a * b for a, b in pairs) == pytest.approx(0.25, abs=0.01)
    assert min(draws) > 0 and max(draws) < 1


def test_a_draw_never_changes_between_versions() -> None:
    """Results that were published with a seed must come out again."""
    assert (
        mixed(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    )  # the first number of the reference splitmix64, seed 0
    assert uniform(key(1, 2, 3), 4) == 0.9735861487806311


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (ClusterModel(1), 0.1),
        (ClusterModel(1, Compute(0.05, 0.001)), 0.114),
        (ClusterModel(1, slow=(Slow(5), Slow(2, (0,)))), 1.0),
        (ClusterModel(1, lognormal=(Lognormal(0.5),)), 0.1),
        (ClusterModel(1, bursts=(Bursts(0.1, 10),)), 0.19),
        (ClusterModel(1, slow=(Slow(2),), lognormal=(Lognormal(0.3),), bursts=(Bursts(0.5, 3),)), 0.4),
    ],
)
def test_times_average_to_their_mean(cluster: ClusterModel, expected: float) -> None:
    times = first(cluster)
    assert times.mean_seconds(64) == pytest.approx(expected)
    assert mean(times.seconds(n, 64, 0.0) for n in range(20_000)) == pytest.approx(expected, rel=0.02)


def test_a_slow_period_concerns_batches_begun_in_it() -> None:
    times = first(ClusterModel(1, slow_periods=(SlowPeriod(4, 10, 20),)))
    seconds = [times.seconds(0, 64, at) for at in (9.9, 10, 19.9, 20)]
    assert seconds == pytest.approx([0.1, 0.4, 0.4, 0.1])


def test_only_the_named_workers_are_disturbed() -> None:
    times = worker_times(ClusterModel(4, slow=(Slow(3, (1, 2)),)))
    assert [w.seconds(0, 1, 0.0) for w in times] == pytest.approx([0.1, 0.3, 0.3, 0.1])


def test_absences_come_in_order_and_overlapping_ones_are_one() -> None:
    cluster = ClusterModel(
        1, crashes=(Crash(50, 5), Crash(10, 5)), preemptions=(Preemption(12, 30), Preemption(90)), notice=2
    )
    found = [(a.start, a.end, a.notice, a.reason) for a in first(cluster).absences()]
    assert found == [(10, 30, 2, "it died"), (50, 55, 2, "it died"), (90, inf, 0, "it was preempted")]


def test_failures_come_at_random_with_the_mean_asked_for() -> None:
    failures = Failures(every=100, restart=10)
    absences = list(islice(first(ClusterModel(1, failures=(failures,))).absences(), 3000))
    assert all(a.end - a.start == pytest.approx(10) for a in absences)
    assert absences[-1].end / 3000 == pytest.approx(110, rel=0.05)
    assert absences == list(islice(first(ClusterModel(1, failures=(failures,))).absences(), 3000))


def test_one_that_fails_and_never_restarts_is_away_for_ever() -> None:
    (absence,) = first(ClusterModel(1, failures=(Failures(100, inf),))).absences()
    assert absence.end == inf
