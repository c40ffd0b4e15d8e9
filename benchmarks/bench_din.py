"""Does attention to the history pay? Test AUC on the generated log with histories; JSON as the last line.

    none_auc     DNN without the history          aims: .703
    mean_auc     DNN, the history averaged              .731
    din_auc      DIN, target ad_topic                   .753
    teacher_auc  the true probabilities                 .794

    python benchmarks/bench_din.py                1.5 M examples, one pass each; about 5 minutes on two cores

The teacher looks at how often, and how lately, the ad's topic is in the history, which an average blurs. All three make
one pass over one day in its order: width 16, batch 1024, hidden layers 256-128, Adam 1e-3 for the dense weights and
2e-2 for the rows, born within .05; the test examples come right after, on the same day. At 1e-3 rows stay so small
that the product of two, by which attention tells a match, teaches little: of 600,000 examples DIN gained .010
there and .027 at 1e-2. One seed
unless `--seeds` asks for more; the standard error of a test AUC is in the last line too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

import gearshift as gs
from gearshift.data.readers.generated import GeneratedExamples

HIDDEN = [256, 128]


@dataclass(frozen=True)
class Arm:
    build: Callable[[gs.Schema], nn.Module]
    history: bool = True


ARMS = {
    "none": Arm(lambda schema: gs.models.DNN(schema, dim=16, hidden=HIDDEN), history=False),
    "mean": Arm(lambda schema: gs.models.DNN(schema, dim=16, hidden=HIDDEN)),  # it averages a sequence
    "din": Arm(
        lambda schema: gs.models.DIN(schema, dim=16, hidden=HIDDEN, target="ad_topic", history="history")
    ),
}


def without_history(schema: gs.Schema) -> gs.Schema:
    return replace(schema, features=tuple(f for f in schema.features if f.name != "history"))


def measured(arm: Arm, log: gs.ClickLog, trained: int, seed: int, folder: str) -> dict[str, float]:
    """The figures of the test examples, which follow the trained ones."""
    schema = log.schema if arm.history else without_history(log.schema)
    train = gs.Dataset(GeneratedExamples(log, 0, trained, schema))
    test = gs.Dataset(GeneratedExamples(log, trained, None, schema))
    trainer = gs.Trainer(
        global_batch=1024,
        seed=seed,
        checkpoint=gs.CheckpointPolicy(every=None, keep=1, path=folder),
        optimizer=gs.OptimizerSettings(
            gs.Adam(lr=1e-3), rows=gs.RowSettings(embeddings=gs.RowAdam(lr=2e-2), init=0.05)
        ),
    )
    torch.manual_seed(seed)
    figures: dict[str, float] = trainer.fit(arm.build(schema), train, test=test, name="din").report["test"]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=1_500_000, help="to train on")
    parser.add_argument("--test-examples", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    log = gs.ClickLog(options.examples + options.test_examples, days=1, sequences=True)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, arm in ARMS.items():
            start = time.perf_counter()
            seeds = range(1, options.seeds + 1)
            each = [measured(arm, log, options.examples, seed, folder) for seed in seeds]
            found[f"{name}_auc"] = statistics.mean(figures["auc"] for figures in each)
            found["auc_se"] = each[-1]["auc_se"]
            seconds = time.perf_counter() - start
            print(f"{name:8s} {found[f'{name}_auc']:.4f}   {seconds:.0f} s", flush=True)
    teacher = log.teacher_auc()
    print(f"{'teacher':8s} {teacher.value:.4f} +- {teacher.error:.4f}", flush=True)
    print(json.dumps({**found, "teacher_auc": teacher.value, "examples": options.examples}))


if __name__ == "__main__":
    main()
