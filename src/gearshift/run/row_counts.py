"""The rows of a checkpoint, counted by table, by occurrences and by age.

A row knows the number of its table within its store, and the schema knows which features use the table. The files are
read once, one block after another, so the memory needed does not grow with the number of rows. Nothing is written, and
no model is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gearshift.data.schema import Schema
from gearshift.embedding.lookup import FieldGroup, field_groups
from gearshift.embedding.store import MOST_TABLES, RowBlock
from gearshift.errors import UserError
from gearshift.parameters import checkpoint
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.run import catalog
from gearshift.training.learner import is_of_rows

OCCURRENCES = (0, 1, 2, 4, 8, 16, 64, 256, 1024)  # the most of each class; the last class has no limit
AGES = (10, 100, 1_000, 10_000, 100_000)  # steps since the row was trained
MIN_COUNTS = (2, 3, 5)  # each is one more than the most of a class of occurrences
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class RowClass:
    """The rows with `least` to `most` occurrences, or steps since they were trained. `most` is None without a limit."""

    least: int
    most: int | None
    rows: int


@dataclass(frozen=True)
class TableRows:
    """The rows of one table: of one feature, or of several features that share an embedding.

    A class of rows has `least`, `most` (None: no limit) and `rows`. Occurrences are counted from the
    creation of the row: with `min_count`, earlier ones are not included.
    """

    table: str  # empty: rows of older versions, which do not know their table
    features: tuple[str, ...]
    by_occurrences: tuple[RowClass, ...]
    by_age: tuple[RowClass, ...]  # by the number of steps since the row was trained
    untrained: int  # rows that no step of this run has changed; they are in no class of `by_age`
    gated: bool  # the feature has `min_count` or `admit`

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(one.rows for one in self.by_occurrences)

    @property
    def seen_once(self) -> float:
        """The share of rows whose id occurred once."""
        return self._share(sum(one.rows for one in self.by_occurrences if one.least == one.most == 1))

    def saved_by(self, min_count: int) -> float | None:
        """The share of rows that the table would not have with this `min_count`, which is 2, 3, 5, 9, 17 or 65.

        None if the feature has `min_count` or `admit` already: earlier occurrences were not counted.
        """
        if min_count - 1 not in OCCURRENCES:
            raise ValueError(
                f"min_count={min_count} is not one of those that can be told: 2, 3, 5, 9, 17 or 65"
            )
        fewer = [one.rows for one in self.by_occurrences if one.most is not None and one.most < min_count]
        return None if self.gated else self._share(sum(fewer))

    def _share(self, rows: int) -> float:
        return rows / self.rows if self.rows else 0.0


@dataclass(frozen=True)
class RowCounts:
    """The rows of a checkpoint, table by table; those of a baseline are not included."""

    checkpoint: Path
    step: int
    tables: tuple[TableRows, ...]  # the largest first

    @property
    def rows(self) -> int:
        """The number of rows of all tables."""
        return sum(table.rows for table in self.tables)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "checkpoint": str(self.checkpoint),
            "step": self.step,
            "rows": self.rows,
            "tables": [_table_as_dict(table) for table in self.tables],
        }


def _table_as_dict(table: TableRows) -> dict[str, Any]:
    return {
        "table": table.table,
        "features": list(table.features),
        "rows": table.rows,
        "seen_once": table.seen_once,
        "saved_by_min_count": {str(count): table.saved_by(count) for count in MIN_COUNTS},
        "by_occurrences": [vars(one) for one in table.by_occurrences],
        "by_age": [vars(one) for one in table.by_age],
        "untrained": table.untrained,
    }


def count_rows(source: str | Path) -> RowCounts:
    """Counts the embedding rows of a run (its last checkpoint), of a checkpoint (`RUN@step-600`) or a saved model.

    All of its row files are read once; a run may go on training meanwhile.
    """
    saved = Checkpoint.open(_checkpoint_of(source), is_of_rows)
    schema: Schema = Schema.from_dict(saved.facts["schema"])
    step = int(saved.facts["step"])
    tables = [
        table
        for store, group in enumerate(_groups(saved.facts, schema))
        for table in _tables_of(saved.rows(f"rows{store}"), group, schema, step)
    ]
    return RowCounts(saved.path, step, tuple(sorted(tables, key=lambda table: -table.rows)))


def _checkpoint_of(source: str | Path) -> Path:
    path = Path(source)
    folder = path if (path / checkpoint.MANIFEST).is_file() else catalog.find_model(source)
    if (folder / checkpoint.MANIFEST).is_file():
        return folder.resolve()
    last = folder / "checkpoints" / "last"
    if not (last / checkpoint.MANIFEST).is_file():
        raise UserError(f"run {folder} has no checkpoint yet")
    return last.resolve()


def _groups(facts: dict[str, Any], schema: Schema) -> tuple[FieldGroup, ...]:
    """The tables of each store. The first store has the rows whose features leave their width to the model."""
    first = dict(facts["parts"][0]) if facts["parts"] else {}
    dim = first.get("embedding") or facts["model"]["params"].get("dim", 16)
    groups = field_groups(schema, int(dim))
    assert len(groups) == len(facts["parts"]), "a store for each width"
    return groups


def _tables_of(
    blocks: Iterator[RowBlock], group: FieldGroup, schema: Schema, step: int
) -> Iterator[TableRows]:
    known = group.tables[:MOST_TABLES]
    occurrences_TC, ages_TC = _counted(blocks, len(known), step)
    for number, table in enumerate(("", *known)):
        if occurrences_TC[number].any():
            *ages, untrained = ages_TC[number].tolist()
            yield TableRows(
                table,
                tuple(schema.users_of(table)),
                _classes(OCCURRENCES, occurrences_TC[number].tolist()),
                _classes(AGES, ages),
                untrained,
                any(rule.table == table and rule.is_gated for rule in group.rules),
            )


def _counted(blocks: Iterator[RowBlock], tables: int, step: int) -> tuple[Counts, Counts]:
    """Rows by table (0: unknown) and class; the last class of age is for rows that were not trained."""
    occurrences_TC = np.zeros((tables + 1, len(OCCURRENCES) + 1), np.int64)
    ages_TC = np.zeros((tables + 1, len(AGES) + 2), np.int64)
    for block in blocks:
        tables_U = np.where(block.tables_U <= tables, block.tables_U, 0)
        if tables == 1:
            tables_U[:] = 1  # also rows of older versions
        age_U = step - block.last_step_U.astype(np.int64)
        class_U = np.where(block.last_step_U == 0, len(AGES) + 1, np.searchsorted(AGES, age_U))
        _add(occurrences_TC, tables_U, np.searchsorted(OCCURRENCES, block.touches_U))
        _add(ages_TC, tables_U, class_U)
    return occurrences_TC, ages_TC


def _add(counts_TC: Counts, tables_U: NDArray[Any], classes_U: NDArray[Any]) -> None:
    at = tables_U.astype(np.int64) * counts_TC.shape[1] + classes_U
    counts_TC += np.bincount(at, minlength=counts_TC.size).reshape(counts_TC.shape)


def _classes(most: Sequence[int], rows: Sequence[int]) -> tuple[RowClass, ...]:
    least = (0, *(limit + 1 for limit in most))
    return tuple(map(RowClass, least, (*most, None), rows))
