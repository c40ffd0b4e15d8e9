"""The cold tier of a store: rows that do not fit in memory are in files on disk.

The C++ table does the work (csrc/row_tier.cpp, csrc/cold_tier.h). Results have the same bits with any budget. The files
are the working state of one process: checkpoints hold all rows, and the next process that uses the folder removes the
files of one that died.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from gearshift.errors import UserError
from gearshift.settings.declaration import setting
from gearshift.settings.units import Folder

MINIMUM_BYTES = 1 << 20
PREFIX, LOCK = "rows-", "lock"
ROWS_FOLDER = ".rows"  # below the folder of the runs


@dataclass(frozen=True)
class ColdTier:
    """Rows beyond `budget` bytes of memory go to files below `folder`."""

    folder: Path
    budget: int
    hot_rows: int = 0  # rows in memory, instead of what fits in the budget (for tests)

    def share(self, part: float) -> ColdTier:
        """The tier of one of several stores, with its part of the budget."""
        return replace(self, budget=int(self.budget * part))


@dataclass(frozen=True)
class StorageSettings:
    """Rows that do not fit in `memory`."""

    path: Folder | None = setting(
        None,
        "The folder for their files, on a local disk; a folder below `checkpoint.path` if not set.",
    )

    def tier(self, memory: int, runs: str | Path) -> ColdTier:
        """The cold tier of a run's rows; `runs` is the folder of the runs."""
        return ColdTier(Path(self.path or Path(runs) / ROWS_FOLDER), memory)


def check_budget(tier: ColdTier) -> None:
    if tier.budget < MINIMUM_BYTES and not tier.hot_rows:
        raise UserError(
            f"memory is too small: each row store needs at least {MINIMUM_BYTES >> 20} MiB, "
            f"but its share is {tier.budget / 2**20:.1f} MiB"
        )


class TierFolder:
    """A new folder for the files of one store. A lock on it shows that its process lives."""

    def __init__(self, below: Path) -> None:
        try:
            below.mkdir(parents=True, exist_ok=True)
            remove_abandoned(below)
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=below))
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UserError(
                f"storage.path: rows cannot be written below {below}: {error.strerror}. Choose another folder"
            ) from None
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(below: Path) -> None:
    """Removes the files of processes that were killed."""
    for lock_file in below.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):
            lock = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
                shutil.rmtree(lock_file.parent, ignore_errors=True)
            finally:
                os.close(lock)
