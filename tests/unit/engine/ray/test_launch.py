"""A run on a cluster, seen from where it was started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("ray")

from gearshift.engine.ray.cluster_settings import ConnectionSettings
from gearshift.engine.ray.connection import Connection
from gearshift.engine.ray.launched_run import LaunchedRun
from gearshift.engine.ray.outcome import LaunchedProcesses
from gearshift.engine.ray.process_context import ProcessContext
from gearshift.engine.ray.shared_folder import SharedFolder
from gearshift.run import folder as run_folder
from gearshift.run import log as run_log
from gearshift.run import ownership


def test_a_head_that_does_not_answer_is_in_the_log(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, "a")
    mine = ownership.held(folder)
    assert mine is not None
    connection = Connection("ipc", "", ConnectionSettings(patience=1.0))
    found = SimpleNamespace(folder=SharedFolder(folder, mine.session), connection=connection, local=None)
    context = cast(ProcessContext, found)
    ray: Any = SimpleNamespace(CoordinatorWatchdog=lambda *_: None, answers=lambda: False)
    run = LaunchedRun(LaunchedProcesses(context, ray, None, None), None)
    run._watch.hear_nothing()
    assert "Ray's head does not answer" in run.messages[-1]
    assert run.messages[-1] in (folder / run_log.LOG).read_text()
    run._outcome._keeper.close()
    run_folder.finish(folder, "failed")
