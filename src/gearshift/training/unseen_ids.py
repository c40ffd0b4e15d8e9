"""How many of the evaluated examples carry an id that training never saw, field by field.

Asks the row stores, which have a row for every id that was trained, so nothing is kept or read for it. A share of the
batches is looked at. Ids that hardly recur (of requests, of addresses) are new in any data and do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from gearshift.data.batch import Batch, Floats, Ids
from gearshift.data.dataset import Dataset
from gearshift.data.examples import FilteredExamples
from gearshift.data.order import is_entity
from gearshift.data.schema import Categorical
from gearshift.training.learner import Learner

BATCHES = 8  # looked at, spread over the data
FEWEST_VALUES = 20
FEWEST_EACH = 1.5  # examples per value


class UnseenIds:
    """Watches batches go by. `shares` then has, for each user or item field, the share with an unknown id."""

    def __init__(self, learner: Learner, dataset: Dataset, batch: int) -> None:
        self.learner = learner
        self._stride = max(1, dataset.estimate() // batch // BATCHES)
        self._split_by = _split_column(dataset)  # its values are new on purpose
        self._unknown: dict[str, list[float]] = {}
        self._ids: dict[str, list[Ids]] = {}

    def watch(self, predicted: Iterable[tuple[Batch, Floats]]) -> Iterator[tuple[Batch, Floats]]:
        """The same batches; some of them are looked at."""
        for i, (batch, probabilities_BT) in enumerate(predicted):
            if i % self._stride == 0:
                self._look_at(batch)
            yield batch, probabilities_BT

    @property
    def shares(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, unknown in self._unknown.items():
            ids = np.concatenate(self._ids[name])
            distinct = len(np.unique(ids))
            if distinct >= FEWEST_VALUES and len(ids) >= FEWEST_EACH * distinct:
                found[name] = sum(unknown) / len(ids)
        return found

    def _look_at(self, batch: Batch) -> None:
        schema, learner = self.learner.schema, self.learner
        fields = schema.single_fields
        for group, store in zip(learner.worker.groups, learner.server.stores, strict=True):
            for i in group.singles:
                name = fields[i].name
                asked = isinstance(fields[i], Categorical) and name != self._split_by
                if asked and (name == schema.group or is_entity(name)):
                    ids_U, counts_U = np.unique(batch.ids_BF[:, i], return_counts=True)
                    unknown = counts_U[~store.contains(ids_U)].sum()
                    self._unknown.setdefault(name, []).append(float(unknown))
                    self._ids.setdefault(name, []).append(batch.ids_BF[:, i])


def _split_column(dataset: Dataset) -> str | None:
    examples = dataset.examples
    return examples.choice.column if isinstance(examples, FilteredExamples) else None
