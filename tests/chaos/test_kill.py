"""A run that is killed for real: what was saved is whole, and the resumed run ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from gearshift.parameters.checkpoint import Checkpoint

CONFIG = """\
name: victim
data: {synthetic: {examples: 60k, days: 2}}
model: {name: deepfm, dim: 4, hidden: [16], dropout: 0.2}
train: {global_batch: 256, eval_every: none, baseline: false}
cluster: {threads: 1}
checkpoint: {every: 10, keep: 3}
"""


def gearshift(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gearshift", *arguments]


def state(folder: Path) -> dict[str, np.ndarray]:
    last = Checkpoint.open((folder / "checkpoints" / "last").resolve())
    blocks = list(last.rows("rows0"))
    rows = {name: np.concatenate([getattr(b, name) for b in blocks]) for name in vars(blocks[0])}
    return rows | last.arrays("dense") | last.arrays("optimizer")


def test_killed_and_resumed_equals_undisturbed(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(CONFIG)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}

    def run(*arguments: str) -> None:
        subprocess.run(gearshift(*arguments), cwd=tmp_path, env=environment, check=True, timeout=250)

    victim = subprocess.Popen(gearshift("train", "a.yaml"), cwd=tmp_path, env=environment)
    try:
        killed_at = time.monotonic() + 120
        while not list(tmp_path.glob("runs/victim-*/checkpoints/last")) and victim.poll() is None:
            assert time.monotonic() < killed_at, "no checkpoint within two minutes"
            time.sleep(0.02)
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait(30)
    (folder,) = (f for f in tmp_path.glob("runs/victim-*") if not f.is_symlink())
    assert victim.returncode == -signal.SIGKILL and not (folder / "report.json").exists()
    run("train", "--resume", str(folder))
    run("train", "a.yaml", "name=calm")
    (calm,) = tmp_path.glob("runs/calm-*")
    expected, got = state(calm), state(folder)
    assert expected.keys() == got.keys()
    for name in expected:
        np.testing.assert_array_equal(expected[name], got[name], err_msg=name)
    figures = [json.loads((f / "report.json").read_text())["progressive"] for f in (calm, folder)]
    assert figures[0] == figures[1]
