"""The workers of a machine exchange with the shards through a relay: with the same results, also if it is killed."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import gearshift as gs
from gearshift.cluster_model.cluster import ClusterModel, Compute
from gearshift.cluster_model.cluster import Slow as SlowWorker
from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.launched_run import LaunchedRun
from gearshift.run.replay import replay
from tests.on_ray.fixtures import ON_RAY
from tests.on_ray.modules import Slow
from tests.on_ray.test_runs import DATA, assert_exact, assert_same_state, normed, trainer, until

pytestmark = ON_RAY
LONG = gs.read(gs.ClickLog(examples=400_000, days=2))


def relay_of(run: LaunchedRun) -> Counter[str]:
    """The metrics of the only relay."""
    return Counter(run.figures().get("relay-0", {}))


def test_sync_in_two_levels_equals_threads(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    """To float rounding: a machine's gradients are summed before they are divided by the number of examples."""
    there = trainer(tmp_path / "ray", cluster=replace(cluster, two_levels="on"), epochs=4).start(
        normed(Slow), DATA
    )
    until(there, lambda: relay_of(there)["attending"] == 2)
    until(there, lambda: there.figures()["coordinator-0"].get("relayed_rounds", 0) > 5)
    # A row that both workers of the machine ask for is sent once.
    until(there, lambda: 0 < relay_of(there)["sent_ids"] < relay_of(there)["asked_ids"])
    there.wait()
    here = trainer(tmp_path / "threads", epochs=4).fit(normed(Slow), DATA)
    assert_same_state(here.folder, there.folder)
    assert_exact(there.folder, 12_000, epochs=4)


@pytest.mark.slow
def test_a_relay_may_die(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    """Workers talk to the shards until there is another; a switch to sync in between uses it too."""
    strategy = {"name": "k_step_adam", "exchange": 2}
    settings = trainer(tmp_path, cluster=replace(cluster, two_levels="on"), strategy=strategy)
    run = settings.start(normed(Slow), LONG)
    until(run, lambda: relay_of(run)["attending"] == 2)
    before = run.status().step
    os.kill(run.processes()[To("relay", 0)][0], signal.SIGKILL)
    until(run, lambda: run.status().step > before + 20)
    run.switch("sync")
    until(run, lambda: relay_of(run)["restarts"] >= 1 and relay_of(run)["asked_ids"] > 0)
    run.stop()
    run.wait()
    assert replay(run.folder).difference is None


def test_balanced_on_ray_leaves_the_relays_of_sync(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    """Its rounds have several leases per worker and copies. They are the steps of sync, also with a slow worker."""
    slow = ClusterModel(2, Compute(per_example=2e-4), slow=(SlowWorker(8.0, (1,)),))
    there = trainer(
        tmp_path / "ray", cluster=replace(cluster, two_levels="on"), strategy="balanced", inject=slow
    ).start(normed(Slow), DATA)
    relayed = 0.0
    while not there.finished:
        relayed = max(relayed, there.figures().get("coordinator-0", {}).get("relayed_rounds", 0))
        time.sleep(0.2)
    report = there.wait().report
    ledger = assert_exact(there.folder, 12_000)
    assert relayed == 0 and report["staleness"]["max"] == 0
    assert report["global_steps"] == -(-12_000 // 256)
    fast, late = (report["examples_by_worker"][worker] for worker in ("0", "1"))
    assert fast > 2 * late, "the shares follow the speeds"
    assert ledger.duplicated == report["duplicated_examples"]
