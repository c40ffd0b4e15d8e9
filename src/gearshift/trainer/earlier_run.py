"""What a run takes from an earlier run: its last checkpoint, and remarks about columns read differently."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gearshift.data.dataset import Dataset
from gearshift.data.schema import Schema
from gearshift.data.skew import differences, remarks
from gearshift.errors import UserError
from gearshift.parameters.checkpoint import Checkpoint, resolve
from gearshift.run import folder as run_folder
from gearshift.run.intact import naming_intact
from gearshift.training.learner import is_of_rows


def last_checkpoint(resume: Path) -> Path:
    """The checkpoint to continue from: the last one in a run's folder, or the named one."""
    if not (resume / run_folder.RUN).is_file():
        return resume
    last = resume / run_folder.CHECKPOINTS / run_folder.LAST
    if not last.exists():
        raise UserError(
            f"run {resume} saved no checkpoint before it ended; start it again with gearshift train CONFIG"
        )
    return last.resolve()


def open_checkpoint(resume: Path, *, rows_elsewhere: bool) -> Checkpoint:
    """That checkpoint; without its rows, if other processes hold them."""
    with naming_intact():
        return Checkpoint.open(
            last_checkpoint(resume), lambda file: not (rows_elsewhere and is_of_rows(file))
        )


def remarks_on(known: Schema, parts: Sequence[Dataset | None], init_from: str | Path | None) -> list[str]:
    """Remarks on columns that other data, or the run to start from, read differently from the training data."""
    datasets = [part for part in parts if part is not None]
    sentences = [sentence for part in datasets for sentence in remarks(part.examples, known.forms).values()]
    if init_from is not None:
        before = Schema.from_dict(Checkpoint.open(resolve(Path(init_from))).facts["schema"])
        sentences += differences(before.forms, known.forms, "the training data").values()
    return sentences
