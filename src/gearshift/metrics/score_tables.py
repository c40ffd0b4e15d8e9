"""The presentation of an evaluation's metrics: by name, as text, HTML and tables. `Evaluation` holds the measures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gearshift.metrics import Grouped, Measures
from gearshift.metrics.measures import SHOWN
from gearshift.tables import html_table, number, to_arrow, to_pandas

if TYPE_CHECKING:
    import pandas


class Scores:
    """The metrics of the first task by name, and of all tasks as rows."""

    measures: Measures
    tasks: tuple[Measures, ...]
    grouped_auc: float | None
    grouped: tuple[Grouped | None, ...]
    names: tuple[str, ...]

    @property
    def auc(self) -> float:
        """Area under the ROC curve."""
        return self.measures.auc

    @property
    def logloss(self) -> float:
        """Mean log loss (binary cross-entropy)."""
        return self.measures.logloss

    @property
    def normalized_entropy(self) -> float:
        """Log loss divided by that of always predicting the mean rate. Below 1 is better than this constant."""
        return self.measures.normalized_entropy

    @property
    def calibration(self) -> float:
        """Mean prediction divided by mean label. 1 is correct on average."""
        return self.measures.calibration

    @property
    def examples(self) -> int:
        """The number of examples measured."""
        return self.measures.examples

    def as_dict(self) -> dict[str, Any]:
        """The metrics of the first task by name; None if undefined."""
        return {**self.measures.as_dict(), "grouped_auc": self.grouped_auc}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each task."""
        names = self.names or tuple(str(number) for number in range(len(self.tasks)))
        groups = self.grouped or (None,) * len(self.tasks)
        return [
            {"task": name, **measures.as_dict(), "grouped_auc": None if grouped is None else grouped.auc}
            for name, measures, grouped in zip(names, self.tasks, groups, strict=True)
        ]

    def to_arrow(self) -> pa.Table:
        """The metrics as an Arrow table, a row for each task."""
        return to_arrow(self.rows())

    def to_pandas(self) -> pandas.DataFrame:
        """The metrics as a pandas DataFrame, a row for each task."""
        return to_pandas(self.rows())

    def __repr__(self) -> str:
        figures = {shown.name: getattr(self.measures, shown.name) for shown in SHOWN}
        figures["examples"] = self.examples
        text = ", ".join(f"{name}={number(value)}" for name, value in figures.items())
        return f"Evaluation({text}{f', tasks={list(self.names)}' if len(self.tasks) > 1 else ''})"

    def _repr_html_(self) -> str:
        return html_table(self.rows())
