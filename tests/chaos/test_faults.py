"""Processes of a live run are killed and frozen: it ends, its accounts are exact, and it has learned as much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import gearshift as gs
from tests.chaos.faults import GLOBAL, WORKERS, Chaos
from tests.on_ray.fixtures import ON_RAY

pytestmark = [ON_RAY, pytest.mark.timeout(900)]


def test_one_of_each_is_killed(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    chaos = Chaos(cluster, tmp_path, seed=1)
    outcome = chaos.harm_a_run("gba", ["kill worker", "kill shard", "kill coordinator"], 12)
    assert len(outcome.harms) == 3 and outcome.incarnations >= 3
    assert outcome.auc == pytest.approx(outcome.calm, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sync", "async", "gba"])
def test_one_of_each_is_frozen(tmp_path: Path, cluster: gs.ClusterSettings, strategy: str) -> None:
    chaos = Chaos(cluster, tmp_path, seed=2)
    outcome = chaos.harm_a_run(strategy, ["freeze worker", "freeze shard", "freeze coordinator"], 20)
    assert len(outcome.harms) == 3 and outcome.incarnations >= 3
    assert outcome.auc == pytest.approx(outcome.calm, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["easgd", "model_averaging", "k_step_adam"])
def test_one_of_each_is_killed_among_replicas(
    tmp_path: Path, cluster: gs.ClusterSettings, strategy: str
) -> None:
    """Snapshots of replicas are whole too: all go on from the newest."""
    chaos = Chaos(cluster, tmp_path, seed=3)
    outcome = chaos.harm_a_run(strategy, ["kill worker", "kill shard", "kill coordinator"], 12)
    assert len(outcome.harms) == 3 and outcome.incarnations >= 3
    assert outcome.auc == pytest.approx(outcome.calm, abs=0.02)


@pytest.mark.slow
def test_rings_break_in_every_way(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    """Workers that sum dense gradients among themselves wait for each other; nobody waits for ever."""
    summing = replace(cluster, sync_transport="all_reduce")
    chaos = Chaos(summing, tmp_path, seed=3, batch=GLOBAL // WORKERS)
    kinds = ["kill worker", "freeze worker", "kill shard", "kill worker", "kill coordinator"]
    outcome = chaos.harm_a_run("sync", kinds, 24)
    assert len(outcome.harms) >= 3 and outcome.incarnations >= 2
    assert outcome.auc == pytest.approx(outcome.calm, abs=0.02)
