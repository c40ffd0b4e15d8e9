"""How fast the simulator is, and whether its cost per event grows with the cluster.

Timing only. `--batches` batches on 10,000 workers in one run, beside a tenth as many on 100 workers, before and after
it; lognormal durations, a global batch of one gradient per worker. Seconds are CPU seconds of this process (wall
seconds are printed too: they count what else runs on the machine). The last line is one JSON object:
`seconds_10000_workers` is the slowest strategy's, `cost_ratio` the largest ratio of the costs per event.

    python benchmarks/bench_simulator.py [--batches 1000000] [--strategies sync,gba,async]
    python benchmarks/bench_simulator.py --real [--examples 1000000]

`--real` is another question: how long 200 workers with real gradients take (DeepFM, gba, leases of 32 examples, a
global batch of 200 of them, one pass over the generated log). Its key is `real_seconds`, wall time.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass

import torch

import gearshift as gs
from gearshift.cluster_model.closed_forms import sync_rate
from gearshift.cluster_model.cluster import ClusterModel, Lognormal, Slow
from gearshift.engine.simulation.learning import train_in_virtual_time
from gearshift.engine.simulation.simulator import simulate
from gearshift.engine.simulation.tally import Outcome
from gearshift.parameters.server import RowSettings
from gearshift.sync.registry import make_strategy
from gearshift.training.learner import Learner
from gearshift.training.worker import Worker

FEW, MANY, BATCH = 100, 10_000, 64
WORKERS, LEASE = 200, 32  # with real gradients


@dataclass(frozen=True)
class Timed:
    outcome: Outcome
    cpu: float
    wall: float

    @property
    def per_event(self) -> float:
        return self.cpu / self.outcome.events


def timed(name: str, workers: int, batches: int) -> Timed:
    cluster = ClusterModel(workers, lognormal=(Lognormal(0.3),), seed=1)
    strategy = make_strategy(name, {"global_batch": BATCH * workers, "batch": BATCH})
    cpu, wall = time.process_time(), time.perf_counter()
    outcome = simulate(cluster, strategy, BATCH * batches)
    return Timed(outcome, time.process_time() - cpu, time.perf_counter() - wall)


def against_arithmetic(outcome: Outcome) -> float:
    """Examples per second over what the closed form says."""
    if outcome.strategy == "sync":
        return outcome.examples_per_second / sync_rate(
            ClusterModel(outcome.workers, lognormal=(Lognormal(0.3),)), BATCH
        )
    return outcome.examples_per_second / outcome.possible


def real(examples: int) -> dict[str, float]:
    """200 workers with real gradients."""
    data = gs.read(gs.ClickLog(examples, days=3)).fitted()
    torch.set_num_threads(1)  # a lease is too small for two
    torch.manual_seed(1)
    model = gs.models.DeepFM(data.schema, dim=16, hidden=[256, 128])
    rows = RowSettings(gs.RowAdagrad(lr=0.02))
    on = Learner(Worker(model, data.schema), rows=rows, optimizer=gs.Adam(lr=1e-3))
    cluster = ClusterModel(WORKERS, lognormal=(Lognormal(0.3),), slow=(Slow(3.0, (7,)),), seed=1)
    strategy = make_strategy("gba", {"global_batch": LEASE * WORKERS, "batch": LEASE})
    cpu, wall = time.process_time(), time.perf_counter()
    run = train_in_virtual_time(on, data, cluster, strategy)
    seconds = time.perf_counter() - wall
    assert run.outcome is not None
    return {
        "real_seconds": round(seconds, 1),
        "real_cpu_seconds": round(time.process_time() - cpu, 1),
        "workers": WORKERS,
        "examples": run.measures.examples,
        "batches": run.outcome.batches,
        "steps": run.outcome.steps,
        "virtual_seconds": round(run.outcome.seconds, 1),
        "auc": round(run.measures.auc, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--strategies", default="sync,gba,async")
    parser.add_argument("--real", action="store_true", help="200 workers with real gradients instead")
    parser.add_argument("--examples", type=int, default=1_000_000, help="of --real")
    asked = parser.parse_args()
    if asked.real:
        print(json.dumps(real(asked.examples)))
        return
    timed("gba", FEW, 2000)  # warm
    figures: dict[str, dict[str, float]] = {}
    for name in asked.strategies.split(","):
        few = [timed(name, FEW, asked.batches // 10)]
        many = timed(name, MANY, asked.batches)
        few.append(timed(name, FEW, asked.batches // 10))
        cost = sum(t.per_event for t in few) / len(few)
        figures[name] = {
            "seconds": round(many.cpu, 1),
            "wall_seconds": round(many.wall, 1),
            "events": many.outcome.events,
            "microseconds_per_event": round(1e6 * many.per_event, 2),
            "microseconds_per_event_100_workers": round(1e6 * cost, 2),
            "cost_ratio": round(many.per_event / cost, 2),
            "speed_over_closed_form": round(against_arithmetic(many.outcome), 4),
        }
        print(f"{name:18} {figures[name]}", flush=True)
    summary = {
        "batches": asked.batches,
        "seconds_10000_workers": max(f["seconds"] for f in figures.values()),
        "wall_seconds_10000_workers": max(f["wall_seconds"] for f in figures.values()),
        "cost_ratio": max(f["cost_ratio"] for f in figures.values()),
        "strategies": figures,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
