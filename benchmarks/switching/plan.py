"""Which arms a case has, and the jobs that tune it.

A step of M = 8 gradients, and N = 8 workers; backup_workers needs one more. Arms `..._own` have the strategy's own
tuned rate; all others have sync's.
"""

from __future__ import annotations

from math import inf

from switching.base import Arm
from switching.cases import DENSE, RATES, Case
from switching.jobs import Done, Job, run_all

TUNING_SEED = 100


def workers_of(strategy: str) -> int:
    return 9 if strategy == "backup_workers" else 8


def claim_arms(case: Case) -> dict[str, Arm]:
    arms = {
        "sync": Arm("sync"),
        "itself": Arm("sync", itself=True),
        "another_order": Arm("sync", order="other"),
        "gba": Arm("gba"),
    }
    for strategy in RATES:
        arms[strategy] = Arm(strategy, workers=workers_of(strategy))
    for strategy, rate in case.rates.items():
        if rate != 1.0:
            arms[f"{strategy}_own"] = Arm(strategy, rate=rate, workers=workers_of(strategy))
    return arms


ABLATIONS = {
    "max_lag_0": Arm("gba", {"max_lag": 0}),
    "max_lag_infinite": Arm("gba", {"max_lag": inf}),
    "random_drops": Arm("switching.ablations:RandomDrops", drops_like="gba"),
    "staleness_cut": Arm("switching.ablations:StalenessCut", {"max_staleness": 4}),
    "delayed_sync": Arm("switching.ablations:DelayedSync"),
    "held_sync": Arm("sync", order="held"),
    "held_gba": Arm("gba", order="held"),
    "held_max_lag_infinite": Arm("gba", {"max_lag": inf}, order="held"),
    "held_random_drops": Arm("switching.ablations:RandomDrops", order="held", drops_like="held_gba"),
}

SWEEP = {
    "gba_16_workers": Arm("gba", workers=16),
    "gba_32_workers": Arm("gba", workers=32),
    "async_32_workers": Arm("async", workers=32),
    "staleness_cut_32_workers": Arm("switching.ablations:StalenessCut", {"max_staleness": 4}, workers=32),
}

PLAIN = {"predicted_pull": False, "staleness_rate": False}
ANSWERS = {  # of gba to staleness
    "plain": PLAIN,
    "predicted": PLAIN | {"predicted_pull": True},
    "rate": PLAIN | {"staleness_rate": True},
    "both": {"predicted_pull": True, "staleness_rate": True},
    "late_rows": PLAIN | {"predicted_pull": True, "late_rows": "unchanged"},
}
MEAN_RATES = (0.57, 0.37)  # that the staleness rate comes to with 8 and 16 workers


def staleness_arms() -> dict[str, Arm]:
    """gba's answers to staleness, and sync at the dense rates that one of them comes to."""
    arms = {"sync": Arm("sync"), "itself": Arm("sync", itself=True)}
    for workers in (8, 16):
        for name, settings in ANSWERS.items():
            arms[f"gba_{workers}_{name}"] = Arm("gba", settings, workers=workers)
    slow = "switching.ablations:SlowSync"
    return arms | {f"sync_at_{rate}": Arm(slow, {"dense_rate": rate}) for rate in MEAN_RATES}


def tuned(name: str, case: Case, sizes: tuple[int, int], data: str, at_once: int) -> dict[str, object]:
    """Prints sync's grid, and at its best the grid of every other strategy's rate; what was best."""
    cells = [(dense, row) for dense in DENSE for row in case.row_grid]
    sync = {"sync": Arm("sync")}
    jobs = [Job(name, TUNING_SEED, sync, dense, row, *sizes, data) for dense, row in cells]
    found = {}
    for cell, done in zip(cells, run_all(jobs, at_once), strict=True):
        found[cell] = criterion(done, "sync")
        print(f"{name}: sync, dense {cell[0]:g}, rows {cell[1]:g}: {found[cell]:.4f}", flush=True)
    best = max(found, key=lambda cell: found[cell])
    rates = {strategy: dict.fromkeys(grid, 0.0) for strategy, grid in RATES.items()}
    jobs = [
        Job(
            name,
            TUNING_SEED,
            {str(r): Arm(s, rate=r, workers=workers_of(s)) for r in grid},
            *best,
            *sizes,
            data,
        )
        for s, grid in RATES.items()
    ]
    for strategy, done in zip(rates, run_all(jobs, at_once), strict=True):
        rates[strategy] = {rate: criterion(done, str(rate)) for rate in RATES[strategy]}
        each = ", ".join(f"{rate:g}x: {auc:.4f}" for rate, auc in rates[strategy].items())
        print(f"{name}: {strategy} at {each}", flush=True)
    own = {strategy: max(grid, key=lambda rate: grid[rate]) for strategy, grid in rates.items()}
    return {"dense_lr": best[0], "row_lr": best[1], "rates": own}


def criterion(done: Done, arm: str) -> float:
    score = done.scores[arm]
    return score.auc if score.valid is None else score.valid
