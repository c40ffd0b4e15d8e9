"""What a slow worker costs, strategy by strategy: eight worker threads whose batches are padded to drawn durations.

    python benchmarks/bench_stragglers.py [padded] [unpadded] [--rounds 3] [--seconds 0.2] [--batches 40]
                                          [--regimes none,one_slow,bursts,very_slow]   about 15 and 4 minutes

Regimes: `none`; `one_slow`, 1 of 8 workers 5x slower; `bursts`, 10 % of batches take 10x; `very_slow`, 1 of 8 10x
slower, to see what max_lag drops. Slowness is injected (the work itself is real and stays a small share); sync,
balanced and gba take turns within a round, on the same draws. A lease of fewer examples takes its share of
`--seconds`; each lease has a draw of its own, so under bursts balanced draws more often than the others. Rates are
slopes of applied examples between a tenth and nine tenths of a run, so that neither start nor tail counts; ideal is the
same slope if nobody ever waited, for the same draws. `limit` is the closed form for endless runs; `limit_of_the_draws`
is ideal over sync in the simulator for the draws of these runs: the number to compare gba_vs_sync with. The simulator
is fitted on the `none` runs of gba (one number: seconds per lease beside the drawn ones) and predicts every other run.

unpadded: the same workers with nothing injected share the machine's cores. The simulator is fitted on the event log of
short gba runs (the work of each batch, if n workers on C cores run at C/n of their speed: its mean and its spread) and
predicts the examples/s of longer runs, gba and sync. `unpadded_error` is the larger of the two median absolute errors;
each run is predicted from two short ones, right before and right after it, for the machine's speed drifts.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from math import log as ln
from statistics import fmean, median, stdev

import torch

import gearshift as gs
from gearshift.cluster_model.closed_forms import possible_rate, sync_rate
from gearshift.cluster_model.cluster import Bursts, ClusterModel, Compute, Lognormal, Network, Slow
from gearshift.engine.simulation.simulator import simulate
from gearshift.run.event_log import Decision, files, read
from gearshift.sync.events import Action, Apply, Begin, Event, GradientArrived
from gearshift.sync.registry import resolve

WORKERS, BATCH = 8, 128
GLOBAL = WORKERS * BATCH
STRATEGIES = ("sync", "balanced", "gba")
UNPADDED = ("sync", "gba")  # with nothing injected


def regimes(seconds: float, seed: int) -> dict[str, ClusterModel]:
    even = ClusterModel(WORKERS, Compute(per_example=seconds / BATCH), seed=seed)
    return {
        "none": even,
        "one_slow": replace(even, slow=(Slow(5.0, (3,)),)),
        "bursts": replace(even, bursts=(Bursts(0.1, 10.0),)),
        "very_slow": replace(even, slow=(Slow(10.0, (3,)),)),
    }


class Clock(gs.Callback):
    """When each step was applied, and how many examples were applied by then."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, int]] = []

    def on_step(self, run: gs.Run) -> None:
        progress = run.training.progress
        lost = sum(progress.lost_by_worker.values())
        self.steps.append((time.perf_counter(), progress.examples - lost))


def train(strategy: str, cluster: ClusterModel | None, examples: int, folder: str) -> tuple[float, dict]:
    torch.manual_seed(1)
    log = gs.ClickLog(examples=examples, days=1)
    data = gs.read(log)
    clock = Clock()
    trainer = gs.Trainer(
        global_batch=GLOBAL,
        workers=gs.WorkerSettings(WORKERS, inject=cluster),
        strategy=strategy,
        checkpoint=gs.CheckpointPolicy(None, path=folder),
    )
    result = trainer.fit(gs.models.DNN(data.schema, dim=8, hidden=[32]), data, callbacks=[clock])
    return slope(clock.steps), result.report


class AppliedAt:
    """A log that keeps (seconds, examples applied by then) of every step."""

    def __init__(self) -> None:
        self.applied, self.steps, self._counts = 0, [], {}

    def __call__(self, event: Event, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Begin):
                self._counts[action.lease.number] = action.lease.count
            elif isinstance(action, Apply):
                self.applied += sum(self._counts[part.lease] for part in action.parts if part.weight > 0)
                self.steps.append((event.at, self.applied))


