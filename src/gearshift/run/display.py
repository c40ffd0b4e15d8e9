"""How runs and their figures look in a notebook, and how they become tables for pandas and Arrow.

Rows are dicts of plain values, the same for HTML, Arrow and pandas. pandas is not needed unless somebody asks for it.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gearshift.data.readers.python_objects import from_records
from gearshift.errors import UserError
from gearshift.html_table import Rows, number
from gearshift.run import folder as run_folder

if TYPE_CHECKING:
    import pandas

    from gearshift.run.control import Status


def to_arrow(rows: Rows) -> pa.Table:
    return from_records(rows)


def to_pandas(rows: Rows) -> pandas.DataFrame:
    if find_spec("pandas") is None:
        raise UserError("to_pandas() needs pandas: pip install pandas; to_arrow() gives the same without it")
    frame: pandas.DataFrame = from_records(rows).to_pandas()
    return frame


def history(folder: Path) -> list[dict[str, Any]]:
    """What a run measured, a row for each line of its metrics.jsonl."""
    return list(run_folder.metrics(folder))


class History:
    """The measurements of a run, for whatever knows its folder."""

    folder: Path

    def history(self) -> list[dict[str, Any]]:
        """What the run measured so far: a row every ten seconds, and one for each evaluation (`valid_auc`, ...)."""
        return history(self.folder)

    def to_arrow(self) -> pa.Table:
        """The rows of `history()` as an Arrow table."""
        return to_arrow(self.history())

    def to_pandas(self) -> pandas.DataFrame:
        """The rows of `history()` as a pandas DataFrame."""
        return to_pandas(self.history())


def status_row(status: Status, folder: Path) -> dict[str, Any]:
    """Where a run stands, as one row."""
    return {
        "run": str(folder),
        "state": status.phase,
        "step": status.step,
        "examples": status.examples,
        "done": f"{100 * min(1.0, status.examples / max(1, status.total)):.0f} %",
        "examples/s": status.examples_per_second,
        "loss": status.loss,
        "AUC so far": status.auc_so_far,
    }


def status_text(kind: str, status: Status, folder: Path) -> str:
    """Run(runs/clicks-1115-2004: training, step 812, 41 %, AUC so far 0.7698)"""
    row = status_row(status, folder)
    auc = "" if math.isnan(status.auc_so_far) else f", AUC so far {number(status.auc_so_far)}"
    return f"{kind}({row['run']}: {row['state']}, step {status.step:,}, {row['done']}{auc})"
