"""A run of one process, controlled by commands of others: switched, stopped, and its log replayed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLES = 40_000
TRAIN = f"""
import time
import gearshift as gs

class Wait(gs.Callback):  # slow until it was switched twice, so that there is a run to switch
    switches = 0
    def on_step(self, run):
        if self.switches < 2:
            time.sleep(0.05)
    def on_switch(self, run, switch):
        self.switches += 1

log = gs.ClickLog(examples={EXAMPLES}, days=1)
from gearshift.data.readers.generated import GeneratedExamples
data = gs.Dataset(GeneratedExamples(log))
model = gs.models.DeepFM(data.schema, dim=4, hidden=[8])
result = gs.Trainer(
    global_batch=64, workers=4, training=gs.TrainingSettings(shuffle=False)
).fit(model, data, name="live", callbacks=[Wait()])
print(result.report["examples"], result.report["strategy"], result.report["applied"], result.report["discarded"])
"""
CONFIG = """\
name: long
data: {synthetic: {examples: 400000, days: 1}}
model: {name: deepfm, dim: 4, hidden: [8]}
train: {global_batch: 64, epochs: 100, baseline: false}
"""


def gearshift(*arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "gearshift", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def started(*command: str) -> subprocess.Popen[str]:
    """Returns when its first steps are in the log."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 90
    log = Path("runs/last/events-000.jsonl")
    while not (log.exists() and '"apply"' in log.read_text()):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(process.communicate()[0])
        time.sleep(0.1)
    return process


def test_a_run_of_four_workers_is_switched_live_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    process = started(sys.executable, "-c", TRAIN)
    try:
        name = Path("runs/last").resolve().name
        said = gearshift("switch", "last", "gba", "max_lag=8", "--reason", "to see it")
        assert said.startswith(f"switched {name} from sync to gba after step ") and said.endswith(
            "none lost\n"
        )
        assert "has no setting `max_lagg`" in gearshift("switch", "gba", "max_lagg=8", code=2)
        assert "max_lag is 'x': it must be a number" in gearshift("switch", "gba", "max_lag=x", code=2)
        assert f"{name} continues with 6 workers" in gearshift("resize", "--workers", "6")
        assert "from gba to async" in gearshift("switch", "live", "async")
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, out
    examples, strategy, applied, discarded = out.split()[-4:]
    assert (int(examples), strategy) == (EXAMPLES, "async")
    assert int(applied) + int(discarded) >= EXAMPLES / 16, "after the resize batches are smaller"
    verdict = gearshift("replay", "last")
    assert verdict.startswith("same decisions: ")
    assert "3 switches, 1 epoch" in verdict, "a resize cuts the batch anew, which is one"
    assert ": to see it" in gearshift("replay", "--show")
    assert not list(Path("runs/last/").glob("control.*"))
    assert f"run {name} is not running (done " in gearshift("switch", "sync", code=2)


def test_a_run_is_stopped_from_outside_resumed_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("long.yaml").write_text(CONFIG)
    process = started(sys.executable, "-m", "gearshift", "train", "long.yaml")
    try:
        said = gearshift("stop")
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert said.startswith("stopped long-") and "Resume: gearshift train --resume runs/long-" in said
    assert process.returncode == 143 and "stop requested by another process" in out
    assert "Saved step" in out
    Path("runs/last/events-000.jsonl").rename("runs/last/events-007.jsonl")
    process = subprocess.Popen(
        [sys.executable, "-m", "gearshift", "train", "--resume", "last"], stdout=subprocess.DEVNULL
    )
    try:
        log, deadline = Path("runs/last/events-008.jsonl"), time.monotonic() + 90
        while not log.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    assert json.loads(log.read_text().splitlines()[0])["step"] > 0
    assert gearshift("replay").startswith("same decisions: ")
    assert "is not running (failed: its process is gone" in gearshift("switch", "gba", code=2)
