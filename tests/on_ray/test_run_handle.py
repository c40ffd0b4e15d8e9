"""A run on Ray does for its starter what a run in one process does for its user."""

from __future__ import annotations

from pathlib import Path

import gearshift as gs
from gearshift.engine.ray.launched_run import LaunchedRun
from tests.conformance.run_handles import check_run
from tests.on_ray.fixtures import ON_RAY
from tests.on_ray.modules import Slow
from tests.on_ray.test_runs import normed, trainer

pytestmark = ON_RAY
DATA = gs.read(gs.ClickLog(examples=60_000, days=2))


def test_a_launched_run_does_what_its_handle_promises(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    run = trainer(tmp_path, cluster=cluster, shuffle=False, strategy="sync").start(normed(Slow), DATA)
    assert isinstance(run, LaunchedRun)
    check_run(run)
