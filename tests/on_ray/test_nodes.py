"""Several raylets on this machine, as several machines: processes spread over them, and what travels is encrypted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import gearshift as gs
from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.launched_run import LaunchedRun
from gearshift.sync.registry import REPLICATED, STRATEGIES
from tests.chaos.faults import Chaos, Nodes, check, examples_in, fresh_model, nodes, settings_for, trainer
from tests.on_ray.fixtures import ON_RAY

pytestmark = [ON_RAY, pytest.mark.slow, pytest.mark.timeout(900)]
DATA = gs.read(gs.ClickLog(examples=60_000, days=2))


@pytest.fixture(scope="module")
def raylets(temporary: Path, monkeypatch_module: pytest.MonkeyPatch) -> Iterator[Nodes]:
    root = Path(__file__).parents[2]
    monkeypatch_module.setenv("PYTHONPATH", f"{root}:{root / 'tests'}")
    with nodes() as made:
        yield made


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name not in REPLICATED])
def test_a_strategy_trains_as_on_threads(tmp_path: Path, raylets: Nodes, strategy: str) -> None:
    cluster = replace(settings_for(raylets.address), patience=30.0)
    run = trainer(tmp_path, strategy, cluster=cluster).start(fresh_model(DATA), DATA)
    assert isinstance(run, LaunchedRun)
    while run.status().step < 1 or len(run.processes()) < 4:  # two shards, two workers
        assert not run.finished
        time.sleep(0.05)
    places = run.processes()
    there = run.wait(300)
    here = trainer(tmp_path / "threads", strategy).fit(fresh_model(DATA), DATA)
    assert len({node for _, node in places.values()}) == 3, "they are not spread"
    check(there.folder, DATA.counted())
    assert there.auc == pytest.approx(here.auc, abs=1e-4 if strategy == "sync" else 0.02)


def test_a_machine_that_will_go_away_is_left_in_time(tmp_path: Path, raylets: Nodes) -> None:
    """Its workers end their batches and go on elsewhere, before it is gone; what the others hold is saved."""
    data = gs.read(gs.ClickLog(examples=400_000, days=2))
    cluster = replace(settings_for(raylets.address), patience=30.0)
    run = trainer(tmp_path, "gba", cluster=cluster).start(fresh_model(data), data)
    assert isinstance(run, LaunchedRun)

    def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert not run.finished and time.monotonic() < end, run.messages
            time.sleep(0.1)

    until(lambda: run.status().step >= 3)
    machine = run.processes()[To("worker", 0)][1]
    raylets.drain(machine)
    until(lambda: any("will be removed soon: a checkpoint is taken, and " in said for said in run.messages))
    until(lambda: run.processes()[To("worker", 0)][1] != machine)
    run.stop()
    run.wait(60)
    assert not any("worker 0 restarted" in said for said in run.messages)  # nothing was begun twice
    raylets.add()


@pytest.mark.parametrize("strategy", ["sync", "gba"])
def test_a_lost_machine_does_not_end_the_run(tmp_path: Path, raylets: Nodes, strategy: str) -> None:
    chaos = Chaos(settings_for(raylets.address), tmp_path, seed=5, raylets=raylets)
    outcome = chaos.harm_a_run(strategy, ["kill node"], 20)
    assert len(outcome.harms) == 1 and outcome.steps >= examples_in(20) // 512
    assert outcome.auc == pytest.approx(outcome.calm, abs=0.02)
