"""Errors of rows on disk: one sentence that names the file and says what to do. The step that failed is in no
checkpoint, so the run is resumed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gearshift._core import RowFileError
from gearshift.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT)
ANOTHER_FOLDER = "storage.path=/other/folder"


class LostRows(UserError):
    """Rows on disk cannot be read or written, and trying again would not help."""


@contextmanager
def naming_disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _failed(error) from error
    except RowFileError as error:
        raise _damaged(error) from error


def _failed(error: OSError) -> LostRows:
    return LostRows(f"rows on disk: {error.filename}: {error.strerror}. {_advice(error.errno)}")


def _advice(number: int | None) -> str:
    if number in FULL:
        return f"Resume the run from its last checkpoint with more room, or with {ANOTHER_FOLDER}"
    if number == errno.ENOENT:
        return (
            "It was deleted during the run. Resume the run from its last checkpoint, which does not need it"
        )
    return (
        "Resume the run from its last checkpoint, with another storage.path if this disk fails. If the file is "
        "damaged, so are checkpoints that share it: resume from an older one"
    )


def _damaged(error: RowFileError) -> LostRows:
    return LostRows(
        f"rows on disk: {error}. Checkpoints that share this file are damaged too. Resume the run: gearshift train "
        "--resume RUN; if its last checkpoint is damaged, the message names the newest one that is not"
    )


@contextmanager
def naming_lost_files(checkpoint: Path) -> Iterator[None]:
    """While rows are written to the folder `checkpoint`: a file that is missing elsewhere will not come back.

    Other errors of the system stay as they are, because the save is tried again.
    """
    try:
        yield
    except FileNotFoundError as error:
        if error.filename is None or Path(error.filename).parent == checkpoint:
            raise
        raise _failed(error) from error
    except RowFileError as error:
        raise _damaged(error) from error


@contextmanager
def naming_full_storage(folder: Path) -> Iterator[None]:
    """While a checkpoint's files are copied into the tier: the error of a failed copy names the source first."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UserError(
            f"storage.path: no space is left on {folder} for the rows of the checkpoint. Make room, or set another "
            f"folder: {ANOTHER_FOLDER}"
        ) from error
