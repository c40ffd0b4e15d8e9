"""python -m tests.chaos.outage [--patience 30] [FAULT ...]: how many seconds a run makes no step after a fault.

A fault is `kill WHO` or `freeze WHO` (SIGSTOP, for ever) of worker, shard or coordinator. Each fault gets a run of its
own on a local cluster, in sync, two workers and two shards, a checkpoint every 4 s.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from pathlib import Path

os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (Path.cwd(), Path.cwd() / "tests")))

import torch

import gearshift as gs
from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.launched_run import LaunchedRun
from tests.on_ray.modules import Slow

FAULTS = [f"{what} {whom}" for what in ("kill", "freeze") for whom in ("worker", "shard", "coordinator")]
LONGEST = 240.0  # seconds without a step, after which we give up
AFTERWARDS = 10.0  # seconds of steps after which the run counts as recovered


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("faults", nargs="*", default=FAULTS)
    parse.add_argument("--patience", type=float, default=30.0)
    asked = parse.parse_args()
    for fault in asked.faults:
        with tempfile.TemporaryDirectory(prefix="outage-", ignore_cleanup_errors=True) as folder:
            seconds, messages = measure(Path(folder), fault, asked.patience)
        print(f"{fault:20} patience {asked.patience:g}: {seconds:5.1f} s without a step", flush=True)
        for line in messages:
            print(f"    {line}", flush=True)


def measure(folder: Path, fault: str, patience: float) -> tuple[float, list[str]]:
    run = start(folder, patience)
    try:
        while run.status().step < 30 or not (run.folder / "checkpoints" / "last").exists():
            assert not run.finished, run.messages
            time.sleep(0.05)
        said = len(run.messages)
        what, whom = fault.split()
        harm(pid_of(run, whom), signal.SIGKILL if what == "kill" else signal.SIGSTOP)
        return longest_gap(run), run.messages[said:]
    finally:
        run.stop()
        until = time.monotonic() + 60
        while not run.finished and time.monotonic() < until:
            time.sleep(0.1)


def start(folder: Path, patience: float) -> LaunchedRun:
    data = gs.read(gs.ClickLog(examples=2_000_000, days=2))
    torch.manual_seed(2)
    trainer = gs.Trainer(
        global_batch=256,
        workers=gs.WorkerSettings(2, shards=2, threads=1),
        checkpoint=gs.CheckpointPolicy(gs.Every(seconds=4.0), path=folder),
        cluster=gs.ClusterSettings(patience=patience, coordinator_cpus=0.5, shard_cpus=0.5, worker_cpus=0.5),
    )
    run = trainer.start(Slow(data.schema), data)
    assert isinstance(run, LaunchedRun)
    return run


def pid_of(run: LaunchedRun, whom: str) -> int:
    if whom == "coordinator":
        return int(json.loads((run.folder / "cluster.json").read_text())["pid"])
    return run.processes()[To(whom, 1)][0]  # type: ignore[arg-type]


def harm(pid: int, how: signal.Signals) -> None:
    os.kill(pid, how)


def longest_gap(run: LaunchedRun) -> float:
    """The longest time between two steps, until steps have been made for a while after it."""
    last_step, last_at, longest, ended_at = run.status().step, time.monotonic(), 0.0, time.monotonic()
    while time.monotonic() - ended_at < AFTERWARDS + (45 if longest < 2 else 0):
        step, now = run.status().step, time.monotonic()
        if now - last_at > LONGEST or run.finished:
            return float("inf")
        if step > last_step:
            if now - last_at > longest:
                longest, ended_at = now - last_at, now
            last_at = now
        last_step = step
        time.sleep(0.05)
    return longest


if __name__ == "__main__":
    main()
