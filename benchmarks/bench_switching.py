"""Is gba as good as sync at sync's own settings? Real gradients, virtual time, paired seeds.

    python benchmarks/bench_switching.py [--seeds 5] [--per-day 100000]        about 10 minutes

Per seed: DeepFM on a generated log with drift, three days in sync; then every arm goes on from the same parameters
and optimizer state for two days, with the same examples in the same order and the same worker times (8 workers,
lognormal jitter .3, one of them 2x slower). An arm's score is its progressive AUC, averaged over the two days;
differences are paired by seed, with Student's 95 % interval. Rates were tuned for sync on seed 100
(`--tune` prints the grid); `async_tuned` is async at the best of its own grid on that seed. Controls: `itself`, a
switch from sync to sync, must be bit-identical; `again` is sync with other worker times. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import mean

import numpy as np
import torch

import gearshift as gs
from gearshift import checkpoint
from gearshift.comparison import Interval, interval
from gearshift.data.dataset import Dataset
from gearshift.data.generated import GeneratedExamples
from gearshift.engine.cluster_model import Cluster, Compute, Lognormal, Slow
from gearshift.engine.simulated import Switch
from gearshift.learner import Learner, describe
from gearshift.server import RowSettings
from gearshift.sync.registry import resolve
from gearshift.virtual import VirtualRun, train_in_virtual_time

WORKERS, GLOBAL, BASE_DAYS, DAYS = 8, 1024, 3, 2
DENSE_LR, ROW_LR = 1e-3, 0.05  # the best for sync of GRID, on seed 100
GRID = [(d, r) for d in (5e-4, 1e-3, 2e-3) for r in (0.02, 0.05, 0.1)]
ASYNC_RATES = (1.0, 0.5, 0.35, 0.25, 0.125)


def cluster(seed: int) -> Cluster:
    return Cluster(
        WORKERS, Compute(per_batch=0.1), slow=(Slow(2.0, (3,)),), lognormal=(Lognormal(0.3),), seed=seed
    )


def learner(seed: int, schema, dense_lr: float = DENSE_LR, row_lr: float = ROW_LR) -> Learner:
    torch.manual_seed(seed)
    model = gs.models.DeepFM(schema, dim=8, hidden=[64, 64])
    rows = RowSettings(gs.RowAdagrad(lr=row_lr))
    return Learner(model, schema, rows=rows, optimizer=gs.Adam(lr=dense_lr), seed=seed, threads=2)


class Seed:
    """The base of one seed, from which arms are forked."""

    def __init__(self, seed: int, per_day: int, folder: Path, **rates: float) -> None:
        self.seed, self.folder, self.rates = seed, folder / f"seed-{seed}", rates
        log = gs.ClickLog(examples=per_day * (BASE_DAYS + DAYS), days=BASE_DAYS + DAYS, seed=seed)
        cut = log.day_begin(BASE_DAYS)
        self.base = Dataset(GeneratedExamples(log, 0, cut)).fitted()
        self.schema = self.base.schema
        self.rest = Dataset(GeneratedExamples(log, cut)).with_schema(self.schema)
        on = learner(seed, self.schema, **rates)
        train_in_virtual_time(on, self.base, cluster(seed), resolve("sync", {}, GLOBAL, WORKERS))
        snapshot = on.snapshot()
        facts = {"step": on.server.step, "model": {"text": describe(on.model)}, "settings": on.settings}
        checkpoint.write(self.folder, facts, snapshot.arrays, snapshot.rows)
        snapshot.close()

    def arm(
        self, strategy: str, *, rate: float = 1.0, times: int = 0, itself: bool = False, **settings: object
    ) -> tuple[VirtualRun, Learner]:
        on = learner(self.seed, self.schema, **self.rates)
        on.restore(checkpoint.Checkpoint.open(self.folder))
        chosen = resolve(strategy, dict(settings), GLOBAL, WORKERS)
        switches = (
            [Switch("sync", {"global_batch": GLOBAL, "batch": chosen.batch}, examples=50 * GLOBAL)]
            if itself
            else []
        )
        run = train_in_virtual_time(
            on, self.rest, cluster(self.seed + 1000 * times), chosen, switches=switches, lr_scale=rate
        )
        return run, on


def score(run: VirtualRun) -> float:
    return mean(measures.auc for measures in run.days.measures.values())


def tune(per_day: int, folder: Path) -> float:
    """Prints sync's grid and async's, on a seed that is not reported; async's best rate."""
    for dense_lr, row_lr in GRID:
        seed = Seed(100, per_day, folder, dense_lr=dense_lr, row_lr=row_lr)
        print(f"sync: dense {dense_lr:g}, rows {row_lr:g}: AUC {score(seed.arm('sync')[0]):.4f}", flush=True)
    return tune_async(Seed(100, per_day, folder))


