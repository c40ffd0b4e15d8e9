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
from gearshift.embedding.memory_budget import INDEX_SHARE, LITTLE_MEMORY, minimum_bytes, with_buffers
from gearshift.errors import UserError, warn
from gearshift.settings.declaration import setting
from gearshift.settings.units import (
    INTEGER,
    STRING,
    Folder,
    Memory,
    Unit,
    either,
    parse_count,
    size_in_words,
    write_memory,
)

MOST_OF_MACHINE = 0.9
QUEUE_SHARE, MOST_QUEUED = 8, 512 << 20
PREFIX, NEW, LOCK = "rows-", "new-", "lock"
ABANDONED_SECONDS = 600.0
ROWS_FOLDER = ".rows"  # below the folder of the runs
LOCAL = Path("/var/tmp")  # on disk by convention, whereas /tmp may be in memory


@dataclass(frozen=True)
class LookAhead:
    """What is known about the batches that will be trained next: whole chunks of them, or the next few."""

    chunk_examples: int | None = None  # None: as many as `chunk_bytes` and the memory for their rows allow
    chunk_bytes: int = 0  # of the batches of one chunk, of which two are in memory; 0: none are paid for
    batches_here: bool = True  # False: other processes have them, and name the ids of their next leases

    @property
    def in_chunks(self) -> bool:
        return self.batches_here and (self.chunk_examples is not None or self.chunk_bytes > 0)


@dataclass(frozen=True)
class ColdTier:
    """Rows beyond `budget` bytes of memory go to files below `folder`.

    `lookahead` says how rows are brought into memory before they are needed; None: not at all. The memory of a run is
    divided among its stores: sketches of `min_count` have a fixed size, and are taken out first.
    """

    folder: Path
    budget: int
    hot_rows: int = 0  # rows in memory, instead of what fits in the budget (for tests)
    part: float = 1.0  # of the memory for rows, without `reserved`
    lookahead: LookAhead | None = LookAhead()
    notice: str = ""  # for the user, when the tier is opened
    asked: str = ""  # the user's memory, in words
    reserved: int = 0  # for the sketches of all stores
    sketch: int = 0  # of these, the bytes of this store
    uses: tuple[str, ...] = ()  # for what else the memory is, in words
    has_baseline: bool = False  # which has a share of the memory
    shards: int = 1  # on machines of their own: each has this memory
    of_shards: int = 1  # its store has the ids of one of so many shards

    def share(self, part: float) -> ColdTier:
        """The tier of one of several stores, with its part of the budget."""
        return replace(self, budget=int(self.budget * part), part=self.part * part)

    def reserve(self, sketches: int) -> ColdTier:
        """Without the memory that sketches of this size need; `with_sketch` gives a store its own."""
        taken = with_buffers(sketches)
        if not taken:
            return self
        return replace(self, budget=max(0, self.budget - taken), reserved=self.reserved + taken)

    def with_sketch(self, size: int) -> ColdTier:
        own = min(with_buffers(size), self.reserved)
        return replace(self, budget=self.budget + own, sketch=own)

    @property
    def explained(self) -> str:
        """`memory=20MiB for each of 2 shards, less a tenth for the baseline`."""
        each = f" for each of {self.shards} shards" if self.shards > 1 else ""
        return f"memory={self.asked}{each}{', less ' if self.uses else ''}{' and '.join(self.uses)}"


