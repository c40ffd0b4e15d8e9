"""A run on Ray of an earlier version goes on, on Ray: its checkpoint has no velocity of bmuf."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from gearshift.cli.app import run as gearshift
from gearshift.parameters.checkpoint import Checkpoint
from tests.on_ray.fixtures import ON_RAY

pytestmark = ON_RAY
PACKED = Path(__file__).parents[1] / "fixtures" / "old_runs" / "a58b062" / "bmuf_on_ray.tar.gz"


@pytest.mark.slow
def test_it_resumes_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with tarfile.open(PACKED) as packed:
        packed.extractall("runs", filter="data")
    folder = Path("runs/bmuf_on_ray")
    saved = Checkpoint.open((folder / "checkpoints" / "last").resolve())
    assert not saved.has("replicas")
    assert gearshift(["train", "--resume", str(folder), "train.epochs=1"]) == 0
    report = json.loads((folder / "report.json").read_text())
    assert report["examples"] == 500 and report["global_steps"] > saved.facts["step"]
    assert gearshift(["replay", str(folder)]) == 0
