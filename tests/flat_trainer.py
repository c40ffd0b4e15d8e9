"""A trainer from settings without their groups, so that a test can combine any of them with `|`."""

from __future__ import annotations

from typing import Any

import gearshift as gs

WORKERS = {
    "workers": "count",
    "shards": "shards",
    "threads": "threads",
    "memory": "memory",
    "storage": "storage",
    "inject": "inject",
}
ROWS = {
    "embeddings": "embeddings",
    "linear": "linear",
    "row_init": "init",
    "row_clip": "clip",
    "embedding_reduce": "reduce",
    "row_trust": "trust",
}
SCALING = {"batch_rule": "rule", "base_batch": "base_batch"}
OPTIMIZER = {"optimizer": "dense", "clip_norm": "clip_norm", "schedule": "schedule"}
EVALUATION = {
    "eval_every": "every",
    "best": "best",
    "early_stopping": "early_stopping",
    "plateau": "plateau",
}
TRAINING = {
    name: name for name in ("batch", "micro_batches", "shuffle", "loss", "bad_batches", "baseline", "average")
}


def flat_trainer(**flat: Any) -> gs.Trainer:
    """`flat_trainer(row_clip=gs.CowClip(), shards=2)` has these in the values that `gs.Trainer` takes."""

    def group(names: dict[str, str]) -> dict[str, Any]:
        return {new: flat.pop(name) for name, new in names.items() if name in flat}

    rows, scaling = gs.RowSettings(**group(ROWS)), gs.BatchScaling(**group(SCALING))
    return gs.Trainer(
        workers=gs.WorkerSettings(**group(WORKERS)),
        optimizer=gs.OptimizerSettings(**group(OPTIMIZER), rows=rows, scaling=scaling),
        training=gs.TrainingSettings(
            **group(TRAINING), evaluation=gs.EvaluationSettings(**group(EVALUATION))
        ),
        **flat,
    )
