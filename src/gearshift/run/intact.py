"""Which checkpoint of a run to resume from if one is damaged: the newest whose checksums are all correct.

Checkpoints share row files, so each file is read once, and a damaged one spoils all checkpoints that have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gearshift.embedding import row_files
from gearshift.errors import UserError
from gearshift.parameters.checkpoint import Checkpoint, DamagedCheckpoint
from gearshift.run import interrupts

Known = dict[tuple[int, int], bool]  # by device and inode: whether a row file is intact


@contextmanager
def naming_intact(origin: Path | None = None) -> Iterator[None]:
    """The error of a damaged checkpoint says which one of its run to resume from.

    `origin` is the checkpoint of another run from which this one has branched off.
    """
    try:
        yield
    except DamagedCheckpoint as error:
        branched = origin is not None and origin.name == error.path.name
        damaged = origin if origin is not None and branched else error.path
        raise UserError(f"checkpoint {damaged}: {error.what}. {_advice(damaged)}") from None


def _advice(damaged: Path) -> str:
    run, intact = damaged.parent.parent, newest_intact(damaged)
    if intact is None:
        return f"No other checkpoint of run {run} is intact"
    return f"The newest intact one is {intact.name}: {interrupts.resume_hint(run, intact.name)}"


def newest_intact(damaged: Path) -> Path | None:
    """The newest of the other checkpoints in its folder that has no damage. Reads their files."""
    others = [path for path in damaged.parent.glob("step-*") if path.name != damaged.name]
    others.sort(key=lambda path: int(path.name.removeprefix("step-")), reverse=True)
    known: Known = {}
    return next((path for path in others if _is_intact(path, known)), None)


def _is_intact(path: Path, known: Known) -> bool:
    try:
        saved = Checkpoint.open(path)
        return all(
            _rows_are_intact(path / name, known) for name in saved.files if name.endswith(row_files.SUFFIX)
        )
    except (UserError, OSError):
        return False


def _rows_are_intact(file: Path, known: Known) -> bool:
    status = file.stat()
    inode = status.st_dev, status.st_ino
    if inode not in known:
        known[inode] = False
        row_files.verify(file)
        known[inode] = True
    return known[inode]
