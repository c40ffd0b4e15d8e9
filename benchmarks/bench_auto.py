"""Does `strategy: auto` find the strategy that hindsight would have chosen, phase by phase, and learn as sync does?

    python benchmarks/bench_auto.py [timing] [auc] [threads]        about 4, 8 and 3 minutes

A cluster of 8 workers turns bad and good again: even; 1 of 8 workers 5x slower; bursts (every worker, once a second on
average, has a batch that takes 10x); even again. An undisturbed batch takes .1 s.

timing   Virtual time, no gradients: examples applied in each phase by sync, gba and auto on the same draws, over 5
         seeds. Hindsight takes the better fixed one of every phase and changes for nothing. Also for shorter and longer
         phases, and for workers whose batches jitter: auto stays in sync while gba is less than `margin` faster.
auc      Real gradients in virtual time: DeepFM, two days in sync, then three days of the four phases under sync and
         under auto from the same state, paired by seed; progressive AUC, with Student's 95 % interval.
threads  The same phases without bursts on real worker threads with injected slowness, once.

The last line is one JSON object; `auto_vs_hindsight` is that of the main setting, 120 s per phase.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import mean

import torch

import gearshift as gs
from gearshift.cluster_model.cluster import ClusterModel, Compute, Lognormal, SlowPeriod
from gearshift.data.dataset import Dataset
from gearshift.data.readers.generated import GeneratedExamples
from gearshift.engine.simulation.learning import train_in_virtual_time
from gearshift.engine.simulation.simulator import simulate
from gearshift.experiments.paired_runs import interval
from gearshift.parameters import checkpoint
from gearshift.parameters.server import RowSettings
from gearshift.sync.automatic import Auto, Automatic, Change
from gearshift.sync.events import Action, Apply, Begin, Event
from gearshift.sync.registry import resolve
from gearshift.training.learner import Learner, describe
from gearshift.training.worker import Worker

WORKERS, BATCH, STEP = 8, 128, 0.1
GLOBAL = WORKERS * BATCH
PHASES = ("even", "one_slow", "bursts", "even_again")
FIXED = ("sync", "gba")  # those that keep sync's accuracy at sync's settings


def phased(seconds: float, seed: int, jitter: float = 0.02) -> ClusterModel:
    """Four phases of `seconds` each."""
    rng = random.Random(seed)
    periods = [SlowPeriod(5.0, seconds, 2 * seconds, (3,))]
    for worker in range(WORKERS):
        at = 2 * seconds + rng.expovariate(1.0)
        while at < 3 * seconds:
            periods.append(SlowPeriod(10.0, at, at + STEP, (worker,)))
            at += STEP + rng.expovariate(1.0)  # apart: overlapping periods would multiply
    noise = (Lognormal(jitter),) if jitter else ()
    return ClusterModel(
        WORKERS, Compute(per_batch=STEP), lognormal=noise, slow_periods=tuple(periods), seed=seed
    )


# ---- timing ----


class Phases:
    """Counts the examples that are applied in each phase."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.applied, self._counts = seconds, [0] * len(PHASES), {}

    def __call__(self, event: Event, actions: list[Action]) -> None:
        phase = int(event.at / self.seconds)
        for action in actions:
            if isinstance(action, Begin):
                self._counts[action.lease.number] = action.lease.count
            elif isinstance(action, Apply) and phase < len(PHASES):
                self.applied[phase] += sum(self._counts[p.lease] for p in action.parts if p.weight > 0)


def run_phases(cluster: ClusterModel, strategy: str, seconds: float) -> tuple[list[int], tuple[Change, ...]]:
    phases = Phases(seconds)
    automatic = Automatic(Auto(), GLOBAL) if strategy == "auto" else None
    examples = int(1.05 * WORKERS * BATCH / STEP * len(PHASES) * seconds)  # a little more than can be trained
    chosen = resolve(strategy, {}, GLOBAL, WORKERS)
    outcome = simulate(cluster, chosen, examples, automatic=automatic, log=phases)
    ends = len(PHASES) * seconds
    return phases.applied, tuple(change for change in outcome.automatic if change.at < ends)


