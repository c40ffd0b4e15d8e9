"""What the event log costs the thread that decides: the same decisions with and without a log, taking turns.

    python benchmarks/bench_event_log.py        under a minute

A lease is three events (its examples are supplied, a worker asks, its gradient arrives). The share of a second that
1,000 leases take is what the log holds the interpreter for: about the loss of examples/s if all else is bound by it.
The last line is JSON: microseconds per event and per lease with the median of the rounds, and that share.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from gearshift.event_log import EventLog, Head, files
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.messages import (
    Action,
    Begin,
    Event,
    GradientArrived,
    Supplied,
    WorkerJoined,
    WorkRequested,
)
from gearshift.sync.registry import make_strategy

WORKERS, LEASES, ROUNDS = 8, 20_000, 7
SETTINGS = {"global_batch": 1024, "batch": 128}


def run(strategy: str, log: Callable[[Event, list[Action]], None] | None) -> float:
    """Seconds for all leases, eight workers in turn."""
    coordinator = Coordinator(make_strategy(strategy, SETTINGS), make_strategy)
    begun: list[Begin] = []

    def tell(event: Event) -> None:
        actions = coordinator.handle(event)
        if log is not None:
            log(event, actions)
        begun.extend(action for action in actions if isinstance(action, Begin))

    began = time.perf_counter()
    for worker in range(WORKERS):
        tell(WorkerJoined(worker, 0.0))
    for worker in range(WORKERS):
        tell(WorkRequested(worker, 0.0))
    for lease in range(LEASES):
        at = time.perf_counter() - began
        tell(Supplied(lease * 128, 128, 128, at))
        if len(begun) == WORKERS:
            for begin in [begun.pop(0) for _ in range(WORKERS)]:
                tell(GradientArrived(begin.worker, begin.lease.number, at))
                tell(WorkRequested(begin.worker, at))
    return time.perf_counter() - began


def measure(strategy: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        differences, bare, size = [], [], 0
        for _ in range(ROUNDS):
            without = run(strategy, None)
            log = EventLog(Path(folder), print)
            log.begin(Head(strategy, SETTINGS))
            differences.append(run(strategy, log) - without)
            bare.append(without)
            log.close()
        size = sum(path.stat().st_size for path in files(Path(folder)))
    per_lease = median(differences) / LEASES
    return {
        "microseconds_per_event": round(per_lease / 3 * 1e6, 2),
        "microseconds_per_lease": round(per_lease * 1e6, 2),
        "deciding_microseconds_per_lease": round(median(bare) / LEASES * 1e6, 2),
        "share_at_1000_leases_per_second": round(per_lease * 1000, 5),
        "bytes_per_lease": round(size / LEASES / ROUNDS, 1),
    }


if __name__ == "__main__":
    print(json.dumps({strategy: measure(strategy) for strategy in ("sync", "gba", "async")}))
