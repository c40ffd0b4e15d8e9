"""How many bytes cross the link of a machine, if its workers exchange through a relay? As root, on one machine.

    python benchmarks/bench_two_levels.py               about 6 minutes on two idle cores
    python benchmarks/bench_two_levels.py --rounds 3

Four workers on two hosts, coordinator and shard on a third; each host is a network namespace with its own link, and
the traffic stays inside them. Bytes that cross the links of the two hosts, in both directions, per trained example:
`cluster.two_levels=on` against `off`, in runs one after the other, interleaved.

merges      k_step_adam, merging every 2 batches, with a large dense part
sync        sync with few dense parameters: rows cross by their overlap, which the relays count
dense       sync with a large dense part

The last line is one JSON object: `bytes_ratio` (of `merges`), and `cases` with the ratio of each case and the share of
rows that relays asked for (`overlap` is the rest). Ratios of bytes do not depend on the load of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

import gearshift as gs
from tests.chaos.hosts import Hosts, hosts, may_be_made

BATCH, WORKERS = 256, 4
WARM, STEPS, SECONDS = 16, 80, 300.0


@dataclass(frozen=True)
class Case:
    strategy: dict[str, Any]
    model: Callable[[Any], Any]


CASES = {
    "merges": Case(
        {"name": "k_step_adam", "exchange": 2, "mode": "params", "warmup_steps": 0},
        lambda schema: gs.models.DNN(schema, dim=4, hidden=[1024, 512]),
    ),
    "sync": Case({"name": "sync"}, lambda schema: gs.models.FM(schema, dim=16)),
    "dense": Case({"name": "sync"}, lambda schema: gs.models.DNN(schema, dim=4, hidden=[1024, 512])),
}


@dataclass(frozen=True)
class Measured:
    bytes_per_example: float
    fetched: float  # of the rows that workers asked for, the share that crossed the link


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parse.add_argument("--rounds", type=int, default=1)
    parse.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    options = parse.parse_args()
    if not may_be_made():
        raise SystemExit(
            "this machine does not let us make network namespaces: run it as root, with iproute2"
        )
    found: dict[str, dict[str, list[Measured]]] = {}
    with hosts(3, cpus=4.0) as made, tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for name in options.only:
                for levels in ("off", "on") if number % 2 == 0 else ("on", "off"):
                    one = measure(made, Path(folder), CASES[name], levels)
                    found.setdefault(name, {}).setdefault(levels, []).append(one)
                    print(
                        f"{name:8} two_levels={levels:3}  {one.bytes_per_example:10,.0f} bytes/example  "
                        f"rows fetched {one.fetched:.2f}",
                        flush=True,
                    )
    cases = {name: summary(of) for name, of in found.items()}
    for name, case in cases.items():
        print(f"{name}: {case['ratio']:.3f} of the bytes; overlap of rows {case['overlap']:.2f}")
    print(json.dumps({"bytes_ratio": cases.get("merges", {}).get("ratio"), "cases": cases}))


def summary(of: dict[str, list[Measured]]) -> dict[str, float]:
    one, two = (statistics.median(m.bytes_per_example for m in of[levels]) for levels in ("off", "on"))
    fetched = statistics.median(m.fetched for m in of["on"])
    return {
        "one_level": round(one),
        "two_levels": round(two),
        "ratio": round(two / one, 4),
        "overlap": round(1 - fetched, 4),
    }


def measure(made: Hosts, folder: Path, case: Case, levels: str) -> Measured:
    data = gs.read(gs.ClickLog(examples=4_000_000, days=1))
    trainer = gs.Trainer(
        global_batch=WORKERS * BATCH,
        workers=gs.WorkerSettings(WORKERS, 1, threads=1),
        strategy={"batch": BATCH, **case.strategy},
        checkpoint=gs.CheckpointPolicy(None, path=folder),
        cluster=settings_for(made, levels),
    )
    run = trainer.start(case.model(data.schema), data)
    try:
        ready(run, levels)
        begin = until(run, run.status().step + WARM)
        before, asked = crossed(run, made), relayed(run)
        end = until(run, begin.step + STEPS)
        after, asked_since = crossed(run, made), relayed(run)
    finally:
        run.stop()
        run.wait()
    ids = [b - a for a, b in zip(asked, asked_since, strict=True)]
    return Measured((after - before) / (end.examples - begin.examples), ids[1] / ids[0] if ids[0] else 1.0)


def settings_for(made: Hosts, levels: str) -> gs.ClusterSettings:
    """Two workers fill a host, and so do coordinator and shard."""
    return gs.ClusterSettings(
        address=made.address,
        wire="curve",
        two_levels=levels,  # type: ignore[arg-type]
        coordinator_cpus=2.5,
        shard_cpus=1.5,
        worker_cpus=2.0,
    )


def ready(run: Any, levels: str) -> None:
    end = time.monotonic() + SECONDS
    while True:
        figures = run.figures()
        workers = figures.get("coordinator-0", {}).get("workers", 0)
        attending = sum(of.get("attending", 0) for name, of in figures.items() if name.startswith("relay-"))
        if workers == WORKERS and attending == (WORKERS if levels == "on" else 0):
            return
        assert not run.finished and time.monotonic() < end, f"not ready: {figures.keys()} {run.messages}"
        time.sleep(0.2)


def until(run: Any, step: int) -> Any:
    end = time.monotonic() + SECONDS
    while (status := run.status()).step < step:
        assert not run.finished and time.monotonic() < end, f"at step {status.step}: {run.messages}"
        time.sleep(0.05)
    return status


def crossed(run: Any, made: Hosts) -> int:
    """Over the links of the hosts that have workers."""
    places = {who: node for who, (_, node) in run.processes().items()}
    servers = {node for who, node in places.items() if who[0] in ("shard", "coordinator")}
    workers = {node for who, node in places.items() if who[0] == "worker"}
    assert len(workers) == 2 and not workers & servers, f"processes are placed otherwise: {places}"
    return sum(made.moved(number) for number in made.numbers if made.host(number) in addresses(workers))


def addresses(nodes: set[str]) -> set[str]:
    import ray

    return {node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] in nodes}


def relayed(run: Any) -> tuple[float, float]:
    """Ids that workers asked their relays for, and that these asked the shard for."""
    relays = [of for name, of in run.figures().items() if name.startswith("relay-")]
    return sum(of.get("asked_ids", 0) for of in relays), sum(of.get("sent_ids", 0) for of in relays)


if __name__ == "__main__":
    main()
