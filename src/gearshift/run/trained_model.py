"""A trained model, independent of how it was trained: predict, evaluate, save, load.

A saved model is a checkpoint without optimizer state. A built-in model is rebuilt from its name and settings;
a custom module must be passed to `load`, because code is never read from a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from gearshift import models
from gearshift.data.batch import Batch, Floats
from gearshift.data.dataset import Dataset, read
from gearshift.data.missing_columns import MissingColumnsMode
from gearshift.data.schema import Schema
from gearshift.data.skew import SkewWatch
from gearshift.embedding.store import RowSGD
from gearshift.errors import MissingColumns, UserError, warn
from gearshift.models import first_weights
from gearshift.optim.first_order import SGD
from gearshift.parameters import checkpoint
from gearshift.parameters.average import AVERAGE, shown_arrays
from gearshift.parameters.server import RowSettings
from gearshift.training.evaluation import Evaluation, correct_for_sampling, evaluate, predictions
from gearshift.training.learner import Learner, describe, without_state
from gearshift.training.worker import Worker


class TrainedModel:
    """A model to predict with: what `gs.load` opens and what a run ends with."""

    def __init__(
        self,
        learner: Learner | Callable[[], Learner],
        facts: dict[str, Any] | Callable[[], dict[str, Any]],
    ) -> None:
        """`learner` and `facts` may be functions that load them; they are called at the first use."""
        self._learner, self._facts = learner, facts
        self._watch, self._warned = SkewWatch(), set[str]()

    @property
    def learner(self) -> Learner:
        """The network and its rows; loaded on first use."""
        if not isinstance(self._learner, Learner):
            self._learner = self._learner()
        return self._learner

    @property
    def facts(self) -> dict[str, Any]:
        """What its checkpoint contains besides the arrays."""
        if not isinstance(self._facts, dict):
            self._facts = self._facts()
        return self._facts

    @property
    def schema(self) -> Schema:
        """The meaning of the columns of its data."""
        return self.learner.schema

    def dataset(self, data: Any, *, missing_columns: MissingColumnsMode = "fail") -> Dataset:
        """Data in the form that this model reads: a Dataset, a path, or anything that `gs.read` accepts."""
        return self._open(data, missing_columns, labelled=True)

    def _open(self, data: Any, missing_columns: MissingColumnsMode, *, labelled: bool) -> Dataset:
        """Warns of columns that are absent or written differently than in training, once each."""
        try:
            if not isinstance(data, Dataset):
                dataset = read(data, self.schema, labelled=labelled, missing_columns=missing_columns)
            elif missing_columns == "fail":
                dataset = data.with_schema(self.schema)
            else:
                raise UserError("pass missing_columns to gs.read instead: this Dataset is already open")
        except MissingColumns as error:
            raise error.with_option('missing_columns="as_missing"') from None
        for column, sentence in self._watch.remarks(dataset.examples, self.schema.forms).items():
            if column not in self._warned:
                self._warned.add(column)
                warn(sentence)
        return dataset

    def predict(self, data: Any, *, missing_columns: MissingColumnsMode = "fail") -> Floats:
        """Probabilities, one per example ([n], or [n, tasks] for several tasks).

        A feature column missing from the data is an error; with `missing_columns="as_missing"` such a feature is
        missing in every example.
        """
        batches = [p for _, p in self.predict_batches(data, missing_columns=missing_columns)]
        scores = np.concatenate(batches) if batches else np.zeros((0, len(self.schema.labels)), np.float32)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_batches(
        self, data: Any, *, missing_columns: MissingColumnsMode = "fail"
    ) -> Iterator[tuple[Batch, Floats]]:
        """The same, batch by batch, for data of any size; [B, T] each."""
        dataset = self._open(data, missing_columns, labelled=False)
        for batch, probabilities_BT in predictions(self.learner, dataset):
            yield batch, correct_for_sampling(probabilities_BT, self.schema.negatives_kept)

    def evaluate(self, data: Any, *, missing_columns: MissingColumnsMode = "fail") -> Evaluation:
        """Evaluates it on labelled data: `.auc`, `.logloss`, `.calibration` and more.

        With `missing_columns="as_missing"` the grouped AUC is omitted if the group column is missing from the data.
        """
        return evaluate(self.learner, self._open(data, missing_columns, labelled=True))

    def save(self, path: str | Path) -> Path:
        """Writes a folder that `gs.load` opens, on any machine, without the training code."""
        path = Path(path)
        if path.exists() and not (path / checkpoint.MANIFEST).is_file():
            raise UserError(f"{path} exists and is not a saved model: choose another folder, or remove it")
        snapshot = self.learner.snapshot()
        arrays = {name: a for name, a in snapshot.arrays.items() if name not in ("optimizer", AVERAGE)}
        if AVERAGE in snapshot.arrays:
            arrays["dense"] = shown_arrays(arrays["dense"], snapshot.arrays[AVERAGE])
        rows = {name: map(without_state, cut) for name, cut in snapshot.rows.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            checkpoint.write(path, self.facts, arrays, rows)
        finally:
            snapshot.close()
        return path


def load(path: str | Path, model: nn.Module | None = None) -> TrainedModel:
    """Opens a saved model, a checkpoint, or a run (its best checkpoint). Pass a custom module as `model`."""
    opened = checkpoint.Checkpoint.open(checkpoint.resolve(Path(path)))
    facts = opened.facts
    schema = Schema.from_dict(facts["schema"])
    if model is None:
        model = _rebuild(opened.path, facts["model"], schema)
    first_weights.remember(model)
    learner = Learner(Worker(model, schema), rows=RowSettings(RowSGD()), optimizer=SGD(), seed=facts["seed"])
    learner.restore(opened, trainable=False)
    first_weights.written(model)
    return TrainedModel(learner, facts)


def model_facts(model: nn.Module) -> dict[str, Any]:
    """What a checkpoint stores about a module; `name` is None for a user's own module."""
    name, params = models.recipe(model) or (None, {})
    return {"text": describe(model), "name": name, "params": params}


def _rebuild(path: Path, facts: dict[str, Any], schema: Schema) -> nn.Module:
    if facts["name"] is None:
        raise UserError(
            f"{path} holds {facts['text']}, a custom module: pass it, as in gs.load(path, model=YourModule(...))"
        )
    return models.build(facts["name"], schema, **facts["params"])