def predicted(strategy: str, cluster: ClusterModel, extra: float, examples: int) -> float:
    """The same slope in the simulator, with `extra` seconds per batch beside the drawn ones."""
    log = AppliedAt()
    fitted = replace(cluster, network=Network(latency=extra / 2))
    simulate(fitted, resolve(strategy, {}, GLOBAL, WORKERS), examples, log=log)
    return slope(log.steps)


def slope(steps: list[tuple[float, int]]) -> float:
    """Examples per second between a tenth and nine tenths of the steps."""
    first, last = steps[len(steps) // 10], steps[len(steps) * 9 // 10]
    return (last[1] - first[1]) / (last[0] - first[0])


def without_waiting(cluster: ClusterModel, examples: int) -> float:
    return predicted("async", cluster, 0.0, examples)


def closed_form_gain(cluster: ClusterModel) -> float:
    return possible_rate(cluster, BATCH) / sync_rate(cluster, BATCH)


# ---- unpadded ----


class Works:
    """A log from which the work of each batch follows: the seconds it would take on a core of its own."""

    def __init__(self, cores: float) -> None:
        self.cores, self.runs = cores, []
        self._now = self._clock = 0.0  # of the run, and of one worker's share of the cores
        self._begun: dict[int, float] = {}  # by lease: what the clock showed

    def __call__(self, event: Event, actions: list[Action]) -> None:
        if not self.runs or event.at < self._now:  # another run
            self._begun.clear()
            self.runs.append([])
        if self._begun:
            self._clock += (event.at - self._now) * min(1.0, self.cores / len(self._begun))
        self._now = event.at
        if isinstance(event, GradientArrived):
            self.runs[-1].append(self._clock - self._begun.pop(event.lease))
        for action in actions:
            if isinstance(action, Begin):
                self._begun[action.lease.number] = self._clock

    def cluster(self) -> ClusterModel:
        settled = [seconds for run in self.runs for seconds in run[len(run) // 10 :]]  # as in `slope`
        jitter = Lognormal(stdev(map(ln, settled)))
        return ClusterModel(WORKERS, Compute(per_batch=fmean(settled)), lognormal=(jitter,), cores=self.cores)


def unpadded_run(strategy: str, steps: int, folder: str, log: Callable[..., None]) -> None:
    """`log` hears what the run's event log says."""
    torch.manual_seed(1)
    data = gs.read(gs.ClickLog(examples=steps * GLOBAL, days=1))
    trainer = gs.Trainer(
        global_batch=GLOBAL,
        workers=WORKERS,
        strategy=strategy,
        checkpoint=gs.CheckpointPolicy(None, path=folder),
    )
    result = trainer.fit(gs.models.DNN(data.schema, dim=16, hidden=[256, 128]), data)
    for _, said in read(files(result.folder)):
        if isinstance(said, Decision):
            log(said.event, said.actions)


def unpadded(rounds: int, folder: str) -> dict[str, object]:
    cores = len(os.sched_getaffinity(0))
    errors: dict[str, list[float]] = {strategy: [] for strategy in UNPADDED}
    measured: dict[str, list[float]] = {strategy: [] for strategy in UNPADDED}
    for _ in range(rounds):
        for strategy in UNPADDED:
            short, long = Works(cores), AppliedAt()
            unpadded_run("gba", 60, folder, short)
            unpadded_run(strategy, 300, folder, long)
            unpadded_run("gba", 60, folder, short)
            cluster, rate, simulated = short.cluster(), slope(long.steps), AppliedAt()
            simulate(cluster, resolve(strategy, {}, GLOBAL, WORKERS), 300 * GLOBAL, log=simulated)
            measured[strategy].append(rate)
            errors[strategy].append(slope(simulated.steps) / rate - 1)
            print(
                f"unpadded {strategy:5} {rate:10,.0f} examples/s, simulated {slope(simulated.steps):10,.0f} "
                f"({1000 * cluster.compute.per_batch:.2f} ms of work, spread {cluster.lognormal[0].sigma:.2f})",
                flush=True,
            )
    return {
        "unpadded_error": max(median(map(abs, found)) for found in errors.values()),
        "unpadded_error_largest": max(abs(error) for found in errors.values() for error in found),
        "unpadded_errors": errors,
        "unpadded_examples_per_second": {s: median(found) for s, found in measured.items()},
        "cores": cores,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["padded", "unpadded"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2, help="an undisturbed batch")
    parser.add_argument("--batches", type=int, default=40, help="per worker, on average")
    parser.add_argument("--regimes", default=",".join(regimes(1.0, 0)), help="the padded ones")
    options = parser.parse_args()
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        if "padded" in options.parts:
            found |= padded(options, folder)
        if "unpadded" in options.parts:
            found |= unpadded(options.rounds, folder)
    print(json.dumps(found))


def padded(options: argparse.Namespace, folder: str) -> dict[str, object]:
    examples = options.batches * GLOBAL
    names = options.regimes.split(",")
    rates: dict[tuple[str, str], list[float]] = {(r, s): [] for r in names for s in STRATEGIES}
    reports: dict[tuple[str, str], dict] = {}
    for seed in range(options.rounds):
        for name, cluster in ((name, regimes(options.seconds, seed)[name]) for name in names):
            for strategy in STRATEGIES:
                rate, reports[name, strategy] = train(strategy, cluster, examples, folder)
                rates[name, strategy].append(rate)
                print(f"round {seed} {name:10} {strategy:8} {rate:10,.0f} examples/s", flush=True)
    return summary(options, rates, reports, examples)


def ratio(rates: dict[tuple[str, str], list[float]], regime: str, strategy: str, to: str) -> float:
    """The median over rounds, which have the same draws."""
    return median([a / b for a, b in zip(rates[regime, strategy], rates[regime, to], strict=True)])


def summary(options, rates, reports, examples) -> dict[str, object]:
    clusters = {name: regimes(options.seconds, 0)[name] for name in options.regimes.split(",")}
    even = median(rates["none", "gba"]) if "none" in clusters else GLOBAL / options.seconds
    extra = GLOBAL / even - options.seconds  # seconds per batch beside the drawn ones
    found: dict[str, object] = {"seconds_per_batch_beside_the_drawn": extra, "workers": WORKERS}
    for name, cluster in clusters.items():
        draws = [replace(cluster, seed=seed) for seed in range(options.rounds)]
        errors = {
            strategy: median(
                predicted(strategy, one, extra, examples) / rate - 1
                for one, rate in zip(draws, rates[name, strategy], strict=True)
            )
            for strategy in STRATEGIES
        }
        ideal = [without_waiting(one, examples) for one in draws]
        limits = [
            free / predicted("sync", one, 0.0, examples) for free, one in zip(ideal, draws, strict=True)
        ]
        report = reports[name, "gba"]
        found[name] = {
            "gba_vs_sync": ratio(rates, name, "gba", "sync"),
            "balanced_vs_sync": ratio(rates, name, "balanced", "sync"),
            "balanced_vs_gba": ratio(rates, name, "balanced", "gba"),
            "limit": closed_form_gain(cluster),
            "limit_of_the_draws": median(limits),
            "auc": {strategy: reports[name, strategy]["auc"] for strategy in STRATEGIES},
            "balanced_duplicated_examples": reports[name, "balanced"]["duplicated_examples"],
            "gba_vs_ideal": median(g / i for g, i in zip(rates[name, "gba"], ideal, strict=True)),
            "sync_vs_closed_form": median(rates[name, "sync"]) / sync_rate(cluster, BATCH),
            "simulator_error": max(errors.values(), key=abs),
            "simulator_errors": errors,
            "gba_discarded": report["discarded_by_reason"],
            "gba_discarded_examples_by_worker": report["discarded_examples_by_worker"],
            "gba_staleness": report["staleness"],
            "gba_lag": report["lag"],
            "overrun": report["injected"]["overrun"],
        }
    return found


if __name__ == "__main__":
    main()
