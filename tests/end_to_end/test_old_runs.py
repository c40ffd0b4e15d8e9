"""Runs of earlier versions still open, resume and replay. tests/fixtures/old_runs has them, and how they were made."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from pyarrow import csv as arrow_csv

import gearshift as gs
from gearshift.cli.app import run as gearshift
from gearshift.parameters.checkpoint import read_facts

PACKED = Path(__file__).parents[1] / "fixtures" / "old_runs"
ALL = sorted(str(path.relative_to(PACKED)).removesuffix(".tar.gz") for path in PACKED.glob("*/*.tar.gz"))
STOPPED = [name for name in ALL if not name.endswith("finished")]
LOG = gs.ClickLog(examples=1000, days=2)  # as these runs generate it
VALID = 500  # examples: the second day


@pytest.fixture
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of an earlier version, in a working folder of its own. Most commands name it as `last`."""
    monkeypatch.chdir(tmp_path)
    with tarfile.open(PACKED / f"{request.param}.tar.gz") as packed:
        packed.extractall("runs", filter="data")
    folder = next(Path("runs").iterdir())
    Path("runs/last").symlink_to(folder.name)
    return folder


def of(names: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("old", names, indirect=True)


def last_checkpoint(folder: Path) -> Path:
    return (folder / "checkpoints" / "last").resolve()


def test_there_are_runs_of_three_versions() -> None:
    assert [
        "05bab47/tiered",
        *(f"3a4fbcc/{name}" for name in ("easgd", "gba", "sync")),
        *(f"a58b062/{name}" for name in ("bmuf_on_ray", "finished")),
    ] == ALL


@of(ALL)
def test_it_loads_and_measures_as_it_did(old: Path) -> None:
    step = read_facts(last_checkpoint(old))["step"]
    metrics = old / "metrics.jsonl"  # one that stopped before its first evaluation has none
    lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    measured = [line for line in lines if line["step"] == step and "valid_auc" in line]
    model = gs.load(last_checkpoint(old))
    _, valid = gs.read(LOG).split(time="2026-11-02")
    now = model.evaluate(valid)
    assert now.measures.examples == VALID
    for line in measured:  # not every run stopped at an evaluation
        assert now.auc == pytest.approx(line["valid_auc"], abs=1e-3)  # it was computed from bins once
        assert now.logloss == pytest.approx(line["valid_logloss"], abs=1e-6)


@of(ALL)
def test_evaluate_and_predict(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LOG.write_csv("clicks.csv")
    assert gearshift(["evaluate", "last", "clicks.csv", "--json", "figures.json"]) == 0, capsys.readouterr()
    assert json.loads(Path("figures.json").read_text())[0]["auc"] > 0.4
    assert gearshift(["predict", "last", "clicks.csv", "-o", "scores.csv"]) == 0, capsys.readouterr()
    scores = arrow_csv.read_csv("scores.csv")
    assert scores.num_rows == 1000
    model = gs.load(old)
    np.testing.assert_allclose(scores.column(0).to_numpy(), model.predict(gs.read(LOG)), atol=1e-6)


@of(STOPPED)
def test_it_resumes_to_its_end(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_facts(last_checkpoint(old))["step"]
    here = ["cluster.engine=threads", "train.epochs=1"]  # one of them was on Ray, for many epochs
    assert gearshift(["train", "--resume", "last", *here]) == 0, capsys.readouterr()
    report = json.loads((old / "report.json").read_text())
    assert report["examples"] == 500 and report["global_steps"] > before
    assert gearshift(["replay", "last"]) == 0, capsys.readouterr()


@of(ALL)
def test_replay_runs_status_and_inspect(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = "done" if old.name == "finished" else "stopped"
    for command in ("replay", "status", "inspect"):
        assert gearshift([command, "last"]) == 0, capsys.readouterr()
        assert capsys.readouterr().out
    assert gearshift(["runs"]) == 0
    out = capsys.readouterr().out
    assert old.name in out and state in out
    assert gearshift(["status", "last"]) == 0
    assert state in capsys.readouterr().out


@of(["3a4fbcc/sync"])
def test_one_worker_goes_on_as_if_nothing_had_happened(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest of the run is what this version makes of the whole: to rounding, since processors differ.

    The average of the weights has no earlier half: that version had none.
    """
    newest = "train.average=off"
    assert gearshift(["train", "--resume", "last", newest]) == 0, capsys.readouterr()
    config = old / "config.yaml"
    assert gearshift(["train", str(config), "checkpoint.path=again", newest]) == 0, capsys.readouterr()
    resumed, whole = (gs.load(last_checkpoint(Path(p))) for p in ("runs/last", "again/last"))
    data = gs.read(LOG)
    np.testing.assert_allclose(resumed.predict(data), whole.predict(data), atol=1e-5)
