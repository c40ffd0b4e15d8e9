"""Detects a log that is grouped by user, by item or by label instead of ordered by time.

The end of such a file has other users than its beginning, so a validation set from `split: {by: end}` is not
representative. A log in time order may look similar over short ranges, because a session keeps a user's examples
together. But there users come back, whereas in a grouped log each value has a single run of examples.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gearshift import _core
from gearshift.data import columns as raw
from gearshift.data.batch import Batch
from gearshift.data.examples import FilteredExamples
from gearshift.data.infer.profile import Profile, plain_name
from gearshift.data.schema import Categorical, Schema

if TYPE_CHECKING:
    from gearshift.data.dataset import Dataset

SAMPLE_EXAMPLES = 50_000
FEWEST_VALUES = 20  # for a column whose name suggests a user or an item
FEWEST_UNNAMED = 100  # for any other column: a few ascending values may be hours or days
FEWEST_EACH = 2.0  # examples per value: values that occur once prove nothing
MOST_RUNS = 1.02  # runs of equal adjacent values, per distinct value: 1 if each value is in one place
ONE_LABEL_AFTER_THE_OTHER = 0.02  # of the changes expected if labels were in random order
ENTITY_NAME = re.compile(
    r"(^|_)(user|uid|customer|visitor|member|account|client|device|person|reader|item|product|movie|song|article|"
    r"book|video|ad|advertiser|campaign|shop|store|app|sku|asin)s?(_?(id|ids|key|code|hash|nr|no|number|name))?$"
)
TIME_OR_VISIT = re.compile(
    r"session|request|impression|visit|query|search|transaction|event|batch|time|date|day|week|month|year|hour|minute"
)


@dataclass(frozen=True)
class ColumnGrouping:
    """A column whose equal values are adjacent."""

    column: str
    is_label: bool = False

    @property
    def words(self) -> str:
        if self.is_label:
            return f"examples are sorted by the label {self.column}"
        return f"examples are grouped by {self.column}"


def find_grouping(profiles: list[Profile], schema: Schema) -> ColumnGrouping | None:
    """The grouping of the examples in a sample; for `init`, which has the raw values."""
    by_name = {profile.name: profile for profile in profiles}
    times = None if schema.time is None else by_name[schema.time].times
    if times is not None and is_ascending(times):
        return None
    for label in schema.labels:
        clicks = raw.labels(
            by_name[label.column].column, label.positive, lambda _i, _text: None, label.missing
        )
        if label_is_sorted(clicks):
            return ColumnGrouping(label.column, is_label=True)
    features = {f.name for f in schema.features if isinstance(f, Categorical)}
    names = [p.name for p in profiles if p.name in features or is_entity(p.name)]
    for name in sorted(names, key=lambda name: (name != schema.group, not is_entity(name))):
        profile = by_name[name]
        if profile.distinct < FEWEST_VALUES or profile.is_list or TIME_OR_VISIT.search(plain_name(name)):
            continue
        ids = np.empty(profile.examples, np.int64)
        raw.write_ids(profile.column, 0, ids)
        known = is_entity(name) or name == schema.group
        if stands_together(_known(ids, 0)) and (known or _is_sorted(profile)):
            return ColumnGrouping(name)
    return None


def grouping_of_end(train: Dataset, valid: Dataset | None) -> ColumnGrouping | None:
    """The same for a run that validates on the end of its files; None if the end holds the latest examples in time."""
    if (
        valid is None
        or not isinstance(valid.examples, FilteredExamples)
        or not valid.examples.choice.by_place
    ):
        return None
    batch = _first_examples(train)
    if batch is None or (batch.times_B is not None and is_ascending(batch.times_B)):
        return None
    schema = train.schema
    for task, label in enumerate(schema.labels):
        if label_is_sorted(batch.labels_BT[:, task]):
            return ColumnGrouping(label.column, is_label=True)
    group, groups_B = schema.group, batch.groups_B
    if group and groups_B is not None and stands_together(_known(groups_B, _core.table_seed(group))):
        return ColumnGrouping(group)
    for i, field in enumerate(schema.single_fields):
        seed = _core.table_seed(schema.table(field))
        if is_entity(field.name) and stands_together(_known(batch.ids_BF[:, i], seed)):
            return ColumnGrouping(field.name)
    return None


def is_entity(column: str) -> bool:
    """Whether the name suggests a user or an item."""
    return ENTITY_NAME.search(plain_name(column)) is not None


def stands_together(ids: NDArray[np.int64]) -> bool:
    """Whether each value occurs in a single run of examples."""
    distinct = len(np.unique(ids))
    if distinct < FEWEST_VALUES or len(ids) < FEWEST_EACH * distinct:
        return False
    return bool(1 + np.count_nonzero(np.diff(ids)) <= MOST_RUNS * distinct)


def _known(ids: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """The ids of values that are not missing. Missing values may be anywhere."""
    known: NDArray[np.int64] = ids[ids != _core.xxh64(b"", seed) >> 1]
    return known


def label_is_sorted(labels: NDArray[np.float32]) -> bool:
    """Whether all examples of one label come first, then all of the other, with few exceptions."""
    rate = float(labels.mean()) if len(labels) else 0.0
    expected = 2 * len(labels) * rate * (1 - rate)
    return expected > 100 and bool(np.count_nonzero(np.diff(labels)) < ONE_LABEL_AFTER_THE_OTHER * expected)


def is_ascending(times: NDArray[np.int64]) -> bool:
    return len(times) > 1 and bool((np.diff(times) >= 0).mean() > 0.99)


def _is_sorted(profile: Profile) -> bool:
    """A column that is sorted, although its name does not suggest it."""
    if profile.distinct < FEWEST_UNNAMED:
        return False
    if profile.numbers is not None:
        numbers = raw.floats(profile.column, lambda _i, _text: None)
        steps = np.diff(numbers[np.isfinite(numbers)])
        return bool((steps >= 0).all() or (steps <= 0).all())
    texts = [text for text in profile.texts() if text]
    return texts in (sorted(texts), sorted(texts, reverse=True))


def _first_examples(dataset: Dataset) -> Batch | None:
    blocks: list[Batch] = []
    with closing(dataset.batches(8192)) as batches:
        for batch in batches:
            blocks.append(batch)
            if sum(map(len, blocks)) >= SAMPLE_EXAMPLES:
                break
    return Batch.concat(blocks) if blocks else None
