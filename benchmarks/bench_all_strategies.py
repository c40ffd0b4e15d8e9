"""Every strategy, gradient and replica, on the same data and clusters: one table each, as `gearshift compare` has it.

    python benchmarks/bench_all_strategies.py                       about 8 minutes of CPU, one core
    python benchmarks/bench_all_strategies.py --examples 20000 --seeds 2 --clusters even      a small form

Real gradients in virtual time (`replicas/arms.py`): eight workers, batches of 128, DeepFM, one pass from a cold start,
AUC on the next day. Clusters: `even` (fast link), `one_slow` (one of eight 5x slower), `slow_link` (the dense
parameters take as long as three batches one way). All have the same rates, dense 2e-3 and rows .02: what a user gets
who changes one word. `switches`: half of the data in sync, then the strategy for a quarter, then sync again. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from replicas.arms import FAST_LINK, SLOW_LINK, Arm, Rates, Score, difference, plain, run, text

from gearshift.cli.compare import CompareOptions, table
from gearshift.cluster_model.cluster import Slow
from gearshift.experiments.paired_runs import StrategyRuns as Compared
from gearshift.experiments.paired_runs import compare

EVERY_5 = {"exchange": {"every": 5}}
ARMS = {
    "sync": Arm("sync"),
    "gba": Arm("gba"),
    "async": Arm("async"),
    "bounded_staleness": Arm("bounded_staleness"),
    "ringmaster": Arm("ringmaster"),
    "buffered_async": Arm("buffered_async"),
    "backup_workers": Arm("backup_workers", workers=9),
    "easgd": Arm("easgd"),
    "easgd every 5": Arm("easgd", EVERY_5),
    "model_averaging": Arm("model_averaging"),
    "model_averaging every 5": Arm("model_averaging", EVERY_5),
    "bmuf": Arm("bmuf"),
    "bmuf every 5": Arm("bmuf", EVERY_5),
    "k_step_adam": Arm("k_step_adam", {"exchange": {"every": 10}, "warmup_steps": 20}),
}
CLUSTERS = {
    "even": {"network": FAST_LINK},
    "one_slow": {"network": FAST_LINK, "slow": (Slow(5.0, (3,)),)},
    "slow_link": {"network": SLOW_LINK},
}
SWITCHED = ("gba", "easgd", "model_averaging", "bmuf", "k_step_adam")


def report(score: Score) -> dict[str, Any]:
    """What `compare` reads of a run's report."""
    outcome = score.outcome
    return {
        "auc": score.auc,
        "examples_per_second": outcome.examples_per_second,
        "applied": outcome.applied,
        "discarded": outcome.discarded,
        "discarded_by_reason": outcome.discarded_by_reason,
        "injected": {"possible": outcome.possible},
        "staleness": {"mean": outcome.staleness.mean, "p99": outcome.staleness.p99},
        "lag": {"p99": outcome.lag.p99},
        "sync_gap": outcome.sync_gap,
        "workers": outcome.workers,
    }


def compared(name: str, options: argparse.Namespace) -> list[Compared]:
    reports: dict[str, list[dict[str, Any]]] = {}
    for label, arm in ARMS.items():
        here = replace(arm, **CLUSTERS[name])
        own = [run(here, Rates(), seed, options.examples) for seed in range(1, options.seeds + 1)]
        reports[label] = [report(score) for score in own]
    arms = compare(reports)
    asked = CompareOptions("", [], list(ARMS), options.seeds, [], 0.001, None, Path())
    print(f"== {name}\n{table(arms, asked)}", flush=True)
    return arms


def switches(options: argparse.Namespace) -> dict[str, Any]:
    """What a switch to each and back leaves of sync's AUC."""

    def scored(strategy: str, settings: dict[str, Any]) -> list[Score]:
        there_and_back = ((0.5, strategy, settings), (0.75, "sync", {}))
        arm = Arm("sync", network=FAST_LINK, switches=there_and_back)
        return [run(arm, Rates(), seed, options.examples) for seed in range(1, options.seeds + 1)]

    found, base = {}, scored("sync", {})
    for name in SWITCHED:
        d = difference(scored(name, ARMS[name].settings), base)
        found[name] = plain(d)
        print(f"sync -> {name} -> sync, minus sync: AUC {text(d)}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=60_000)
    parser.add_argument("--clusters", default=",".join(CLUSTERS))
    options = parser.parse_args()
    began, found = time.perf_counter(), dict[str, Any]()
    for name in options.clusters.split(","):
        found[name] = {arm.strategy: arm.as_json() for arm in compared(name, options)}
    found["switches"] = switches(options)
    print(json.dumps(found | {"seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main()
