"""The interface of row stores, and its value types.

A store maps a 63-bit id to one row of `width` floats. A row consists of named parts (a width-1 linear term next to the
embedding), each with its own optimizer, whose state is stored next to the weights. Rows are created by the first
`pull`, with values that depend only on (seed, id). A store knows nothing about features, models or workers. The ids of
one call are unique, and calls may come from many threads at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gearshift.embedding.horizons import Horizons
from gearshift.embedding.row_optimizers import CowClip as CowClip
from gearshift.embedding.row_optimizers import RowAdagrad as RowAdagrad
from gearshift.embedding.row_optimizers import RowAdam as RowAdam
from gearshift.embedding.row_optimizers import RowFTRL as RowFTRL
from gearshift.embedding.row_optimizers import RowMomentum as RowMomentum
from gearshift.embedding.row_optimizers import RowOptimizer as RowOptimizer
from gearshift.embedding.row_optimizers import RowSGD as RowSGD
from gearshift.embedding.row_optimizers import RowwiseAdagrad as RowwiseAdagrad
from gearshift.errors import UserError

if TYPE_CHECKING:
    from gearshift.embedding.row_rules import RowRule, RuleState

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
Tables = NDArray[np.uint16]  # numbers of tables within a store, from 1; 0: unknown
MOST_TABLES = 1023  # that a row can be marked with; further ones count as unknown


@dataclass(frozen=True)
class RowPart:
    """Columns of a row: `width` floats, initialised uniformly in [-init, init], updated by `optimizer`."""

    name: str
    width: int
    optimizer: RowOptimizer
    init: float = 0.01
    clip: CowClip | None = None

    def __post_init__(self) -> None:
        if getattr(self.optimizer, "initial", 0.0) == "auto":
            raise UserError(
                'initial="auto" needs the batch of a Trainer: give a number, as (0.2 / batch) ** 2'
            )


@dataclass(frozen=True)
class RowBlock:
    """Complete rows, as written to and read from a file; `state_US` is the optimizer state of all parts."""

    ids_U: Ids
    weights_UW: Floats
    state_US: Floats
    touches_U: NDArray[np.uint32]  # occurrences in the data, over all pushes
    last_step_U: NDArray[np.uint32]  # the step of the last push
    updates_U: NDArray[np.uint32]  # pushes that updated the row (for Adam's bias correction)
    tables_U: Tables = field(default_factory=lambda: np.zeros(0, np.uint16))  # unknown if empty

    def __post_init__(self) -> None:
        if not len(self.tables_U):
            object.__setattr__(self, "tables_U", np.zeros(len(self.ids_U), np.uint16))


@dataclass(frozen=True)
class RowStack:
    """Row files of some partitions, newest first: the newest record of an id counts."""

    name: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class TierCounts:
    """Contents and counters of a store with a cold tier.

    `lookups` and `misses` count ids in pulls; `stored_rows` includes stale copies. `reads_in_flight` is summed over all
    waits for the disk.
    """

    hot_rows: int
    cold_rows: int
    lookups: int
    misses: int
    prefetched: int
    evicted: int
    written_back: int
    retries: int
    reads: int
    bytes_read: int
    rows_read: int
    needless_reads: int
    bytes_written: int
    bytes_flushed: int
    merges: int
    stored_rows: int
    stale_rows: int
    files: int
    file_bytes: int
    index_bytes: int
    read_waits: int
    reads_in_flight: int

    def __add__(self, other: TierCounts) -> TierCounts:
        return TierCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def hit_rate(self) -> float:
        return 1 - self.misses / self.lookups if self.lookups else 1.0

    @property
    def space(self) -> float:
        """Stored rows per live row."""
        live = self.stored_rows - self.stale_rows
        return self.stored_rows / live if live > 0 else 1.0

    @property
    def write_amplification(self) -> float:
        return self.bytes_written / self.bytes_flushed if self.bytes_flushed else 1.0

    @property
    def queue_depth(self) -> float:
        """Reads in flight, on average, while the disk was read."""
        return self.reads_in_flight / self.read_waits if self.read_waits else 0.0

    def ratios(self) -> dict[str, float]:
        names = ("hit_rate", "space", "write_amplification", "queue_depth")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class TableLookups:
    """What batches asked of one table in a store with a cold tier, and what came back from there."""

    lookups: int  # ids in pulls
    misses: int  # of these, the ones that were not in memory at that moment; new ids included
    loads: int  # rows that came back to memory, for a batch or ahead of it

    def __add__(self, other: TableLookups) -> TableLookups:
        return TableLookups(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def ratios(self) -> dict[str, float]:
        asked = max(1, self.lookups)
        return {"hit_rate": 1 - self.misses / asked, "loads_per_lookup": self.loads / asked}


@runtime_checkable
class StoreSnapshot(Protocol):
    """The store at the time of `cut()`, while training continues. It is read once and then closed."""

    def __len__(self) -> int: ...  # rows in the cut
    def __iter__(self) -> Iterator[RowBlock]: ...  # one block per non-empty partition, each sorted by id

    def rules(self) -> RuleState | None:
        """The state of admission and expiry; None if the store has no rules."""

    def write_files(self, folder: Path, name: str) -> list[RowStack]:
        """Writes the cut as row files in `folder`, instead of reading it. Files of a cold tier are linked."""

    def close(self) -> None: ...


class DiskTier(Protocol):
    """The rows of a store that do not fit in memory, and what brings them back before they are pulled.

    Nothing here changes a result.
    """

    budget: int  # bytes of memory for the whole store
    folder: Path  # the files of rows on disk are below it

    def prefetch(self, ids_U: Ids) -> None: ...  # these will be pulled soon
    def begin_chunk(self) -> None: ...  # the ids expected from now on are pulled in the next chunk of batches

    def expect(self, ids_U: Ids) -> float:
        """Announces ids of the next chunk. Returns what share of the memory for one chunk its rows will take."""

    def load_expected(self) -> bool: ...  # brings some of these rows into memory; False: none are left
    def counts(self) -> TierCounts: ...
    def lookups(
        self,
    ) -> dict[str, TableLookups]: ...  # by the name of the table; "" for ids of unknown tables

    def check(self) -> None:
        """Raises `LostRows` if background work met a file that cannot be read: no checkpoint can be written then."""

    def write_failure(self) -> str | None:
        """Why rows that leave memory cannot be written to disk. They stay in memory, and writing is retried, unless
        `check` raises."""


class RowLifetimes(Protocol):
    """Admission and expiry: which ids get rows, and when rows end."""

    rules: tuple[RowRule, ...]  # by the number of a table; empty: every id gets a row, and keeps it

    def move_horizons(self, horizons: Horizons) -> None:
        """Rows last pushed before the horizon of their table's rule do not exist any more."""

    def restore(self, states: Sequence[RuleState], of_shard: tuple[int, int] = (0, 1)) -> None:
        """The state in a checkpoint of several shards, into an empty store, shard s of n."""

    def counts(self) -> NDArray[np.uint64]: ...  # [T, 4]: those of row_rules.COUNTS, by table