def against_hindsight(seconds: float, jitter: float, seeds: int) -> dict[str, object]:
    ratios, by_phase, changes, gba = [], [], [], []
    for seed in range(seeds):
        cluster = phased(seconds, seed, jitter)
        fixed = [run_phases(cluster, strategy, seconds)[0] for strategy in FIXED]
        best = [max(of_phase) for of_phase in zip(*fixed, strict=True)]
        auto, made = run_phases(cluster, "auto", seconds)
        ratios.append(sum(auto) / sum(best))
        by_phase.append([a / b for a, b in zip(auto, best, strict=True)])
        changes.append(made)
        gba.append(sum(fixed[1]) / sum(best))
    return {
        "ratio": mean(ratios),
        "lowest": min(ratios),
        "gba_throughout": mean(gba),
        "share_of_time_in_sync": mean(in_sync(made, len(PHASES) * seconds) for made in changes),
        "by_phase": dict(zip(PHASES, map(mean, zip(*by_phase, strict=True)), strict=True)),
        "changes": mean(map(len, changes)),
        "changes_of_first_seed": [asdict(change) for change in changes[0]],
    }


def in_sync(changes: tuple[Change, ...], ends: float) -> float:
    edges = [0.0, *(change.at for change in changes), ends]  # it begins in sync, and changes alternate
    return sum(b - a for a, b in zip(edges[::2], edges[1::2], strict=False)) / ends


def timing(seeds: int) -> dict[str, object]:
    main = against_hindsight(120.0, 0.02, seeds)
    print(
        f"120 s per phase, jitter .02: {main['ratio']:.3f} (lowest {main['lowest']:.3f}) {main['by_phase']}"
    )
    for change in main["changes_of_first_seed"]:
        realised = "not known" if change["realised"] is None else f"{change['realised']:.2f}x"
        print(
            f"  {change['at']:6.1f} s step {change['step']:5} {change['before']} -> {change['strategy']}: "
            f"{change['reason']}; predicted {change['predicted']:.2f}x, realised {realised}"
        )
    others = {}
    for seconds, jitter in [
        (15.0, 0.02),
        (30.0, 0.02),
        (300.0, 0.02),
        (120.0, 0.0),
        (120.0, 0.1),
        (120.0, 0.3),
    ]:
        found = against_hindsight(seconds, jitter, seeds if seconds < 300 else 2)
        others[f"{seconds:g} s, jitter {jitter:g}"] = {
            k: found[k]
            for k in ("ratio", "lowest", "by_phase", "changes", "gba_throughout", "share_of_time_in_sync")
        }
        print(
            f"{seconds:g} s, jitter {jitter:g}: {found['ratio']:.3f} {found['by_phase']} {found['changes']:.1f} changes"
        )
    return {"auto_vs_hindsight": main["ratio"], "main": main, "others": others}


# ---- AUC ----

BASE_DAYS, DAYS = 2, 3


def learner(seed: int, schema: gs.Schema) -> Learner:
    torch.manual_seed(seed)
    model = gs.models.DeepFM(schema, dim=8, hidden=[64, 64])
    rows = RowSettings(gs.RowAdagrad(lr=0.05))
    return Learner(Worker(model, schema, threads=1), rows=rows, optimizer=gs.Adam(lr=1e-3), seed=seed)


def aucs(seed: int, per_day: int, folder: str) -> dict[str, object]:
    """Progressive AUC of sync and of auto after the same two days, the mean of three."""
    log = gs.ClickLog(examples=per_day * (BASE_DAYS + DAYS), days=BASE_DAYS + DAYS, seed=seed)
    cut = log.day_begin(BASE_DAYS)
    base = Dataset(GeneratedExamples(log, 0, cut)).fitted()
    rest = Dataset(GeneratedExamples(log, cut)).with_schema(base.schema)
    on = learner(seed, base.schema)
    sync = resolve("sync", {}, GLOBAL, WORKERS)
    train_in_virtual_time(on, base, ClusterModel(WORKERS, Compute(per_batch=STEP)), sync)
    snapshot, state = on.snapshot(), Path(folder, str(seed))
    facts = {"step": on.server.step, "model": {"text": describe(on.model)}, "settings": on.settings}
    checkpoint.write(state, facts, snapshot.arrays, snapshot.rows)
    snapshot.close()
    # The data are as long as four phases at three quarters of the full rate.
    seconds = DAYS * per_day / (0.75 * GLOBAL / STEP) / len(PHASES)
    found: dict[str, object] = {}
    for arm in ("sync", "auto"):
        on = learner(seed, base.schema)
        on.restore(checkpoint.Checkpoint.open(state))
        automatic = Automatic(Auto(), GLOBAL) if arm == "auto" else None
        run = train_in_virtual_time(on, rest, phased(seconds, seed), sync, automatic=automatic)
        found[arm] = mean(measures.auc for measures in run.days.measures.values())
        found[f"{arm}_seconds"] = run.outcome.seconds
        found[f"{arm}_changes"] = [asdict(change) for change in run.outcome.automatic]
        found[f"{arm}_stale"] = run.outcome.staleness.mean
    return found


