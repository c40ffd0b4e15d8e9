"""A real table with numbers and text: test AUC of a DNN on Census-Income (KDD); JSON as the last line.

    dnn_auc     mean over seeds; a hashed logistic regression reaches .950

`--data` is a folder with {train,test}.csv.gz, without a header, the label last. Column 25 is the weight of
the survey, which no model may see; it is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import gearshift as gs

COLUMNS = (*(f"c{i}" for i in range(1, 42)), "income")
INSTANCE_WEIGHT = "c25"


def census_schema() -> gs.Schema:
    """Every column as a category, the few numbers too: most of them are 0 or one of some dozen values."""
    names = [name for name in COLUMNS if name not in (INSTANCE_WEIGHT, "income")]
    return gs.Schema(tuple(map(gs.Categorical, names)), labels=(gs.Label("income", positive="50000+."),))


def test_auc(train: gs.Dataset, test: gs.Dataset, seed: int, folder: str) -> float:
    trainer = gs.Trainer(
        global_batch=1024,
        epochs=3,
        seed=seed,
        checkpoint=gs.CheckpointPolicy(every=None, keep=1, path=folder),
        optimizer=gs.OptimizerSettings(
            gs.Adam(lr=1e-3), rows=gs.RowAdam(lr=1e-3), schedule=gs.Schedule(decay="linear")
        ),
    )
    model = gs.models.DNN(train.schema, dim=8, hidden=[128, 64], dropout=0.1)
    return float(trainer.fit(model, train, test=test, name="census").report["test"]["auc"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if not options.data.is_dir():
        print(json.dumps({"skipped": f"no folder {options.data}"}))
        return
    csv = gs.CsvFormat(delimiter=",", header=False, columns=COLUMNS, trim=True)
    train = gs.read(options.data / "train.csv.gz", census_schema(), csv=csv)
    test = gs.read(options.data / "test.csv.gz", train.schema, csv=csv)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        aucs = [test_auc(train, test, seed, folder) for seed in range(1, options.seeds + 1)]
    print(f"dnn {statistics.mean(aucs):.4f}   {time.perf_counter() - start:.0f} s")
    print(json.dumps({"dnn_auc": statistics.mean(aucs), "dnn_aucs": aucs}))


if __name__ == "__main__":
    main()
