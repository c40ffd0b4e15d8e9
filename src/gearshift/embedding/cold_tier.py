"""The cold tier of a store: rows that do not fit in memory are in files on disk.

The C++ table does the work (csrc/row_tier.cpp, csrc/cold_tier.h). Results have the same bits with any budget. The files
are the working state of one process: checkpoints hold all rows, and the next process that uses the folder removes the
files of one that died.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from gearshift.embedding.file_systems import Medium, file_system_of, medium_of
from gearshift.embedding.machine_memory import budget_bytes, machine_memory
from gearshift.errors import UserError, warn
from gearshift.settings.declaration import setting
from gearshift.settings.units import INTEGER, STRING, Folder, Memory, Unit, either, parse_count

PARTITIONS, SLAB_BYTES, SLAB_ROWS = 256, 4 << 10, 16  # as in C++: a partition has at least one slab
LITTLE_MEMORY = 256 << 20
QUEUE_SHARE, MOST_QUEUED = 8, 512 << 20
BUFFER_SHARE, MOST_BUFFER_BYTES = 8, 256 << 20  # for rows that are about to be written; csrc/row_tier.cpp
INDEX_BYTES_PER_STORED_ROW, MOST_SPACE = 1.7, 2  # of rows on disk; stored rows per live row
BLOCK_BYTES, BLOCK_HEAD, ROW_HEAD = 4096, 16, 20  # of a row file; a row's head is its id and counts
PREFIX, NEW, LOCK = "rows-", "new-", "lock"
ABANDONED_SECONDS = 600.0
ROWS_FOLDER = ".rows"  # below the folder of the runs
LOCAL = Path("/var/tmp")  # on disk by convention, whereas /tmp may be in memory


@dataclass(frozen=True)
class LookAhead:
    """What is known about the batches that will be trained next: whole chunks of them, or the next few."""

    chunk_examples: int | None = None  # None: as many as `chunk_bytes` and the memory for their rows allow
    chunk_bytes: int = 0  # of the batches of one chunk, of which two are in memory; 0: there are no chunks

    @property
    def in_chunks(self) -> bool:
        return self.chunk_examples is not None or self.chunk_bytes > 0


@dataclass(frozen=True)
class ColdTier:
    """Rows beyond `budget` bytes of memory go to files below `folder`.

    `lookahead` says how rows are brought into memory before they are needed; None: not at all.
    """

    folder: Path
    budget: int
    hot_rows: int = 0  # rows in memory, instead of what fits in the budget (for tests)
    part: float = 1.0  # of the memory that the user set
    lookahead: LookAhead | None = LookAhead()
    is_share: bool = False  # the user set a share of the machine's memory
    notice: str = ""  # for the user, when the tier is opened

    def share(self, part: float) -> ColdTier:
        """The tier of one of several stores, with its part of the budget."""
        return replace(self, budget=int(self.budget * part), part=self.part * part)


def parse_lookahead(value: Any) -> str | int:
    if value is False or value in ("auto", "off"):
        return value or "off"
    try:
        return parse_count(value)
    except ValueError:
        raise ValueError("expected auto, off or a number of examples, such as 500k") from None


ReadAhead = Annotated[
    Literal["auto", "off"] | int, Unit(parse_lookahead, either({"enum": ["auto", "off"]}, INTEGER, STRING))
]


@dataclass(frozen=True)
class StorageSettings:
    """Rows that do not fit in `memory`."""

    path: Folder | None = setting(
        None,
        "The folder for their files, on a local disk; on Ray, on the machine of each shard. If not set, a folder below "
        "`checkpoint.path`, or below /var/tmp if that is not on a local disk.",
    )

    lookahead: ReadAhead = setting(
        "auto",
        "Rows on disk are brought into memory before they are needed: for chunks of this many examples, as many as "
        "the memory allows (auto), or not at all (off).",
    )

    def __post_init__(self) -> None:
        if isinstance(self.lookahead, int) and self.lookahead < 1:
            raise UserError(f"storage.lookahead={self.lookahead}: write auto, off or at least 1 example")

    def tier(self, memory: Memory, runs: str | Path) -> ColdTier:
        """The cold tier of a run's rows on this machine; `runs` is the folder of the runs."""
        folder, notice = (Path(self.path), "") if self.path is not None else default_folder(runs)
        budget = budget_bytes(memory)
        queued = queue_bytes(budget) if self.lookahead == "auto" else 0
        ahead = {"auto": LookAhead(None, queued // 2), "off": None}
        return ColdTier(
            folder,
            budget - queued,
            part=(budget - queued) / budget if budget else 1.0,
            lookahead=LookAhead(self.lookahead) if isinstance(self.lookahead, int) else ahead[self.lookahead],
            is_share=isinstance(memory, float),
            notice=notice,
        )


def queue_bytes(memory: int) -> int:
    """The part of `memory` for the batches of two chunks. With little memory, chunks would be too short."""
    return min(memory // QUEUE_SHARE, MOST_QUEUED) if memory >= LITTLE_MEMORY else 0


def default_folder(runs: str | Path) -> tuple[Path, str]:
    """Below the folder of the runs, unless that is shared over the network, or in memory; and what to tell the user."""
    below, elsewhere = Path(runs) / ROWS_FOLDER, machine_folder()
    medium = medium_of(below)
    if medium is Medium.LOCAL:
        return below, ""
    return elsewhere, (
        f"rows that do not fit in memory go to {elsewhere}: {runs} is on {medium.value}. "
        "Set storage.path to use another local disk"
    )


def machine_folder() -> Path:
    """A folder of this user that does not depend on any run."""
    return LOCAL / f"gearshift-rows-{os.getuid()}"


def minimum_bytes(floats: int) -> int:
    """The minimum budget of a store with this many floats per row, including optimizer state."""
    return 2 * PARTITIONS * max(SLAB_BYTES, SLAB_ROWS * (16 + 4 * floats))


def hot_bytes_per_row(floats: int) -> float:
    """Memory of a row with this many floats: record, index, and a ninth for rows that arrive before others leave."""
    return (4 * floats + 12 + 36) * 9 / 8


def disk_bytes_per_row(floats: int) -> float:
    row = 4 * floats + ROW_HEAD
    blocks = -(-(row + BLOCK_HEAD) // BLOCK_BYTES)
    return blocks * BLOCK_BYTES / max(1, (blocks * BLOCK_BYTES - BLOCK_HEAD) // row)


def check_budget(tier: ColdTier, floats: int, beside: int = 0) -> None:
    """`beside`: memory that the store needs besides its rows, of which an eighth of the budget cannot be used."""
    least = minimum_bytes(floats) + beside * 8 // 7
    if tier.budget < least and not tier.hot_rows:
        asked, needed = f"{tier.budget / tier.part / 2**20:.3g}MiB", math.ceil(least / tier.part / 2**20)
        if tier.is_share:
            whole = machine_memory()
            asked = f"{100 * tier.budget / tier.part / whole:.3g}% ({asked} here)"
        raise UserError(
            f"memory={asked} is too small for the rows of this model: set at least memory={needed}MiB"
        )


class TierFolder:
    """A new folder for the files of one store. A lock on it shows that its process is alive."""

    def __init__(self, below: Path) -> None:
        try:
            below.mkdir(0o700 if below == machine_folder() else 0o777, parents=True, exist_ok=True)
            _refuse_folder_of_another(below)
            remove_abandoned(below)
            self.path, self._lock = _locked_folder(below)
        except OSError as error:
            raise UserError(
                f"storage.path: rows cannot be written below {below}: {error.strerror}. Choose another folder: "
                "storage.path=/other/folder"
            ) from None
        self._process = os.getpid()
        if (medium := medium_of(below)) is not Medium.LOCAL:
            effect = (
                "`memory` does not limit"
                if medium is Medium.MEMORY
                else "is slow and may become unavailable at any time"
            )
            warn(
                f"storage.path: {below} is on {medium.value} ({file_system_of(below)}), which {effect}. Use a local SSD"
            )

    def close(self) -> None:
        if os.getpid() == self._process:  # a forked child leaves its parent's files alone
            remove(self.path)
        os.close(self._lock)


def _locked_folder(below: Path) -> tuple[Path, int]:
    """Creates a folder under a name that tells `remove_abandoned` that it is not ready yet, and locks it."""
    temporary = Path(tempfile.mkdtemp(prefix=NEW, dir=below))
    lock = os.open(temporary / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    os.write(lock, socket.gethostname().encode())
    fcntl.flock(lock, fcntl.LOCK_EX)
    return temporary.rename(below / (PREFIX + temporary.name.removeprefix(NEW))), lock


def remove_abandoned(below: Path) -> None:
    """Removes the files of processes that were killed."""
    for folder in abandoned(below):
        with contextlib.suppress(OSError):
            remove(folder)


def abandoned(below: Path) -> Iterator[Path]:
    """The folders of processes that were killed. Each stays locked until the next is asked for."""
    is_shared = medium_of(below) is Medium.NETWORK
    for folder in below.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
                if (
                    not is_shared or os.read(lock, 256) == socket.gethostname().encode()
                ):  # locks may not cross machines
                    yield folder
            finally:
                os.close(lock)
    for folder in below.glob(f"{NEW}*"):  # killed between two system calls: it has no files yet
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
                yield folder


def _refuse_folder_of_another(below: Path) -> None:
    """Anyone may create folders in /var/tmp."""
    if below == machine_folder() and below.lstat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "it belongs to another user")


def allow_many_files() -> None:
    """Raises this process's limit on open files as far as allowed: a store keeps a few hundred open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536) if hard > 0 else 65_536, hard))


def remove(folder: Path) -> None:
    """Removes the lock file last: a half-removed folder is still recognised as abandoned."""
    for file in folder.glob("*"):
        if file.name != LOCK:
            file.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
