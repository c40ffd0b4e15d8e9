"""auto: it changes when it pays, says why, does not flutter, and looks at what came of it."""

from __future__ import annotations

import pytest

from gearshift.engine.cluster_model import Bursts, Cluster, Compute, Slow, SlowPeriod
from gearshift.engine.simulated import simulate
from gearshift.errors import UserError
from gearshift.sync.automatic import Auto, Automatic, Proposal
from gearshift.sync.registry import make_auto, resolve

WORKERS, BATCH = 8, 100


def watch(cluster: Cluster, strategy: str, steps: int = 200, **settings) -> tuple[Automatic, list[Proposal]]:
    """What auto would say of a cluster that stays with `strategy`."""
    auto, proposals = Automatic(Auto(**settings), WORKERS * BATCH), []

    def log(event, actions) -> None:
        proposal = auto.observe(event, actions, strategy)
        if proposal is not None:
            proposals.append(proposal)

    chosen = resolve(strategy, {}, WORKERS * BATCH, WORKERS)
    simulate(cluster, chosen, steps * WORKERS * BATCH, log=log)
    return auto, proposals


def cluster(**more) -> Cluster:
    return Cluster(WORKERS, Compute(per_batch=0.1), **more)


def test_equal_workers_stay_in_sync() -> None:
    _, proposals = watch(cluster(), "sync")
    assert proposals == []


def test_a_slow_worker_makes_it_propose_gba_with_its_numbers() -> None:
    _, proposals = watch(cluster(slow=(Slow(5.0, (3,)),)), "sync", steps=30)
    first = proposals[0]
    assert first.strategy == "gba" and first.predicted == pytest.approx(4.5, rel=0.01)
    assert "worker 3 needs 5.0x the median time; predicted 1,600 -> 7,200 ex/s" in first.reason


def test_bursts_count_as_often_as_they_come() -> None:
    auto, _ = watch(cluster(bursts=(Bursts(0.1, 10.0),)), "sync", window=64)
    prediction = auto.predict()
    assert prediction is not None
    assert prediction.gain == pytest.approx(3.2, rel=0.35)  # the closed form; 64 batches of each worker


def test_when_workers_are_even_again_it_proposes_sync() -> None:
    _, proposals = watch(cluster(), "gba", steps=40)
    assert proposals[0].strategy == "sync" and "equally fast again" in proposals[0].reason


def test_a_worker_past_max_lag_adds_nothing_to_gba() -> None:
    """At 20x its gradients would all be too late: seven workers count."""
    auto, _ = watch(cluster(slow=(Slow(20.0, (3,)),)), "sync", steps=30)
    prediction = auto.predict()
    assert prediction is not None and prediction.gba == pytest.approx(7 * BATCH / 0.1)


def test_a_short_stumble_changes_nothing() -> None:
    """Slow for less than `patience` steps."""
    stumble = SlowPeriod(3.0, start=2.0, end=2.4, workers=(3,))
    _, proposals = watch(cluster(slow_periods=(stumble,)), "sync", patience=20)
    assert proposals == []


def test_between_the_two_thresholds_it_stays_where_it_is() -> None:
    uneven = cluster(slow=(Slow(1.18, (3,)),))  # gba is 15 % faster: less than the margin, more than its half
    assert watch(uneven, "sync")[1] == [] and watch(uneven, "gba")[1] == []


def test_bad_settings_are_named() -> None:
    with pytest.raises(UserError, match="auto has no setting `marginn`: it has margin"):
        make_auto({"marginn": 1})
    with pytest.raises(UserError, match="margin is more than 0"):
        make_auto({"margin": 0})
