"""How far does a cluster go? What each role costs is measured in a real run, then queues of 10,000 are simulated.

    python benchmarks/bench_scale.py [--examples 600000]

A run on Ray (2 workers, 1 shard, gba, leases of 4,096 examples, DeepFM 16 x 26 fields) gives the CPU seconds per lease
of a worker, of the shard and of the coordinator. In the simulation every worker has a core and every shard
and the coordinator one each, first come, first served: a worker asks the coordinator, pulls from all shards, computes,
gives to all shards, reports. A shard's cost per lease is divided by the number of shards (rows lie by hash), but for
a fixed part per message. No network: its limits come on top. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import heapq
import json
from typing import Any

from bench_ray import cpu_seconds, running, wait_until

import gearshift as gs
from gearshift.run.prometheus import figures_by_role

LEASE = 4096
MESSAGE = (
    100e-6  # seconds of CPU that any message costs whoever handles it, measured in bench_wire's small calls
)


def costs(examples: int) -> dict[str, float]:
    """CPU seconds per lease, by role."""
    data = gs.read(gs.ClickLog(examples=examples, days=2))
    with running("ray", data, global_batch=2 * LEASE, workers=2, shards=1, strategy="gba") as run:
        first = wait_until(run, lambda s: s.examples >= 0.2 * s.total)
        before = by_role(run)
        last = wait_until(run, lambda s: s.examples >= 0.9 * s.total)
        after = by_role(run)
    leases = (last.examples - first.examples) / LEASE
    return {role: (after[role] - before[role]) / leases for role in before}


def by_role(run: Any) -> dict[str, float]:
    """CPU seconds so far. Of shard and coordinator, of the thread that does the work: what Ray does in the background
    takes its time whether there is work or not. Of a worker, of the whole process."""
    figures = figures_by_role(run.figures())
    workers = {pid for who, (pid, _) in run.processes().items() if who.role == "worker"}
    found = {role: figures[f"{role}_loop_cpu_seconds"] for role in ("coordinator", "shard")}
    return found | {"worker": cpu_seconds(workers)}


class Server:
    """One core, first come, first served."""

    def __init__(self) -> None:
        self.free, self.busy = 0.0, 0.0

    def serve(self, now: float, seconds: float) -> float:
        """When it is done."""
        self.free = max(self.free, now) + seconds
        self.busy += seconds
        return self.free


def simulated(workers: int, shards: int, cost: dict[str, float]) -> dict[str, float]:
    """Leases per second, and how busy coordinator and shards are."""
    coordinator, servers = Server(), [Server() for _ in range(shards)]
    of_shard = (
        cost["shard"] / 2 / shards + MESSAGE
    )  # half of it for the pull, half for the gradient and its step
    queue = [(0.0, worker, 0) for worker in range(workers)]
    leases, target, now = 0, max(20 * workers, 2000), 0.0
    while leases < target:
        now, worker, stage = heapq.heappop(queue)
        if stage == 0:
            done = coordinator.serve(now, cost["coordinator"])
        elif stage in (1, 3):
            done = max(server.serve(now, of_shard) for server in servers)
        else:
            done = now + cost["worker"]
        leases += stage == 3
        heapq.heappush(queue, (done, worker, (stage + 1) % 4))
    busiest = max(server.busy for server in servers) / now
    return {"leases": leases / now, "coordinator": coordinator.busy / now, "shards": busiest}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=600_000)
    options = parser.parse_args()
    cost = costs(options.examples)
    each = ", ".join(f"{role} {1000 * seconds:.2f} ms" for role, seconds in sorted(cost.items()))
    print(f"CPU per lease of {LEASE:,} examples: {each}", flush=True)
    table: dict[str, dict[str, float]] = {}
    print("workers  shards   examples/s   of linear   coordinator  shards busy")
    for workers in (1, 2, 8, 32, 100, 320, 1000, 3200, 10_000):
        for shards in sorted({1, max(1, workers // 32), max(1, workers // 8)}):
            found = simulated(workers, shards, cost)
            linear = (
                found["leases"] * (cost["worker"] + cost["coordinator"] + cost["shard"] / shards) / workers
            )
            rate = LEASE * found["leases"]
            table[f"{workers}/{shards}"] = {"examples_per_second": rate, "of_linear": linear}
            print(
                f"{workers:7,} {shards:7,} {rate:12,.0f} {linear:11.2f} "
                f"{found['coordinator']:12.2f} {found['shards']:12.2f}",
                flush=True,
            )
    print(json.dumps({"cpu_ms_per_lease": {k: 1000 * v for k, v in cost.items()}, "scale": table}))


if __name__ == "__main__":
    main()
