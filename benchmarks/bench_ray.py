"""What does it cost to be many processes? The Ray engine beside the threads engine, on this machine.

    python benchmarks/bench_ray.py                       all of it, about 15 minutes on two idle cores
    python benchmarks/bench_ray.py --only engines        one part: engines, stragglers, snapshot, faults, transports

engines     2 workers and 1 shard on Ray against 2 worker threads, the same model, data and batches, rounds interleaved;
            examples/s of the middle of each run, and CPU seconds per million examples of all processes.
stragglers  8 workers padded to drawn durations, one of them 5x slower: gba and balanced against sync, all on Ray (limit
            4.5).
snapshot    examples/s while a checkpoint is written, against the seconds around it.
faults      seconds in which no step was made, per kind of fault: a worker, a shard, the coordinator killed.
transports  sync with dense gradients summed by all-reduce among the workers, against the servers; 2 and 4 workers, a
            small and a large dense part, 1 shard, runs interleaved; ratio of examples/s, above 1: all-reduce is faster.

`benchmarks/bench_wire.py` has the wire beside plain Ray calls. The last line is one JSON object with the keys
`ray_vs_threads`, `cpu_ratio`, `gba_vs_sync`, `balanced_vs_sync`, `snapshot_rate`, `seconds_lost` and
`all_reduce_vs_servers`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import gearshift as gs
from gearshift.config.tree import InjectSection
from gearshift.engine.ray.shared_folder import read_state

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: set[int]) -> float:
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def pids_of(run: Any) -> set[int]:
    hub = read_state(run.folder).get("pid")
    if hub is None:  # threads
        return {os.getpid()}
    return {hub, *(pid for pid, _ in run.processes().values())}


@contextmanager
def running(kind: str, data: Any, **settings: Any) -> Iterator[Any]:
    torch.manual_seed(1)
    model = gs.models.DeepFM(data.schema, dim=16, hidden=settings.pop("hidden", [256, 128]))
    policy = settings.pop("checkpoint", gs.CheckpointPolicy(every=None))
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "patience": settings.pop("patience", 30.0),
            "sync_transport": settings.pop("transport", "servers"),
            "threads": settings.get("threads", 1),
        }
        cluster = gs.ClusterSettings(**asked) if kind == "ray" else None
        policy = gs.CheckpointPolicy(policy.every, policy.keep, folder)
        workers = gs.WorkerSettings(
            settings.pop("workers", 1),
            settings.pop("shards", 1),
            settings.pop("threads", None),
            settings.pop("inject", None),
        )
        trainer = gs.Trainer(workers=workers, cluster=cluster, checkpoint=policy, **settings)
        run = trainer.start(model, data)
        try:
            yield run
        finally:
            if not run.finished:
                run.stop()
            run.wait(120)


def wait_until(run: Any, reached: Callable[[Any], bool], seconds: float = 300.0) -> Any:
    end = time.monotonic() + seconds
    while not reached(status := run.status()):
        if run.finished or time.monotonic() > end:
            raise RuntimeError(f"the run ended at {status}")
        time.sleep(0.05)
    return status


def rate(run: Any, share: float, until: float) -> tuple[float, float]:
    """Examples/s between two shares of the run, and CPU seconds per example."""
    first = wait_until(run, lambda s: s.examples >= share * s.total)
    began, cpu = time.perf_counter(), cpu_seconds(pids := pids_of(run))
    last = wait_until(run, lambda s: s.examples >= until * s.total)
    examples = last.examples - first.examples
    return examples / (time.perf_counter() - began), (cpu_seconds(pids) - cpu) / examples


def engines(options: argparse.Namespace) -> dict[str, float]:
    data = gs.read(gs.ClickLog(examples=options.examples, days=2))
    found: dict[str, list[tuple[float, float]]] = {"threads": [], "ray": []}
    for _ in range(options.rounds):
        for kind, rates in found.items():
            with running(kind, data, global_batch=8192, workers=2, shards=1, threads=2) as run:
                rates.append(rate(run, 0.2, 0.9))
            print(
                f"{kind}: {rates[-1][0]:,.0f} examples/s, {1e6 * rates[-1][1]:.1f} CPU s per million",
                flush=True,
            )
    speed = [r[0] / t[0] for r, t in zip(found["ray"], found["threads"], strict=True)]
    cpu = [r[1] / t[1] for r, t in zip(found["ray"], found["threads"], strict=True)]
    return {"ray_vs_threads": statistics.median(speed), "cpu_ratio": statistics.median(cpu)}


def stragglers(options: argparse.Namespace) -> dict[str, float]:
    cluster = InjectSection(step=options.step, slow=("0=5x",)).cluster(8, batch=2048 / 8)
    data = gs.read(gs.ClickLog(examples=options.examples, days=2))
    found = {}
    for strategy in ("sync", "balanced", "gba"):
        with running("ray", data, global_batch=2048, workers=8, strategy=strategy, inject=cluster) as run:
            wait_until(run, lambda s: s.step >= 5)
            first, began = run.status(), time.perf_counter()
            time.sleep(options.seconds)
            last = run.status()
            found[strategy] = (last.examples - first.examples) / (time.perf_counter() - began)
        print(f"{strategy}, 1 of 8 workers 5x slower: {found[strategy]:,.0f} examples/s", flush=True)
    return {
        "gba_vs_sync": found["gba"] / found["sync"],
        "balanced_vs_sync": found["balanced"] / found["sync"],
    }


def snapshot(options: argparse.Namespace) -> dict[str, float]:
    data = gs.read(gs.ClickLog(examples=20 * options.examples, days=2))
    ratios = []
    with running("ray", data, global_batch=8192, workers=2, shards=1, threads=2) as run:
        wait_until(run, lambda s: s.examples >= 0.3 * options.examples)
        for _ in range(options.rounds):
            before = over(run, options.window)
            seen = len(list((run.folder / "checkpoints").glob("step-*")))
            run.checkpoint()
            first, began = run.status(), time.perf_counter()
            while len(list((run.folder / "checkpoints").glob("step-*"))) <= seen and not run.finished:
                time.sleep(0.02)
            took = time.perf_counter() - began
            during = (run.status().examples - first.examples) / took
            after = over(run, options.window)
            ratios.append(2 * during / (before + after))
            print(f"a snapshot took {took:.2f} s, at {ratios[-1]:.2f} of the rate around it", flush=True)
    return {"snapshot_rate": statistics.median(ratios)}


def over(run: Any, seconds: float) -> float:
    first, began = run.status(), time.perf_counter()
    time.sleep(seconds)
    return float((run.status().examples - first.examples) / (time.perf_counter() - began))


def faults(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Seconds until the run is again where it was, and makes steps."""
    data = gs.read(gs.ClickLog(examples=20 * options.examples, days=2))
    lost: dict[str, list[float]] = {"worker": [], "shard": [], "coordinator": []}
    policy = gs.CheckpointPolicy(gs.Every(steps=20))
    settings = {"global_batch": 8192, "workers": 2, "shards": 1, "strategy": "gba", "checkpoint": policy}
    with running("ray", data, patience=5.0, **settings) as run:
        wait_until(run, lambda s: s.step >= 30)
        for _ in range(options.rounds):
            for kind, seconds in lost.items():
                speed = over(run, options.window)
                places = {who.role: pid for who, (pid, _) in run.processes().items()}
                pid = read_state(run.folder)["pid"] if kind == "coordinator" else places[kind]
                examples, began = run.status().examples, time.perf_counter()
                os.kill(pid, signal.SIGKILL)
                time.sleep(options.settle)
                wait_until(run, lambda s, n=examples: s.examples > n + 50_000)
                took = time.perf_counter() - began
                seconds.append(took - (run.status().examples - examples) / speed)
                print(f"{kind} killed: {seconds[-1]:.1f} s of training lost", flush=True)
                wait_until(run, lambda s, n=run.status().step: s.step >= n + 30)
    return {"seconds_lost": {kind: statistics.median(found) for kind, found in lost.items()}}


