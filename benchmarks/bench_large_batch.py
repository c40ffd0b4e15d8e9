"""How far may the batch grow, and under which optimizer? Each at its own tuned rates, paired seeds, real training.

    python benchmarks/bench_large_batch.py                       1 M examples, x1 and x16 of 128, four arms
    python benchmarks/bench_large_batch.py --full --data ../shared/data/frappe     4 M, x1 to x64, all arms, all cases:
                                                                                   about a day on two cores

DeepFM (with `--cases deepfm,dlrm,frappe` also DLRM, and DeepFM on Frappe) is trained once over five days of a generated
log, in order, and tested on the sixth; on Frappe for three epochs. Rates of dense parameters and rows are searched on a
grid of x1.5, on one seed that is not reported, by progressive log loss on `--tune-share` of the data, coarsely on a
quarter of that (more, where it would be fewer than 200 steps; Frappe: on all of it), and with the same seed on all of
the data it is seen whether lower ones are better; the winner is trained with three fresh seeds, each a log of its own,
and with all `--seeds` unless those three say already that it is worse than the tolerance. Every arm warms up over a
tenth of the run. VR sees 16 gradients a step (8 of 64 examples at batch 512), at the smallest batch one, where it is
its base. `--journal` keeps what is done, so that a run can be ended and goes on where it was.

`largest_batch` is the last before the first whose difference to the best arm of the smallest batch, paired by seed, has
a lower 95 % bound below -.001 of AUC. `auc` is that of this best arm plus the difference, for logs differ more than
arms do and not every arm has all seeds. `cost` is the difference to the same arm at the smallest batch, what the batch
alone costs: its interval is narrower. `recommended` is the arm with the largest one, by AUC among equals. Steps are
printed: a larger batch takes fewer, and that is all it gains on one core.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

from large_batch.arms import ARMS, arm
from large_batch.cases import CASES, Case
from large_batch.jobs import Job, Pool

from gearshift.experiments.largest_batch import Search, Sweep, SweepRow, sweep
from gearshift.experiments.paired_runs import Interval, bounds, interval

FOUR = ("sgd", "vr_sgd", "adam", "cowclip")
ALL = (
    *ARMS,
    *(f"{name}/{trust}" for name in ("vr_sgd", "vr_adam") for trust in ("touched", "row_wise")),
    *(
        f"{name}/{control}"
        for name in ("vr_sgd", "vr_adam")
        for control in ("norm_matched", "layer_mean", "permuted")
    ),
)
TOLERANCE = 0.001


def measured(case: str, options: argparse.Namespace, pool: Pool, threads: ThreadPoolExecutor) -> Sweep:
    began, arms = time.perf_counter(), options.arms.split(",")
    folder = str(options.data.resolve()) if case == "frappe" else ""
    found = None
    for found in sweep(
        arms,
        [options.base_batch * factor for factor in options.factors],
        lambda trial: pool(Job(case, trial, options.examples, options.base_batch, folder)),
        search(CASES[case], options),
        seeds=options.seeds,
        tolerance=TOLERANCE,
        rules={name: arm(name).rule for name in arms},
        to_the_end=True,
        each=threads.map,
    ):
        print(
            f"{case}  {text(found, found.lines[-1])}  after {time.perf_counter() - began:.0f} s", flush=True
        )
    assert found is not None
    return found


def search(case: Case, options: argparse.Namespace) -> Search:
    if case.examples is None:
        return Search(options.examples, share=options.tune_share, coarse=0.25)
    return Search(
        case.examples, share=1.0
    )  # small, and seen again: rates of a part of it would be those of another


def text(found: Sweep, line: SweepRow) -> str:
    chosen = arm(line.optimizer)
    apart, cost = found.difference(line), _cost(found, line)
    return (
        f"{line.optimizer:20} batch {line.batch:6,}  {line.mean('steps'):6,.0f} steps  "
        f"dense {chosen.dense_lr * line.dense:.2g} rows {chosen.rows.lr * line.rows:.2g}  "
        f"AUC {_auc(found, line):.4f} {apart.mean:+.4f} [{apart.low:+.4f}, {apart.high:+.4f}] of {len(line.scores)}  "
        f"cost {cost.mean:+.4f} [{cost.low:+.4f}, {cost.high:+.4f}]  "
        f"log loss {line.mean('logloss'):.4f}  gap {line.mean('gap'):+.4f}  {line.seconds:.0f} s CPU"
        + ("" if None not in line.scores else f"  diverged {line.scores.count(None)}")
    )


def _auc(found: Sweep, line: SweepRow) -> float:
    return mean(found.reference.aucs) + found.difference(line).mean


def _cost(found: Sweep, line: SweepRow) -> Interval:
    """Of the batch: to the same arm at the smallest, by seed."""
    base = min((x for x in found.lines if x.optimizer == line.optimizer), key=lambda x: x.batch)
    return interval([own - first for own, first in zip(line.aucs, base.aucs, strict=False)])


def figures(found: Sweep) -> dict[str, Any]:
    auc: dict[str, dict[int, float]] = {}
    cost: dict[str, dict[int, dict[str, float | None]]] = {}
    for line in found.lines:
        cost.setdefault(line.optimizer, {})[line.batch] = bounds(_cost(found, line))
        auc.setdefault(line.optimizer, {})[line.batch] = round(_auc(found, line), 5)
    best = found.recommended
    return found.as_json() | {"recommended": best and best.optimizer, "auc": auc, "cost": cost}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="the defaults of the full form")
    parser.add_argument("--cases", help="some of " + ",".join(CASES))
    parser.add_argument("--arms", help="some of " + ",".join(ALL))
    parser.add_argument("--examples", type=int)
    parser.add_argument("--base-batch", type=int, default=128)
    parser.add_argument("--factors", type=lambda text: [int(f) for f in text.split(",")])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tune-share", type=float, default=0.25)
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data/frappe"), help="a folder with Frappe"
    )
    parser.add_argument("--jobs", type=int, default=2, help="training runs at a time, one core each")
    parser.add_argument("--svg", type=Path, help="where to draw what each arm loses, of the first case")
    parser.add_argument("--journal", type=Path, help="a file that keeps what is done, to go on from it")
    options = parser.parse_args()
    options.cases = options.cases or (",".join(CASES) if options.full else "deepfm")
    options.arms = options.arms or ",".join(ALL if options.full else FOUR)
    options.examples = options.examples or (4_000_000 if options.full else 1_000_000)
    options.factors = options.factors or ([1, 4, 16, 64] if options.full else [1, 16])
    found: dict[str, Sweep] = {}
    with Pool(options.jobs, options.journal) as pool, ThreadPoolExecutor(options.jobs) as threads:
        for case in options.cases.split(","):
            if case == "frappe" and not options.data.is_dir():
                print(f"frappe is skipped: there is no folder {options.data} (--data)", flush=True)
                continue
            found[case] = measured(case, options, pool, threads)
            lines = sorted(
                found[case].lines,
                key=lambda line: (line.batch, options.arms.split(",").index(line.optimizer)),
            )
            print("\n".join([f"== {case}", *(text(found[case], line) for line in lines)]), flush=True)
    if options.svg is not None and found:
        case, drawn = next(iter(found.items()))
        options.svg.write_text(drawn.picture(f"{case}, {options.examples:,} examples, one pass"))
    by_case = {case: figures(one) for case, one in found.items()}
    first = next(iter(by_case.values()), {})
    keys = ("largest_batch", "recommended", "auc", "cost")
    print(json.dumps({key: first.get(key) for key in keys} | {"cases": by_case, "seeds": options.seeds}))


if __name__ == "__main__":
    main()
