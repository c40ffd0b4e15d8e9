"""What does an average of the dense weights give at the next day's AUC, and at which horizon?

    python benchmarks/bench_average.py --journal average.jsonl           DeepFM, 2 M examples, batches 128 to 8192
    python benchmarks/bench_average.py --case batch_norm --batches 2048  also: which running statistics fit an average?

DeepFM is trained once over five days of a generated log, in order and in sync, and tested on the sixth. Dense rates are
those that 2026-11-16-large-batch-2M.txt found, and `--rates` times as much. Training does not read an average, so one
run gives the figures of every arm: `off` is the newest weights, `5%` an average over about this share of the run so
far, `0.99` one with this decay per step that begins as `10%`, `auto` the default. Seeds are logs of their own.
Differences are to `off` of the same run.

`initial` trains again with Adagrad's accumulator for rows at (0.2 / batch)^2 instead of 0.

The last line has, by batch and arm: the AUC, its difference to `off`, and `between`, half the width of the interval of
a paired comparison of two batches with this arm, in relation to the same with `off`. `cost` is what the averages cost
beside a step of the same size.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from large_batch.cases import Data, deepfm, dlrm, load
from torch import nn

import gearshift as gs
from gearshift import optim
from gearshift.embedding.store import RowAdagrad
from gearshift.experiments.paired_runs import Interval, interval
from gearshift.optim.schedule import Schedule
from gearshift.parameters.average import DenseAverage
from gearshift.parameters.average_rule import AverageRule
from gearshift.parameters.server import RowSettings
from gearshift.training.evaluation import evaluate
from gearshift.training.learner import Learner
from gearshift.training.worker import Worker

WARMUP = Schedule(warmup=0.1)
RATES = {  # (dense, rows) of the case, by batch
    "deepfm": {128: (2.3e-3, 0.03), 512: (5.1e-3, 0.03), 2048: (1.7e-2, 0.03), 8192: (5.8e-2, 0.045)},
    "dlrm": {128: (1.1e-2, 0.02), 512: (2.6e-2, 0.02), 2048: (8.6e-2, 0.045)},
    "batch_norm": {512: (5.1e-3, 0.03), 2048: (1.7e-2, 0.03)},
}
FOREVER = 1 - 1e-12  # as a decay: the horizon is a share of the run alone


def batch_norm(schema: gs.Schema) -> nn.Module:
    return gs.models.DeepFM(schema, dim=8, hidden=[64, 64], batch_norm=True)


MODELS: dict[str, Callable[[gs.Schema], nn.Module]] = {
    "deepfm": deepfm,
    "dlrm": dlrm,
    "batch_norm": batch_norm,
}
DECAYS = {f"{decay:g}": (decay, 9.0) for decay in (0.9, 0.99, 0.999)}
SHARES = {f"{share}%": (FOREVER, 100 / share - 1) for share in (1, 2, 5, 10, 20)}
ARMS = {"auto": (AverageRule().decay, AverageRule().young)} | DECAYS | SHARES | {"0.99 of 5%": (0.99, 19.0)}


@dataclass(frozen=True)
class Job:
    case: str
    seed: int
    batch: int
    rate: float  # a factor of the dense rate
    initial: float = 0.0  # of Adagrad's accumulator: (initial / batch) ** 2


def run(job: Job, data: Data) -> dict[str, float]:
    """The test AUC with each arm's weights, and seconds."""
    torch.manual_seed(job.seed)
    on = learner(job, data)
    averages = {
        name: DenseAverage.starting_at(AverageRule(decay, young), on.server.flat, on.server.buffers)
        for name, (decay, young) in ARMS.items()
    }
    total, done, took, began = data.train.counted(), 0, 0.0, time.process_time()
    for batch in data.train.batches(job.batch):
        done += len(batch)
        on.step(on.find(batch), lr_scale=WARMUP.factor(done / total))
        before = time.process_time()
        for average in averages.values():
            average.count(len(batch) / job.batch)
            average.follow(on.server.flat, on.server.buffers)
        took += time.process_time() - before
    seconds = time.process_time() - began - took
    found = {"off": evaluate(on, data.test).auc}
    for name, average in averages.items():
        with shown(on, average):
            found[name] = evaluate(on, data.test).auc
        if average.buffers:
            with shown(on, average, buffers=False):
                found[f"{name} newest statistics"] = evaluate(on, data.test).auc
    return found | {"seconds": seconds, "cost": took / len(averages) / seconds}


def learner(job: Job, data: Data) -> Learner:
    dense, rows = RATES[job.case][job.batch]
    return Learner(
        Worker(MODELS[job.case](data.train.schema), data.train.schema),
        rows=RowSettings(RowAdagrad(lr=rows, initial=(job.initial / job.batch) ** 2)),
        optimizer=optim.build("adam", lr=dense * job.rate),
        seed=job.seed,
    )


