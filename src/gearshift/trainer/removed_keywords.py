"""Keywords that `Trainer` had before its settings were grouped, and their replacements."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from gearshift.errors import UserError

_WORKERS = "Trainer(workers=gs.WorkerSettings({}=...))"
_OPTIMIZER = "Trainer(optimizer=gs.OptimizerSettings({}=...))"
_ROWS = "Trainer(optimizer=gs.OptimizerSettings(rows=gs.RowSettings({}=...)))"
_SCALING = "Trainer(optimizer=gs.OptimizerSettings(scaling=gs.BatchScaling({}=...)))"
_TRAINING = "Trainer(training=gs.TrainingSettings({}=...))"
_EVALUATION = "Trainer(training=gs.TrainingSettings(evaluation=gs.EvaluationSettings({}=...)))"
_FIT = "Trainer().fit(model, train, {}=...), and the same in start"

REMOVED = {
    "shards": _WORKERS.format("shards"),
    "threads": _WORKERS.format("threads"),
    "inject": _WORKERS.format("inject"),
    "clip_norm": _OPTIMIZER.format("clip_norm"),
    "schedule": _OPTIMIZER.format("schedule"),
    "embeddings": _ROWS.format("embeddings"),
    "linear": _ROWS.format("linear"),
    "row_init": _ROWS.format("init"),
    "row_clip": _ROWS.format("clip"),
    "embedding_reduce": _ROWS.format("reduce"),
    "row_trust": _ROWS.format("trust"),
    "batch_rule": _SCALING.format("rule"),
    "base_batch": _SCALING.format("base_batch"),
    "batch": _TRAINING.format("batch"),
    "micro_batches": _TRAINING.format("micro_batches"),
    "shuffle": _TRAINING.format("shuffle"),
    "loss": _TRAINING.format("loss"),
    "bad_batches": _TRAINING.format("bad_batches"),
    "baseline": _TRAINING.format("baseline"),
    "eval_every": _EVALUATION.format("every"),
    "best": _EVALUATION.format("best"),
    "early_stopping": _EVALUATION.format("early_stopping"),
    "plateau": _EVALUATION.format("plateau"),
    "callbacks": _FIT.format("callbacks"),
    "name": _FIT.format("name"),
}


def refuse(unexpected: Iterable[str], known: Iterable[str]) -> None:
    """Raises if there is an unexpected keyword: a message with its new place, or with the nearest known name."""
    for name in unexpected:
        if name in REMOVED:
            raise UserError(f"Trainer no longer has {name}: {REMOVED[name]}")
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
        raise TypeError(f"Trainer has no {name}; {hint}")
