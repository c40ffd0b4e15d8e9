"""A run on a local Ray cluster, seen from other processes, also when the one that started it is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gearshift.config import load_config
from gearshift.config.build import start
from gearshift.engine.ray import launch, shared_folder
from gearshift.errors import UserError
from gearshift.run import folder as run_folder
from gearshift.run import prometheus

CONFIG = """\
name: far
data: {synthetic: {examples: 60000, days: 1}}
model: {name: deepfm, dim: 4, hidden: [8]}
train: {global_batch: 512, epochs: 100, baseline: false}
cluster: {engine: ray, workers: 2, shards: 1, resources: {coordinator_cpus: 0.1, shard_cpus: 0.1, worker_cpus: 0.1}}
"""


def gearshift(*arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "gearshift", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that end with the test, as the run does."""
    found: list[subprocess.Popen[str]] = []
    yield found
    if run_folder.read(Path("runs/last")).is_live:
        gearshift("stop")
    for process in found:
        process.kill()
        process.wait()


def test_a_run_without_its_starter_is_watched_measured_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("far.yaml").write_text(CONFIG)
    train = [sys.executable, "-m", "gearshift", "train", "far.yaml"]
    process = subprocess.Popen(train, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    started.append(process)
    log = Path("runs/last/events-000.jsonl")
    until(lambda: log.exists() and '"apply"' in log.read_text())
    process.send_signal(signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert out.startswith("far -> "), "the header came from the coordinator"
    assert "token authentication is off" not in out
    name = Path("runs/last").resolve().name

    watch = [sys.executable, "-u", "-m", "gearshift", "watch"]
    watching = subprocess.Popen(watch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    started.append(watching)
    assert watching.stdout is not None and watching.stdout.readline() == out.splitlines(keepends=True)[0]
    until(lambda: "gearshift_batches_total" in gearshift("metrics"))
    text = gearshift("metrics")
    assert f'gearshift_restarts_total{{run="{name}",role="shard",number="0"}} 0' in text
    assert f'gearshift_workers{{run="{name}",role="coordinator",number="0"}} 2' in text
    for role in ("coordinator", "shard", "worker"):
        label = f'{{run="{name}",role="{role}",number="0"}}'
        sent = next(
            line for line in text.splitlines() if line.startswith(f"gearshift_sent_bytes_total{label}")
        )
        assert float(sent.split()[-1]) > 0
    until(lambda: any(line.get("worker_batches") for line in run_folder.metrics(Path("runs/last"))))
    *_, line = run_folder.metrics(Path("runs/last"))
    assert line["shard_received_bytes"] > 0 and line["coordinator_restarts"] == 0
    roles = ("coordinator", "shard", "worker")
    known = {key.partition("_")[2] for key in line if key.startswith(roles)}
    of_replicas = {"exchanges", "exchanged_bytes"}
    of_tiers = {*prometheus.TIER_COUNTERS, *prometheus.TIER_GAUGES}
    explained = {*prometheus.COUNTERS, *prometheus.GAUGES}
    assert known == explained - of_replicas - of_tiers, "each is explained, and nothing else"
    assert gearshift("stop").startswith(f"stopped {name}; saved")
    said, _ = watching.communicate(timeout=60)
    assert watching.returncode == 143 and f"run {name} was stopped and saved" in said
    assert "token authentication is off" not in said, "a cluster of the run's own has it on"


@pytest.mark.slow
def test_a_folder_that_others_do_not_see_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("far.yaml").write_text(CONFIG)
    write = shared_folder.write_state
    hidden = lambda folder, **changed: write(folder, **{k: v for k, v in changed.items() if k != "token"})  # noqa: E731
    monkeypatch.setattr(launch, "write_state", hidden)
    run = start(load_config("far.yaml"))
    with pytest.raises(UserError, match=r"does not see the run's folder .*; set checkpoint.path to a folder"):
        run.wait(120)
    record = run_folder.read(run.folder)
    assert record.state == "failed" and "does not see the run's folder" in record.reason