def tune_async(seed: Seed) -> float:
    found = {rate: score(seed.arm("async", rate=rate)[0]) for rate in ASYNC_RATES}
    print("async at", ", ".join(f"{rate:g}x: {auc:.4f}" for rate, auc in found.items()), flush=True)
    return max(found, key=lambda rate: found[rate])


def identical(one: Learner, other: Learner) -> bool:
    def rows(on: Learner) -> np.ndarray:
        blocks = list(on.server.stores[0].blocks())
        order = np.argsort(np.concatenate([b.ids_U for b in blocks]))
        return np.concatenate([b.weights_UW for b in blocks])[order]

    return torch.equal(one.server.flat, other.server.flat) and np.array_equal(rows(one), rows(other))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--per-day", type=int, default=100_000)
    parser.add_argument("--tune", action="store_true", help="print sync's grid too")
    options = parser.parse_args()
    began = time.perf_counter()
    scores: dict[str, list[float]] = {}
    same = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        best = (
            tune(options.per_day, folder) if options.tune else tune_async(Seed(100, options.per_day, folder))
        )
        arms = {
            "sync": ("sync", {}),
            "gba": ("gba", {}),
            "buffered_async": ("buffered_async", {}),
            "async_same_rate": ("async", {}),
            "async_tuned": ("async", {"rate": best}),
            "gba_max_lag_0": ("gba", {"max_lag": 0}),
            "gba_no_limit": ("gba", {"max_lag": float("inf")}),
            "again": ("sync", {"times": 1}),
        }
        for number in range(1, options.seeds + 1):
            seed = Seed(number, options.per_day, folder)
            for arm, (strategy, settings) in arms.items():
                run, on = seed.arm(strategy, **settings)
                scores.setdefault(arm, []).append(score(run))
                if arm == "sync":
                    same = same and identical(on, seed.arm("sync", itself=True)[1])
            latest = {arm: f"{aucs[-1]:.4f}" for arm, aucs in scores.items()}
            print(f"seed {number}: {latest}  {time.perf_counter() - began:.0f} s", flush=True)
    print_summary(scores, same, best, options)


def print_summary(
    scores: dict[str, list[float]], same: bool, best: float, options: argparse.Namespace
) -> None:
    def difference(arm: str, base: str = "sync") -> Interval:
        return interval([a - b for a, b in zip(scores[arm], scores[base], strict=True)])

    found = {arm: difference(arm) for arm in scores if arm != "sync"}
    for arm, d in found.items():
        print(f"{arm:18} - sync  {d.mean:+.5f} [{d.low:+.5f}, {d.high:+.5f}]")
    buffered = difference("gba", "buffered_async")
    figures = {
        "gap_low": found["gba"].low,
        "async_same_rate_high": found["async_same_rate"].high,
        "gba_minus_buffered_low": buffered.low,
        "seeds": options.seeds,
        "switch_to_itself_is_bit_identical": same,
        "async_best_rate": best,
        "sync_auc": mean(scores["sync"]),
        "differences": {arm: [d.mean, d.low, d.high] for arm, d in found.items()},
        "per_day": options.per_day,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
