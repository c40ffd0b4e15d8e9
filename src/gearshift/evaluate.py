"""Measures a model on data: whole, by slice and by day. Creates no row and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gearshift.data.batch import Batch, Floats
from gearshift.data.dataset import Dataset
from gearshift.learner import Learner
from gearshift.metrics import Measures, grouped_auc

BATCH = 8192


@dataclass(frozen=True)
class Evaluation:
    """What a model scored on a data set; `tasks` has the measures of every task, the first among them."""

    measures: Measures
    tasks: tuple[Measures, ...]
    grouped_auc: float | None
    mean_rate: float


def predictions(learner: Learner, dataset: Dataset) -> Iterator[tuple[Batch, Floats]]:
    """Batches with their probabilities [B, T], as the model was trained (no correction for `negatives_kept`)."""
    for batch in dataset.batches(BATCH):
        yield batch, learner.predict(learner.find(batch))


def evaluate(learner: Learner, dataset: Dataset) -> Evaluation:
    tasks = tuple(Measures() for _ in dataset.schema.labels)
    groups, labels, scores = [], [], []
    for batch, probabilities_BT in predictions(learner, dataset):
        for t, measures in enumerate(tasks):
            measures.update(batch.labels_BT[:, t], probabilities_BT[:, t], batch.weights_B)
        if batch.groups_B is not None:
            groups.append(batch.groups_B)
            labels.append(batch.labels_BT[:, 0])
            scores.append(probabilities_BT[:, 0])
    grouped = None
    if groups:
        grouped = grouped_auc(np.concatenate(labels), np.concatenate(scores), np.concatenate(groups))
    return Evaluation(tasks[0], tasks, grouped, tasks[0].mean_label)


def correct_for_sampling(probabilities: Floats, negatives_kept: float) -> Floats:
    """For the full log, from a model of one that kept this share of the negatives (He et al. 2014, section 6.3)."""
    if negatives_kept == 1.0:
        return probabilities
    kept = probabilities * np.float32(negatives_kept)
    return (kept / (kept + (1.0 - probabilities))).astype(np.float32)