def auc(seeds: int, per_day: int) -> dict[str, object]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, seeds + 1):
            one = aucs(seed, per_day, folder)
            found.append(one)
            changes = ", ".join(f"{c['strategy']} at {c['at']:.1f} s" for c in one["auto_changes"])
            print(
                f"seed {seed}: sync {one['sync']:.4f} in {one['sync_seconds']:.0f} s, auto {one['auto']:.4f} in "
                f"{one['auto_seconds']:.0f} s, staleness {one['auto_stale']:.2f} ({changes})",
                flush=True,
            )
    d = interval([one["auto"] - one["sync"] for one in found])
    print(f"auto - sync {d.mean:+.5f} [{d.low:+.5f}, {d.high:+.5f}]")
    return {
        "auc_auto_minus_sync": [d.mean, d.low, d.high],
        "auc_sync": mean(one["sync"] for one in found),
        "seeds": seeds,
        "staleness_auto": mean(one["auto_stale"] for one in found),
        "speed_auto_vs_sync": mean(one["sync_seconds"] / one["auto_seconds"] for one in found),
    }


# ---- threads ----


class Watch(gs.Callback):
    """Examples applied by phase, and the changes."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.applied, self._last, self.changes = seconds, [0, 0, 0], 0, []

    def on_step(self, run: gs.Run) -> None:
        progress, pacer = run.training.progress, run.training.pacer
        applied = progress.examples - sum(progress.lost_by_worker.values())
        phase = int((time.monotonic() - pacer._began) / self.seconds)
        if phase < 3:
            self.applied[phase] += applied - self._last
        else:
            run.stop()
        self._last = applied
        if run.training.active_strategy.automatic is not None:
            self.changes = list(run.training.active_strategy.automatic.changes)


def on_threads(strategy: str, seconds: float, folder: str) -> Watch:
    torch.manual_seed(1)
    data = gs.read(gs.ClickLog(examples=int(4 * seconds * GLOBAL / STEP), days=1))
    watch = Watch(seconds)
    slow = (SlowPeriod(5.0, seconds, 2 * seconds, (3,)),)
    gs.Trainer(
        global_batch=GLOBAL,
        workers=gs.WorkerSettings(
            WORKERS, inject=ClusterModel(WORKERS, Compute(per_batch=STEP), slow_periods=slow)
        ),
        strategy=strategy,
        checkpoint=gs.CheckpointPolicy(None, path=folder),
    ).fit(gs.models.DNN(data.schema, dim=8, hidden=[32]), data, callbacks=[watch])
    return watch


def threads(seconds: float) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        watched = {s: on_threads(s, seconds, folder) for s in (*FIXED, "auto")}
    for strategy, watch in watched.items():
        print(f"threads {strategy:5} {[round(n / seconds) for n in watch.applied]} examples/s by phase")
    best = [max(watched[s].applied[i] for s in FIXED) for i in range(3)]
    auto = watched["auto"]
    for change in auto.changes:
        print(
            f"  {change.at:.1f} s step {change.step}: {change.reason}; {change.predicted:.2f}x, {change.realised}"
        )
    return {
        "threads_auto_vs_hindsight": sum(auto.applied) / sum(best),
        "threads_by_phase": [a / b for a, b in zip(auto.applied, best, strict=True)],
        "threads_seconds_per_phase": seconds,
        "threads_changes": [asdict(change) for change in auto.changes],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["timing", "auc", "threads"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--per-day", type=int, default=40_000)
    parser.add_argument("--phase", type=float, default=20.0, help="seconds of a phase on threads")
    options = parser.parse_args()
    found: dict[str, object] = {}
    if "timing" in options.parts:
        found |= timing(options.seeds)
    if "auc" in options.parts:
        found |= auc(options.seeds, options.per_day)
    if "threads" in options.parts:
        found |= threads(options.phase)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
