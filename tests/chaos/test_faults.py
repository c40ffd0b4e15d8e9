"""Processes of a live run are killed and frozen: it ends, its accounts are exact, and it has learned as much."""

from __future__ import annotations

from pathlib import Path

import pytest

import gearshift as gs
from tests.chaos.faults import Chaos
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
