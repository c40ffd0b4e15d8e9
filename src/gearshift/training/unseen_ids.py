"""The share of evaluated examples whose id was never seen in training, field by field.

The row stores have a row for every trained id, so no extra state is kept. Only some of the batches are checked. Fields
whose ids hardly recur (request ids, addresses) are left out: their ids are new in any data. So are those with rules of
admission or expiry, which leave trained ids without a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from gearshift.data.batch import Batch, Floats, Ids
from gearshift.data.dataset import Dataset
from gearshift.data.examples import FilteredExamples
from gearshift.data.order import is_entity
from gearshift.data.schema import Categorical, Schema
from gearshift.embedding.lookup import FieldGroup
from gearshift.training.learner import Learner

BATCHES = 8  # batches to check, spread over the data
FEWEST_VALUES = 20
FEWEST_EACH = 1.5  # examples per value


class UnseenIds:
    """Samples the batches of an evaluation. `shares` has the share of unknown ids for each user or item field."""

    def __init__(self, learner: Learner, dataset: Dataset, batch: int) -> None:
        self.learner = learner
        self._stride = max(1, dataset.estimate() // batch // BATCHES)
        self._split_by = _split_column(
            dataset
        )  # the data was split by this column, so all its values are new
        self._unknown: dict[str, list[float]] = {}
        self._ids: dict[str, list[Ids]] = {}

    def watch(self, predicted: Iterable[tuple[Batch, Floats]]) -> Iterator[tuple[Batch, Floats]]:
        """Yields the batches unchanged and checks some of them."""
        for i, (batch, probabilities_BT) in enumerate(predicted):
            if i % self._stride == 0:
                self._check(batch)
            yield batch, probabilities_BT

    @property
    def shares(self) -> dict[str, float]:
        shares: dict[str, float] = {}
        for name, unknown in self._unknown.items():
            ids = np.concatenate(self._ids[name])
            distinct = len(np.unique(ids))
            if distinct >= FEWEST_VALUES and len(ids) >= FEWEST_EACH * distinct:
                shares[name] = sum(unknown) / len(ids)
        return shares

    def _check(self, batch: Batch) -> None:
        schema, learner = self.learner.schema, self.learner
        fields = schema.single_fields
        for group, store in zip(learner.worker.groups, learner.server.stores, strict=True):
            ruled = _with_rules(group, schema)
            for i in group.singles:
                name = fields[i].name
                eligible = isinstance(fields[i], Categorical) and name not in (self._split_by, *ruled)
                if eligible and (name == schema.group or is_entity(name)):
                    ids_U, counts_U = np.unique(batch.ids_BF[:, i], return_counts=True)
                    unknown = counts_U[~store.contains(ids_U)].sum()
                    self._unknown.setdefault(name, []).append(float(unknown))
                    self._ids.setdefault(name, []).append(batch.ids_BF[:, i])


def _with_rules(group: FieldGroup, schema: Schema) -> list[str]:
    """Features whose ids may have been seen and have no row: they were not admitted, or have expired."""
    tables = {rule.table for rule in group.rules if rule.is_gated or rule.expire is not None}
    return [name for table in tables for name in schema.users_of(table)]


def _split_column(dataset: Dataset) -> str | None:
    examples = dataset.examples
    return examples.choice.column if isinstance(examples, FilteredExamples) else None
