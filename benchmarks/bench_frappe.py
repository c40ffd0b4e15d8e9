"""Are the models as accurate as published? Test AUC on Frappe, mean over seeds; JSON as the last line.

    lr_auc  fm_auc  deepfm_auc  dcnv2_auc     BARS: .9356  .9671  .9842  .9845

The protocol of BARS (Frappe_x1): Adam, validation after every epoch, the learning rates cut to a tenth when
the validation AUC does not rise, stop after the second such epoch, test the best epoch. Unlike there, an
embedding row moves only when it is touched, and L2 acts on rows touched. `--data` is a folder with
{train,valid,test}.libfm.zst; its licence does not allow us to ship it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import gearshift as gs


@dataclass(frozen=True)
class Arm:
    build: Callable[[gs.Schema], nn.Module]
    rows: gs.RowAdam
    batch: int = 4096
    epochs: int = 40


def deep(model: Callable[..., nn.Module]) -> Callable[[gs.Schema], nn.Module]:
    return lambda schema: model(schema, dim=10, hidden=[400, 400, 400], batch_norm=True, dropout=0.2)


ARMS = {
    "lr": Arm(lambda schema: gs.models.LR(schema), gs.RowAdam(lr=5e-3, l2=1e-6), batch=1024),
    "fm": Arm(lambda schema: gs.models.FM(schema, dim=10), gs.RowAdam(lr=5e-3, l2=1e-5)),
    "deepfm": Arm(deep(gs.models.DeepFM), gs.RowAdam(lr=1e-3, l2=5e-2)),
    "dcnv2": Arm(deep(gs.models.DCNv2), gs.RowAdam(lr=1e-3, l2=5e-2)),
}


def test_auc(arm: Arm, parts: dict[str, gs.Dataset], seed: int, folder: str) -> float:
    trainer = gs.Trainer(
        global_batch=arm.batch,
        epochs=arm.epochs,
        seed=seed,
        checkpoint=gs.CheckpointPolicy(every=None, keep=1, path=folder),
        optimizer=gs.OptimizerSettings(
            gs.Adam(lr=1e-3), rows=gs.RowSettings(embeddings=arm.rows, linear=arm.rows)
        ),
        training=gs.TrainingSettings(
            evaluation=gs.EvaluationSettings(
                early_stopping=gs.EarlyStopping(patience=2), plateau=gs.Plateau(factor=0.1, patience=1)
            )
        ),
    )
    torch.manual_seed(seed)
    model = arm.build(parts["train"].schema)
    result = trainer.fit(model, parts["train"], parts["valid"], test=parts["test"], name="frappe")
    return float(result.report["test"]["auc"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", default=",".join(ARMS), help="some of " + ",".join(ARMS))
    options = parser.parse_args()
    if not options.data.is_dir():
        print(json.dumps({"skipped": f"no folder {options.data}"}))
        return
    parts = {name: gs.read(options.data / f"{name}.libfm.zst") for name in ("train", "valid", "test")}
    found: dict[str, float | list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models.split(","):
            start = time.perf_counter()
            aucs = [test_auc(ARMS[name], parts, seed, folder) for seed in range(1, options.seeds + 1)]
            found[f"{name}_auc"], found[f"{name}_aucs"] = statistics.mean(aucs), aucs
            each = " ".join(f"{auc:.4f}" for auc in aucs)
            print(
                f"{name:8s} {statistics.mean(aucs):.4f}   ({each})   {time.perf_counter() - start:.0f} s",
                flush=True,
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
