"""Measures a model on a data set, as a whole and by slice. Creates no row and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gearshift.data.batch import Batch, Floats
from gearshift.data.dataset import Dataset
from gearshift.metrics import CalibrationTable, Collected, Grouped, Measured, Measures
from gearshift.metrics.score_tables import Scores
from gearshift.training.learner import Learner
from gearshift.training.unseen_ids import UnseenIds

BATCH = 8192


@dataclass(frozen=True, repr=False)
class Evaluation(Scores):
    """The scores of a model on a data set; `tasks` has the metrics of every task, including the first."""

    measures: Measures
    tasks: tuple[Measures, ...]
    grouped_auc: float | None  # AUC of the first task; `grouped` has all tasks, with the number of groups
    mean_rate: float
    grouped: tuple[Grouped | None, ...] = ()
    names: tuple[str, ...] = ()  # of the tasks
    unseen: Mapping[str, float] = field(default_factory=dict)  # by user or item field: examples with a new id

    @property
    def calibration_table(self) -> CalibrationTable:
        """Predicted, observed and count for each tenth of the examples by prediction; `tasks[i]` has its own."""
        return self.measures.calibration_table

    def task_figures(self, task: int) -> dict[str, Any]:
        """All metrics of a task, as in report.json."""
        return figures_of(Measured(self.tasks[task], self.grouped[task] if self.grouped else None))


def figures_of(measured: Measured) -> dict[str, Any]:
    """Plain values for JSON, None where a metric is not defined."""
    grouped = measured.grouped
    return {
        **measured.measures.as_dict(),
        "grouped_auc": grouped.auc if grouped is not None and math.isfinite(grouped.auc) else None,
        "grouped_auc_groups": None if grouped is None else [grouped.counted, grouped.groups],
        "grouped_auc_one_in": None if grouped is None else grouped.one_in,
        "calibration_table": [row.as_dict() for row in measured.measures.calibration_table],
    }


def predictions(learner: Learner, dataset: Dataset) -> Iterator[tuple[Batch, Floats]]:
    """Batches with their probabilities [B, T], as the model was trained (no correction for `negatives_kept`)."""
    for batch in dataset.batches(BATCH):
        yield batch, learner.predict(learner.find(batch))


def collect(
    predicted: Iterable[tuple[Batch, Floats]], tasks: int, keys: Callable[[Batch], Any] | None = None
) -> list[Collected]:
    """The predictions of each task; `keys` gives the slice of each example of a batch."""
    by_task = [Collected() for _ in range(tasks)]
    for batch, probabilities_BT in predicted:
        slices = None if keys is None else keys(batch)
        for t, collected in enumerate(by_task):
            scores_B = probabilities_BT[:, t]
            collected.update(batch.labels_BT[:, t], scores_B, batch.weights_B, batch.groups_B, slices)
    return by_task


def evaluate(learner: Learner, dataset: Dataset) -> Evaluation:
    unseen = UnseenIds(learner, dataset, BATCH)
    predicted = unseen.watch(predictions(learner, dataset))
    results = [c.whole() for c in collect(predicted, len(dataset.schema.labels))]
    tasks = tuple(measured.measures for measured in results)
    grouped = tuple(measured.grouped for measured in results)
    first, names = grouped[0], tuple(label.task for label in dataset.schema.labels)
    auc = None if first is None else first.auc
    return Evaluation(tasks[0], tasks, auc, tasks[0].mean_label, grouped, names, unseen.shares)


def correct_for_sampling(probabilities: Floats, negatives_kept: float) -> Floats:
    """Probabilities for the full log, from a model trained on this share of its negatives (He et al. 2014, 6.3)."""
    if negatives_kept == 1.0:
        return probabilities
    kept = probabilities * np.float32(negatives_kept)
    return (kept / (kept + (1.0 - probabilities))).astype(np.float32)
