"""Processes of a live run are killed and frozen: it ends, its accounts are exact, and it has learned as much."""

from __future__ import annotations

from pathlib import Path

import pytest

import gearshift as gs
from tests.chaos.faults import Chaos
from tests.on_ray.conftest import cluster, ray_here, temporary  # noqa: F401 (fixtures)

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(900)]


def test_one_of_each_is_killed(tmp_path: Path, cluster: gs.ClusterSettings) -> None:  # noqa: F811
    chaos = Chaos(cluster, tmp_path, seed=1)
    outcome = chaos.harm_a_run("gba", ["kill worker", "kill shard", "kill coordinator"], 12)
    assert len(outcome.harms) == 3 and outcome.incarnations >= 3
    assert outcome.auc == pytest.approx(outcome.calm, abs=0.02)
