"""A run in this process and an attached one do the same for whoever holds them; one on Ray is in tests/on_ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import gearshift as gs
from examples import PLAIN
from gearshift.engine.ray.launched_run import LaunchedRun
from gearshift.run.run_handle import RunHandle

from .engines import data
from .run_handles import check_run, check_signatures


@pytest.fixture
def live(tmp_path: Path) -> Iterator[gs.Run]:
    policy = gs.CheckpointPolicy(None, path=tmp_path)
    trainer = gs.Trainer(global_batch=80, workers=2, epochs=1_000_000, checkpoint=policy)
    run = trainer.start(gs.models.LR(PLAIN), data(800))
    assert isinstance(run, gs.Run)
    yield run
    run.stop()
    run.wait(60)


@pytest.mark.parametrize("kind", [gs.Run, gs.RemoteRun, LaunchedRun])
def test_signatures_are_the_same(kind: type) -> None:
    check_signatures(kind)


@pytest.mark.parametrize("held", ["in this process", "attached"])
def test_a_run_does_what_its_handle_promises(live: gs.Run, held: str) -> None:
    run: RunHandle = live if held == "in this process" else gs.attach(live.folder)
    check_run(run)