class RowStore(Protocol):
    """Ids are unique within a call. A store must stay safe if they are not: `pull` then repeats the row, `push`
    updates it once per occurrence, in order, and `load` keeps the last. Results never depend on `threads`, the number
    of cores that one call may use."""

    parts: tuple[RowPart, ...]
    width: int  # sum of the widths of the parts
    state_width: int

    @property
    def tier(self) -> DiskTier | None: ...  # None: all rows stay in memory

    @property
    def lifetimes(self) -> RowLifetimes: ...

    def __len__(self) -> int: ...

    def pull(
        self, ids_U: Ids, out_UW: Floats | None = None, *, tables_U: Tables | None = None, threads: int = 1
    ) -> Floats:
        """The rows of these ids. Rows that do not exist are created, and marked with the table of their id."""

    def peek(self, ids_U: Ids, out_UW: Floats | None = None, *, threads: int = 1) -> Floats:
        """Like `pull`, but creates nothing: an unknown id gives the values that its row would start with."""

    def push(
        self,
        ids_U: Ids,
        sums_UW: Floats,
        counts_U: NDArray[np.uint32],
        *,
        examples: float,
        step: int,
        lr_scale: float = 1.0,
        tables_U: Tables | None = None,
        threads: int = 1,
    ) -> None:
        """Update each row once with the gradient `sums / examples`; `lr_scale` is the factor of the schedule.

        A gradient that is not finite raises a ValueError that names its id, and nothing changes. Rows that do not
        exist are created first.
        """

    def contains(self, ids_U: Ids) -> NDArray[np.bool_]: ...
    def last_steps(
        self, ids_U: Ids
    ) -> NDArray[np.uint32]: ...  # of the last push of each row; 0 without a row
    def erase(self, ids_U: Ids) -> int: ...  # the number of rows that existed
    def blocks(self) -> Iterator[RowBlock]: ...  # current values; use `cut` for a consistent snapshot
    def load(self, block: RowBlock) -> None: ...  # complete rows; replaces existing rows with these ids

    def adopt(self, stacks: Sequence[RowStack]) -> bool:
        """Loads the row files of a checkpoint into an empty store. False: it cannot, and must `load` their rows."""

    def cut(self) -> StoreSnapshot: ...  # taken between two pushes, never inside one; one cut at a time
    def memory_bytes(self) -> int: ...