HIDDEN = {"small": [64, 32], "large": [1024, 1024, 512]}


def transports(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    data = gs.read(gs.ClickLog(examples=options.examples, days=2))
    found: dict[str, float] = {}
    for workers in (2, 4):
        for size, hidden in HIDDEN.items():
            rates: dict[str, list[float]] = {"servers": [], "all_reduce": []}
            for _ in range(options.rounds):
                for transport, own in rates.items():
                    own.append(sync_rate(data, options, workers=workers, hidden=hidden, transport=transport))
                    print(
                        f"sync, {workers} workers, {size} dense part, {transport}: {own[-1]:,.0f} examples/s",
                        flush=True,
                    )
            pairs = zip(rates["all_reduce"], rates["servers"], strict=True)
            found[f"{workers} workers, {size}"] = statistics.median(ours / theirs for ours, theirs in pairs)
    return {"all_reduce_vs_servers": found}


def sync_rate(data: Any, options: argparse.Namespace, **settings: Any) -> float:
    """Examples/s of a run that has come into its stride."""
    with running("ray", data, global_batch=4096, shards=1, epochs=100, strategy="sync", **settings) as run:
        wait_until(run, lambda s: s.step >= 20)
        rings = run.figures()["coordinator-0"]["ring_rounds"]
        found = over(run, options.window)
        if (run.figures()["coordinator-0"]["ring_rounds"] > rings) != (settings["transport"] == "all_reduce"):
            raise RuntimeError(f"it did not go by {settings['transport']}")
    return found


PARTS = {
    "engines": engines,
    "stragglers": stragglers,
    "snapshot": snapshot,
    "faults": faults,
    "transports": transports,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--examples", type=int, default=600_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--step", type=float, default=0.4, help="seconds that an undisturbed batch is padded to"
    )
    parser.add_argument(
        "--seconds", type=float, default=60, help="that each strategy is watched beside a straggler"
    )
    parser.add_argument("--window", type=float, default=4, help="seconds over which a rate is taken")
    parser.add_argument(
        "--settle", type=float, default=2, help="seconds after a kill in which nothing is asked"
    )
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for name in options.only.split(","):
        figures |= PARTS[name](options)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
