"""The display of a run in a notebook: its status as a line and a row, its measurements as tables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gearshift.run import folder as run_folder
from gearshift.tables import number, to_arrow, to_pandas

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa

    from gearshift.run.status import Status


def history(folder: Path) -> list[dict[str, Any]]:
    """The measurements of a run, a row for each line of its metrics.jsonl."""
    return list(run_folder.metrics(folder))


class History:
    """The measurements of a run, for classes that have its folder."""

    folder: Path

    def history(self) -> list[dict[str, Any]]:
        """The measurements so far: a row every ten seconds, and one for each evaluation (`valid_auc`, ...)."""
        return history(self.folder)

    def to_arrow(self) -> pa.Table:
        """The rows of `history()` as an Arrow table."""
        return to_arrow(self.history())

    def to_pandas(self) -> pandas.DataFrame:
        """The rows of `history()` as a pandas DataFrame."""
        return to_pandas(self.history())


def status_row(status: Status, folder: Path) -> dict[str, Any]:
    """The progress of a run, as one row."""
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