@contextmanager
def shown(on: Learner, average: DenseAverage, *, buffers: bool = True) -> Any:
    newest = {name: values.clone() for name, values in on.server.buffers.items()}
    on.worker.dense.live_in(average.flat)
    for name, values in average.buffers.items():
        on.server.buffers[name].copy_(values if buffers else newest[name])
    yield
    on.worker.dense.live_in(on.server.flat)
    for name, values in newest.items():
        on.server.buffers[name].copy_(values)


def text(found: Interval) -> str:
    return f"{found.mean:+.5f} [{found.low:+.5f}, {found.high:+.5f}]"


def plain(found: Interval) -> dict[str, float]:
    return {"mean": found.mean, "low": found.low, "high": found.high}


Found = dict[Job, dict[str, float]]


def of(found: Found, **wanted: float) -> list[dict[str, float]]:
    """By seed."""
    fits = [job for job in found if all(getattr(job, key) == value for key, value in wanted.items())]
    return [found[job] for job in sorted(fits, key=lambda job: job.seed)]


def differences(arms: list[dict[str, float]], name: str, to: list[dict[str, float]], other: str) -> Interval:
    return interval([own[name] - base[other] for own, base in zip(arms, to, strict=False)])


def table(found: Found, options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for rate in options.rates:
        for batch in options.batches:
            runs = of(found, batch=batch, rate=rate, initial=0.0)
            first = of(found, batch=options.batches[0], rate=rate, initial=0.0)
            newest = differences(runs, "off", first, "off").half
            print(f"== batch {batch}, {rate:g} x the rate, {len(runs)} seeds: off {auc(runs, 'off'):.4f}")
            lines = result.setdefault(f"{rate:g}", {}).setdefault(str(batch), {})
            for name in (key for key in runs[0] if key not in ("seconds", "cost")):
                apart, between = differences(runs, name, runs, "off"), differences(runs, name, first, name)
                ratio = math.nan if batch == options.batches[0] else between.half / newest
                lines[name] = {"auc": auc(runs, name), **plain(apart), "between": ratio}
                print(
                    f"  {name:24} {text(apart)}   to batch {options.batches[0]}: {text(between)} ({ratio:.2f} of off)"
                )
    return result


def auc(runs: list[dict[str, float]], name: str) -> float:
    return mean(one[name] for one in runs)


def of_initial(found: Found, options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for batch in options.batches:
        own = of(found, batch=batch, rate=1.0, initial=options.initial)
        zero = of(found, batch=batch, rate=1.0, initial=0.0)
        if own:
            names = [name for name in ("off", *ARMS) if name in own[0]]
            by_arm = {name: differences(own, name, zero, name) for name in names}
            result[str(batch)] = {name: plain(value) for name, value in by_arm.items()}
            told = ", ".join(f"{name} {text(by_arm[name])}" for name in ("off", "0.99", "5%"))
            print(f"== initial ({options.initial:g} / {batch})^2 minus 0: {told}")
    return result


def jobs(options: argparse.Namespace, seed: int) -> list[Job]:
    plain = [Job(options.case, seed, batch, rate) for rate in options.rates for batch in options.batches]
    return plain + [
        Job(options.case, seed, batch, 1.0, options.initial) for batch in options.batches if options.initial
    ]


def measured(options: argparse.Namespace) -> Found:
    found: Found = {}
    if options.journal and options.journal.exists():
        for line in map(json.loads, options.journal.read_text().splitlines()):
            found[Job(**line["job"])] = line["found"]
    for seed in range(1, options.seeds + 1):
        missing = [job for job in jobs(options, seed) if job not in found]
        if not missing:
            continue
        with TemporaryDirectory(prefix="average-") as kept:
            data = load("deepfm", seed, 1.0, options.examples, Path(), Path(kept))
            for job in missing:
                found[job] = run(job, data)
                print(job, {key: round(value, 5) for key, value in found[job].items()}, flush=True)
                if options.journal:
                    with options.journal.open("a") as file:
                        file.write(json.dumps({"job": vars(job), "found": found[job]}) + "\n")
    return found


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=MODELS, default="deepfm")
    parser.add_argument("--examples", type=int, default=2_000_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batches", type=lambda text: [int(n) for n in numbers(text)])
    parser.add_argument("--rates", type=numbers, default=[1.0, 0.5], help="factors of the dense rate")
    parser.add_argument("--initial", type=float, default=0.2, help="0: only runs with an accumulator of 0")
    parser.add_argument("--journal", type=Path, help="a file that keeps what is done, to go on from it")
    options = parser.parse_args()
    options.batches = options.batches or list(RATES[options.case])
    torch.set_num_threads(1)
    found = measured(options)
    result = {"auc": table(found, options), "initial": of_initial(found, options)}
    by_batch = {b: mean(one["cost"] for one in of(found, batch=b)) for b in options.batches}
    print(json.dumps(result | {"cost": by_batch, "seeds": options.seeds, "examples": options.examples}))


if __name__ == "__main__":
    main()
