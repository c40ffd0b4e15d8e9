"""k-step Adam: what does merging more seldom save, and what does it cost? Real gradients in virtual time, paired seeds.

    python benchmarks/bench_kstep.py                   about 10 minutes of CPU, one core
    python benchmarks/bench_kstep.py time              seconds: timing only
    python benchmarks/bench_kstep.py auc --examples 20000 --seeds 2       a small form

Eight trainers on a slow link (`replicas/arms.py`): a merge of the dense parameters and their second moments takes as
long as ten batches, sync's all-reduce as long as five. k in 1, 2, 5, 10, 20, 50, 100, each merging every step of the
first 20. Beside them sync, and the control "dense in sync, rows per push": what of the difference comes from rows that
step on every batch. Dense and row rates are tuned separately on a seed that is not reported: for sync, for the control,
and for k = 1, 10 and 100, whose rates the k next to them share. `params` and `params_m_v` at k = 10, at the rates of
`frozen_v`. Times are those of 1,000 batches per trainer, in virtual time without learning. The last line is one JSON
object: `time_ratio` (seconds over those of k = 1) and `auc_gap` (minus sync, with its interval) by k.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

from replicas.arms import BATCH, SECONDS, SLOW_LINK, Arm, Rates, Score, difference, plain, run, text
from replicas.arms import TUNING_SEED as TUNING

from gearshift.cluster_model.cluster import ClusterModel, Compute, Lognormal
from gearshift.engine.simulation.simulator import simulate
from gearshift.sync.registry import make_strategy

KS = (1, 2, 5, 10, 20, 50, 100)
TUNED_LIKE = {1: 1, 2: 1, 5: 10, 10: 10, 20: 10, 50: 100, 100: 100}
DENSE, ROWS = (1e-3, 3e-3, 9e-3), (0.007, 0.02, 0.05)
WARMUP, TRAINERS, LONG = 20, 8, 1000


def k_step(k: int, mode: str = "frozen_v") -> Arm:
    return Arm("k_step_adam", {"exchange": {"every": k}, "warmup_steps": WARMUP, "mode": mode})


def tuned(arm: Arm, examples: int) -> tuple[Rates, str]:
    """The dense rate first, then the rows' at the best dense rate."""
    best, told = Rates(), list[str]()
    for name, grid in (("dense", DENSE), ("rows", ROWS)):
        candidates = [replace(best, **{name: rate}) for rate in grid]
        found = {one: run(arm, one, TUNING, examples).auc for one in candidates}
        told += [f"{one.dense:g}/{one.rows:g}: {auc:.4f}" for one, auc in found.items()]
        best = max(found, key=lambda one: found[one])
    return best, ", ".join(told)


def merges(k: int, steps: int) -> int:
    return min(steps, WARMUP) + max(0, steps - WARMUP) // k


def seconds(arm: Arm) -> float:
    cluster = ClusterModel(
        TRAINERS, Compute(per_batch=SECONDS), lognormal=(Lognormal(0.2),), network=SLOW_LINK, seed=1
    )
    sizes = {"global_batch": TRAINERS * BATCH, "batch": BATCH}
    return simulate(
        cluster, make_strategy(arm.strategy, {**sizes, **arm.settings}), LONG * TRAINERS * BATCH
    ).seconds


def times() -> dict[str, Any]:
    took = {k: seconds(k_step(k)) for k in KS}
    merge = SLOW_LINK.reduce(TRAINERS, 2)
    arithmetic = {k: LONG * SECONDS + merges(k, LONG) * merge for k in KS}
    for k in KS:
        ratio, alone = took[k] / took[1], arithmetic[k] / arithmetic[1]
        print(
            f"k {k:3}: {took[k]:8.1f} s, {ratio:.3f} of k = 1 (steps and merges by arithmetic: {alone:.3f})"
        )
    sync = seconds(Arm("sync"))
    print(f"sync : {sync:8.1f} s", flush=True)
    return {
        "time_ratio": {k: took[k] / took[1] for k in KS},
        "time_ratio_by_arithmetic": {k: arithmetic[k] / arithmetic[1] for k in KS},
        "time_over_sync": {k: took[k] / sync for k in KS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["time", "auc"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--tuning-examples", type=int, default=50_000)
    options = parser.parse_args()
    began, found = time.perf_counter(), dict[str, Any]()
    if "time" in options.parts:
        found |= times()
    if "auc" in options.parts:
        found |= aucs(options)
    print(json.dumps(found | {"seconds": time.perf_counter() - began}))


def aucs(options: argparse.Namespace) -> dict[str, Any]:
    arms = {"sync": Arm("sync"), "rows_per_push": Arm("sync", rows_per_push=True)}
    arms |= {str(k): k_step(k) for k in KS}
    rates: dict[str, Rates] = {}
    for name in ("sync", "rows_per_push", *map(str, sorted(set(TUNED_LIKE.values())))):
        rates[name], told = tuned(arms[name], options.tuning_examples)
        print(f"tuning {name:14} {told}", flush=True)
    for k, like in TUNED_LIKE.items():
        rates[str(k)] = rates[str(like)]
    for mode in ("params", "params_m_v"):
        arms[f"10 {mode}"], rates[f"10 {mode}"] = k_step(10, mode), rates["10"]
    scores: dict[str, list[Score]] = {}
    for name, arm in arms.items():
        scores[name] = [run(arm, rates[name], seed, options.examples) for seed in range(1, options.seeds + 1)]
        own = scores[name]
        print(
            f"{name:14} dense {rates[name].dense:g}, rows {rates[name].rows:g}: AUC "
            f"{sum(score.auc for score in own) / len(own):.4f}, minus sync {text(difference(own, scores['sync']))}, "
            f"{own[0].outcome.seconds:.1f} s",
            flush=True,
        )
    return figures(scores, rates, options.examples)


def figures(scores: dict[str, list[Score]], rates: dict[str, Rates], examples: int) -> dict[str, Any]:
    return {
        "auc_gap": {k: plain(difference(scores[str(k)], scores["sync"])) for k in KS},
        "auc_gap_to_control": {k: plain(difference(scores[str(k)], scores["rows_per_push"])) for k in KS},
        "auc_gap_of_control": plain(difference(scores["rows_per_push"], scores["sync"])),
        "auc_gap_of_modes": {
            mode: plain(difference(scores[f"10 {mode}"], scores["10"])) for mode in ("params", "params_m_v")
        },
        "rates": {name: [one.dense, one.rows] for name, one in rates.items()},
        "examples": examples,
    }


if __name__ == "__main__":
    main()
