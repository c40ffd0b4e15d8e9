"""A run of the trainer whose rows outgrow their memory, in a process of its own: `python training_run.py SETTINGS`.

SETTINGS is JSON: folder, budget (bytes), rows (different ids that the data have), seconds, checkpoint_seconds. The
data are made as they are read, 26 fields, zipf 1.05; with few rows it is the same run with an empty store. The last
line of the output is JSON: how many rows there were in memory and on disk, and what the tier counted as its memory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import gearshift as gs
from gearshift.data.batch import Batch
from gearshift.data.dataset import Dataset

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))
from networks import SCHEMA
from protocol import FIELDS, HIDDEN, NUMERICS, WIDTH

from tier.traces import ZIPF, ids_of

ENDLESS = 10**10  # examples: the run is stopped
BLOCK = 4096


class ZipfExamples:
    """Examples by position, made on demand; the row of a rank follows from a hash."""

    seekable = True

    def __init__(self, rows: int, fold: int) -> None:
        self.schema, self.per_field, self.fold = SCHEMA, rows // FIELDS, fold or rows
        weights = np.arange(1, self.per_field + 1, dtype=np.float64) ** -ZIPF
        self._cumulative = np.cumsum(weights) / weights.sum()

    def count(self) -> int | None:
        return ENDLESS

    def estimate(self) -> int:
        return ENDLESS

    def blocks(self, first: int) -> Iterator[Batch]:
        for block in range(first // BLOCK, ENDLESS // BLOCK):
            batch = self._block(block)
            yield batch if block * BLOCK >= first else batch.slice(first - block * BLOCK, BLOCK)

    def _block(self, block: int) -> Batch:
        random, fields = np.random.default_rng(block), np.arange(FIELDS)
        ranks_BF = np.searchsorted(self._cumulative, random.random((BLOCK, FIELDS)))
        numbers_BF = (fields << 40) + np.minimum(ranks_BF, self.per_field - 1) % self.fold
        numeric_BN = random.normal(0, 1, (BLOCK, NUMERICS)).astype(np.float32)
        labels_BT = (random.random((BLOCK, 1)) < 0.2).astype(np.float32)
        return Batch(block * BLOCK, labels_BT, numeric_BN, ids_of(numbers_BF))

    def with_schema(self, schema: gs.Schema) -> ZipfExamples:
        return self

    def time_range(self) -> tuple[int, int] | None:
        return None

    def describe(self) -> tuple[str, str]:
        return "zipf examples", ""


def main() -> None:
    settings = json.loads(sys.argv[1])
    folder = Path(settings["folder"])
    trainer = gs.Trainer(
        global_batch=BLOCK,
        workers=gs.WorkerSettings(1, memory=settings["budget"], storage=folder / "rows"),
        checkpoint=gs.CheckpointPolicy(
            gs.Every(seconds=settings["checkpoint_seconds"]), keep=1, path=folder / "runs"
        ),
        training=gs.TrainingSettings(shuffle=False),
    )
    model = gs.models.DNN(SCHEMA, dim=WIDTH, hidden=HIDDEN)
    run = trainer.start(model, Dataset(ZipfExamples(settings["rows"], settings["fold"])), name="memory")
    print(json.dumps({"started": os.getpid()}), flush=True)
    time.sleep(settings["seconds"])
    run.stop()
    report = run.wait().report
    print(json.dumps({"tier": report.get("tier"), "examples": report["examples"]}), flush=True)


if __name__ == "__main__":
    main()