def parse_lookahead(value: Any) -> str | int:
    if value is False or value in ("auto", "off"):
        return value or "off"
    try:
        examples = parse_count(value)
    except ValueError:
        examples = 0
    if examples < 1:
        raise ValueError("expected auto, off or a number of examples, such as 500k")
    return examples


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
        "Rows on disk are brought into memory before they are needed: for chunks of at most this many examples, as "
        "many as the memory allows (auto), or not at all (off). On Ray there are no chunks: auto or off.",
    )

    def __post_init__(self) -> None:
        if isinstance(self.lookahead, int) and self.lookahead < 1:
            raise UserError(
                f"StorageSettings(lookahead={self.lookahead}): write auto, off or at least 1 example"
            )

    def check_path(self) -> None:
        """Raises if rows cannot be written to the folder that the user chose."""
        if self.path is not None:
            check_folder(Path(self.path).expanduser())

    def tier(self, memory: Memory, runs: str | Path, *, batches_here: bool = True) -> ColdTier:
        """The cold tier of a run's rows on this machine; `runs` is the folder of the runs.

        `batches_here`: this process trains, so that chunks of batches take a part of the memory.
        """
        if isinstance(self.lookahead, int) and not batches_here:
            raise UserError(
                f"storage.lookahead={self.lookahead}: on Ray there are no chunks, since workers name the ids of their "
                "next batches to the shards; write auto or off"
            )
        chosen = None if self.path is None else Path(self.path).expanduser()
        folder, notice = default_folder(runs) if chosen is None else (chosen, "")
        budget = budget_bytes(memory)
        queued = queue_bytes(budget) if batches_here and self.lookahead != "off" else 0
        examples = self.lookahead if isinstance(self.lookahead, int) else None
        return ColdTier(
            folder,
            budget - queued,
            lookahead=None if self.lookahead == "off" else LookAhead(examples, queued // 2, batches_here),
            notice=notice,
            asked=memory_in_words(memory),
            uses=(f"{size_in_words(queued)} for batches that are read ahead",) if queued else (),
        )


def memory_in_words(memory: Memory) -> str:
    """`16GiB`, `25% (6.32GB here)`."""
    size = size_in_words(budget_bytes(memory))
    return f"{write_memory(memory)} ({size} here)" if isinstance(memory, float) else size


def too_much(memory: Memory) -> str | None:
    """A warning if rows may take nearly all memory of this machine before any of them goes to disk."""
    whole = machine_memory()
    if budget_bytes(memory) <= MOST_OF_MACHINE * whole:
        return None
    return (
        f"memory={memory_in_words(memory)} leaves nothing for everything else: this machine has {size_in_words(whole)}."
        " Rows go to disk only when it is full; set less, such as memory=70%"
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


def memory_for(rows_bytes: float, lookahead: LookAhead | None) -> float:
    """The user's memory of which `StorageSettings.tier` leaves so much for rows."""
    if rows_bytes < LITTLE_MEMORY or lookahead is None or not lookahead.batches_here:
        return rows_bytes
    return rows_bytes + min(rows_bytes / (QUEUE_SHARE - 1), MOST_QUEUED)


def index_too_large(tier: ColdTier, index: int) -> str:
    """A warning if the index of the files leaves little memory for rows."""
    needed = memory_for(INDEX_SHARE * index / tier.part + tier.reserved, tier.lookahead)
    return (
        f"memory={tier.asked or size_in_words(tier.budget)} is little for so many rows on disk: the index of their "
        f"files takes {math.ceil(index / 2**20)}MiB, so few rows stay in memory, and training is slow. Resume the run "
        f"with at least memory={math.ceil(needed / 2**20)}MiB"
    )


def check_budget(tier: ColdTier, floats: int, beside: int = 0) -> None:
    """`beside`: memory that the store needs besides its rows, which may have been reserved."""
    least = minimum_bytes(floats) + (tier.sketch or with_buffers(beside))
    if tier.budget >= least or tier.hot_rows:
        return
    needed = memory_for((least - tier.sketch) / tier.part + tier.reserved, tier.lookahead)
    asked = tier.asked or size_in_words(round(tier.budget / tier.part))
    sketches = tier.reserved or with_buffers(beside)
    why = (
        f", of which {math.ceil(sketches / 2**20)}MiB count the ids of features with `min_count`"
        if sketches
        else ""
    )
    advice = ". It is less with train.baseline=false" if tier.has_baseline else ""
    raise UserError(
        f"memory={asked} is too small for the rows of this model: set at least memory={math.ceil(needed / 2**20)}MiB"
        f"{why}{advice}"
    )


class TierFolder:
    """A new folder for the files of one store. A lock on it shows that its process is alive."""

    def __init__(self, below: Path) -> None:
        with _naming_folder(below):
            _create(below)
            remove_abandoned(below)
            self.path, self._lock = _locked_folder(below)
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


def check_folder(below: Path) -> None:
    """Creates the folder, and raises if rows cannot be written there."""
    with _naming_folder(below):
        _create(below)
        with tempfile.TemporaryFile(dir=below):
            pass


def _create(below: Path) -> None:
    below.mkdir(0o700 if below == machine_folder() else 0o777, parents=True, exist_ok=True)
    _refuse_folder_of_another(below)


@contextlib.contextmanager
def _naming_folder(below: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        file = next((place for place in (below, *below.parents) if os.path.isfile(place)), None)  # noqa: PTH113 (it does not raise)
        problem = f"{file} is a file" if file else error.strerror
        raise UserError(
            f"storage.path: rows cannot be written below {below}: {problem}. Choose another folder: "
            "storage.path=/other/folder"
        ) from None


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
