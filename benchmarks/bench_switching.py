"""Is gba as good as sync at sync's own settings? Real gradients, virtual time, paired seeds.

    python benchmarks/bench_switching.py --data ../shared/data/frappe        about 35 minutes of CPU, on two cores
    python benchmarks/bench_switching.py --only deepfm,din,dlrm,frappe       some of them
    python benchmarks/bench_switching.py --tune [--base-per-day 50000]       the grids, on seed 100, and no more
    python benchmarks/bench_switching.py --claim-only --dense-lr 1e-3        does the gap depend on the rate?
    python benchmarks/bench_switching.py --full --per-day 100000             ablations of every model of the log
    python benchmarks/bench_switching.py --only deepfm --staleness --per-day 150000     gba's settings for staleness

Per seed: three days in sync, then every arm goes on from the same parameters and optimizer state for two (shorter)
days, and back to sync for one. DeepFM, DIN and DLRM on a generated log with drift are scored by the AUC of the day
after the arm, before anything of that day is trained (`differences`), and by progressive AUC over the arm's days
(`jitter`: it pools hundreds of states of the weights); DeepFM on Frappe by epochs (three, one and one), by test AUC.
Arms have the same examples in the same order and the same worker times (`switching/base.py` has the cluster). Rates
were tuned for sync alone, on seed 100, which is not reported; arms `..._own` have their own, where it is another.
Differences are paired by seed, with Student's 95 % interval.

Controls: a switch from sync to sync must be bit-identical; `another_order` is sync on the same days in another order.
Ablations and the sweep of N/M (three seeds) are DeepFM's unless `--full`. `held_...`: the slowest worker's leases hold
all that the arm's days have of the day after. The last line is one JSON object: the worst of the cases, and each case.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from switching.cases import CASES
from switching.jobs import Job, run_all
from switching.plan import ABLATIONS, SWEEP, claim_arms, staleness_arms, tuned
from switching.summary import Case, whole

SWEEP_SEEDS = 3
CLAIM = ("sync", "itself", "gba", "buffered_async", "async")


def measured(name: str, options: argparse.Namespace) -> Case:
    case, began = CASES[name], time.perf_counter()
    dense_lr = options.dense_lr or case.dense_lr
    print(f"{name}: dense {dense_lr:g}, rows {case.row_lr:g}; own rates {case.rates}", flush=True)
    jobs = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        arms = claim_arms(case)
        if (name == "deepfm" or options.full) and not case.epochs:
            arms |= ABLATIONS | (SWEEP if seed < options.first_seed + SWEEP_SEEDS else {})
        if options.claim_only:
            arms = {arm: arms[arm] for arm in CLAIM}
        if options.staleness:
            arms = staleness_arms()
        data = str(options.data.resolve())
        jobs.append(Job(name, seed, arms, dense_lr, case.row_lr, *sizes(options), data))
    scores, same = [], True
    for job, done in zip(jobs, run_all(jobs, options.jobs), strict=True):
        scores.append(done.scores)
        same = same and bool(done.same)
        each = " ".join(f"{arm} {score.held_out or score.auc:.5f}" for arm, score in done.scores.items())
        print(f"{name} seed {job.seed}: {each}  {time.perf_counter() - began:.0f} s", flush=True)
    return Case.of(scores, same)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(CASES), help="some of " + ",".join(CASES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--per-day", type=int, default=50_000, help="after the switch")
    parser.add_argument("--base-per-day", type=int, default=200_000, help="of the three days before")
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data/frappe"), help="a folder with Frappe"
    )
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time, one core each")
    parser.add_argument(
        "--full", action="store_true", help="ablations and the sweep for every model of the log"
    )
    parser.add_argument("--tune", action="store_true", help="print the grids instead")
    parser.add_argument("--claim-only", action="store_true", help="no arms but " + ", ".join(CLAIM))
    parser.add_argument(
        "--staleness", action="store_true", help="gba's settings for staleness, and no other arms"
    )
    parser.add_argument("--first-seed", type=int, default=1, help="the others follow it")
    parser.add_argument("--dense-lr", type=float, help="another rate than sync's best, to see what it does")
    options = parser.parse_args()
    found: dict[str, Case] = {}
    figures: dict[str, object] = {}
    for name in options.only.split(","):
        if CASES[name].epochs and not options.data.is_dir():
            print(f"{name} is skipped: there is no folder {options.data} (--data)", flush=True)
            figures[name] = whole({})
        elif options.tune:
            data = str(options.data.resolve())
            figures[name] = tuned(name, CASES[name], sizes(options), data, options.jobs)
        else:
            found[name] = measured(name, options)
            figures[name] = found[name].figures()
            print("\n".join([f"== {name}", *found[name].lines()]), flush=True)
    total = {} if options.tune else whole(found)
    print(
        json.dumps(
            {**total, "cases": figures, "per_day": options.per_day, "base_per_day": options.base_per_day}
        )
    )


def sizes(options: argparse.Namespace) -> tuple[int, int]:
    return options.per_day, options.base_per_day


if __name__ == "__main__":
    main()
