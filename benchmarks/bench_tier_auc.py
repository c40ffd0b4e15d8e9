"""Why more rows than memory: AUC of the full table, with rows on disk, against ids hashed into 1/8 of the rows.

    python benchmarks/bench_tier_auc.py                      1 M examples, five seeds, about an hour
    python benchmarks/bench_tier_auc.py --examples 100000 --seeds 2

DeepFM (width 8, 64-64) is trained once, in order, over five days of a generated log and tested on the sixth; every
seed is a log and a model of its own. `full` has a row for every id, and `memory` for 1/8 of them, so that most are
on disk. `hashed` is the usual way out: as many rows as 1/8 of the ids, all in memory. No feature may have more than
a limit, so that features with few ids keep them all and the large ones are hashed into that many rows (the limit
follows from the ids of the training days). Both see the same batches and settings. The learning rate of the rows is
chosen for each of the two from `--row-lrs`, by AUC on a log with a seed that is not reported.

`difference` is hashed minus full, paired by seed, with the 95 % interval of Student's t.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tier.traces import ids_of

import gearshift as gs
from gearshift.data.batch import Batch
from gearshift.data.dataset import Dataset
from gearshift.data.readers.generated import GeneratedExamples
from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.memory_budget import minimum_bytes
from gearshift.embedding.store import RowAdagrad
from gearshift.experiments.paired_runs import bounds, interval
from gearshift.metrics import Measures
from gearshift.optim.first_order import Adam
from gearshift.parameters.server import RowSettings
from gearshift.training.learner import Learner
from gearshift.training.worker import Worker

DAYS, DIM, TUNING_SEED = 5, 8, 1_000_003
FLOATS = 2 * (DIM + 1)  # of a row with its linear term and Adagrad's state
ROW_BYTES = 4 * FLOATS + 12 + 36  # in memory, with counts and its part of the index


def log_of(seed: int, examples: int) -> tuple[Dataset, Dataset]:
    log = gs.ClickLog(examples=examples // DAYS * (DAYS + 1), days=DAYS + 1, seed=seed)
    end = log.day_begin(DAYS)
    train = Dataset(GeneratedExamples(log, 0, end)).fitted()
    return train, Dataset(GeneratedExamples(log, end)).with_schema(train.schema)


def ids_per_feature(train: Dataset) -> NDArray[np.int64]:
    found: list[list[NDArray[np.int64]]] = []
    for examples in train.batches(1 << 16):
        found.append([np.unique(column) for column in examples.ids_BF.T])
    return np.array([len(np.unique(np.concatenate(column))) for column in zip(*found, strict=True)])


def largest_limit(ids_F: NDArray[np.int64], rows: int) -> int:
    """The most rows of a feature with which all features together have no more than `rows`."""
    low, high = 1, int(ids_F.max())
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(ids_F, middle).sum() <= rows else (low, middle - 1)
    return low


def hashed(batch: Batch, ids_F: NDArray[np.int64], limit: int) -> Batch:
    """Features with more ids than the limit share `limit` rows."""
    fields = np.arange(len(ids_F), dtype=np.int64)
    shared = ids_of((fields << 40) + batch.ids_BF % limit)
    return replace(batch, ids_BF=np.ascontiguousarray(np.where(ids_F > limit, shared, batch.ids_BF)))


@dataclass(frozen=True)
class Arm:
    """A way to keep the rows of a log: which rows a batch has, and where those are that do not fit in memory."""

    name: str
    change: Callable[[Batch], Batch]
    budget: int | None = None


def trained(
    data: tuple[Dataset, Dataset], arm: Arm, seed: int, row_lr: float, options: Namespace
) -> dict[str, Any]:
    torch.manual_seed(seed)
    (train, test), measures = data, Measures()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        learner = Learner(
            Worker(gs.models.DeepFM(train.schema, dim=DIM, hidden=[64, 64]), train.schema),
            rows=RowSettings(RowAdagrad(lr=row_lr)),
            optimizer=Adam(lr=options.dense_lr),
            seed=seed,
            tier=None if arm.budget is None else ColdTier(Path(folder), arm.budget),
        )
        for batch in train.batches(options.batch):
            learner.step(learner.find(arm.change(batch)))
        rows, cold = learner.rows, learner.tier.counts.cold_rows if learner.tier else 0
        for batch in test.batches(4096):
            found = learner.find(arm.change(batch))
            measures.update(batch.labels_BT[:, 0], learner.predict(found)[:, 0])
    return {"auc": measures.auc, "rows": rows, "on_disk": cold}


def arms_of(train: Dataset, options: Namespace) -> tuple[Arm, Arm]:
    ids_F = ids_per_feature(train)
    rows = int(ids_F.sum() * options.share)
    limit = largest_limit(ids_F, rows)
    budget = max(rows * ROW_BYTES, minimum_bytes(FLOATS))
    return Arm("full", lambda batch: batch, budget), Arm("hashed", lambda batch: hashed(batch, ids_F, limit))


def chosen_rates(options: Namespace) -> dict[str, float]:
    data = log_of(TUNING_SEED, options.examples)
    rates = {}
    for arm in arms_of(data[0], options):
        aucs = {lr: trained(data, arm, TUNING_SEED, lr, options)["auc"] for lr in options.row_lrs}
        rates[arm.name] = max(aucs, key=lambda lr: aucs[lr])
        print(f"{arm.name}: AUC by learning rate {aucs}", flush=True)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=1_000_000, help="to train on, over all days")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1 / 8)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--dense-lr", type=float, default=1e-3)
    parser.add_argument("--row-lrs", type=float, nargs="*", default=[0.05, 0.025, 0.0125])
    parser.add_argument("--folder", default=None, help="for the files; the system's temporary one if not set")
    options = parser.parse_args()
    rates, found = chosen_rates(options), []
    for seed in range(1, options.seeds + 1):
        data = log_of(seed, options.examples)
        arms = arms_of(data[0], options)
        found.append({arm.name: trained(data, arm, seed, rates[arm.name], options) for arm in arms})
        print(seed, json.dumps(found[-1]), flush=True)
    aucs = {name: [one[name]["auc"] for one in found] for name in rates}
    differences = [less - whole for whole, less in zip(aucs["full"], aucs["hashed"], strict=True)]
    figures = {
        "difference": bounds(interval(differences)),
        **{f"auc_{name}": bounds(interval(values)) for name, values in aucs.items()},
        **{f"rows_{name}": [one[name]["rows"] for one in found] for name in rates},
        "on_disk": [one["full"]["on_disk"] for one in found],
        "row_lr": rates,
        "examples": options.examples,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
