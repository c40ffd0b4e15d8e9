"""The C++ core, as Python sees it. Arrays are taken as they are: wrong dtypes or layouts are a TypeError."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gearshift.errors import UserError

# --- text: feature_hash.h, text_lines.h, text_columns.h -----------------------------------------------------
# A text column is (data, spans): bytes and a uint32 [n, 2] of (start, size); an empty value is a missing one.
# parse_* return the index of the first value from `begin` on that they cannot read, or the number of values.

Bytes = NDArray[np.uint8]
Spans = NDArray[np.uint32]

def xxh64(value: bytes, seed: int = 0) -> int: ...
def table_seed(table: str) -> int: ...
def split_lines(
    data: Bytes,
    size: int,
    delimiter: str,
    quote: str,
    slots: NDArray[np.int32],
    wanted: int,
    rest_in_last: bool,
    trim: bool,
    last: bool,
    quoted_lines: int,
    doubt_quotes: bool,
    spans: Spans,
    lines: NDArray[np.uint32],
    escape: str = "",
    header: bytes = b"",
) -> tuple[int, int, int, list[tuple[int, int, int, int]], list[int], list[int]]:
    """(records, bytes consumed, lines consumed, bad records as in text_lines.h, [record, lines, ...], headers)."""

def split_json(
    data: Bytes, size: int, paths: list[str], last: bool, spans: Spans, lines: NDArray[np.uint32]
) -> tuple[int, int, int, list[tuple[int, int, str]], list[int]]:
    """(records, bytes, lines consumed, [(line, character, reason)], nesting of each path as in json_lines.h)."""

def json_paths(data: Bytes, size: int) -> list[str]:
    """The paths of all values in JSON lines; may change the buffer."""

def find_not_utf8(data: Bytes, size: int, last: bool) -> int:
    """The offset of the first byte that is not UTF-8, or -1."""

def strip_libfm(data: Bytes, size: int, last: bool, out: Bytes) -> tuple[int, int, int]:
    """(bytes written, bytes consumed, offset of the first value that is not 1 or -1)."""

def hash_text(data: Bytes, spans: Spans, seed: int, out: NDArray[np.int64]) -> None: ...
def hash_parts(
    data: Bytes, spans: Spans, separator: str, max_len: int, keep_last: bool, seed: int, json: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(ids, offsets)."""

def hash_numbers(values: NDArray[Any], seed: int, out: NDArray[np.int64]) -> None:
    """Of int64, uint64, float32 or float64."""

def parse_floats(data: Bytes, spans: Spans, begin: int, decimal: str, out: NDArray[np.float64]) -> int: ...
def parse_vectors(
    data: Bytes,
    spans: Spans,
    begin: int,
    separator: str,
    decimal: str,
    out: NDArray[np.float32],
    json: bool = False,
) -> int: ...
def parse_labels(
    data: Bytes, spans: Spans, begin: int, positives: list[str], decimal: str, out: NDArray[np.float32]
) -> int: ...
def parse_times(data: Bytes, spans: Spans, begin: int, out: NDArray[np.int64]) -> int: ...
def epoch_seconds(numbers: NDArray[np.int64], out: NDArray[np.int64]) -> None: ...
def arrow_spans(offsets: NDArray[Any], validity: Bytes, bit_offset: int, out: Spans) -> None:
    """Spans relative to offsets[0]; `validity` is empty when there are no nulls."""

def blank_values(data: Bytes, spans: Spans, missing: list[str]) -> None: ...

# --- the synthetic click log: click_log.h ---------------------------------------------------------------------

CLICK_FIELDS: Final[list[str]]
CLICK_NUMERICS: Final[int]
CLICK_HISTORY: Final[int]

class ClickLog:
    def __init__(
        self, seed: int, examples: int, days: int, sequences: bool, drift: float, click_rate: float
    ) -> None: ...
    def fill(
        self,
        first: int,
        raw: bool,
        labels: NDArray[np.float32],
        truth: NDArray[np.float64],
        numeric: NDArray[np.float32],
        ids: NDArray[np.int64],
        times: NDArray[np.int64],
        offsets: NDArray[np.int64] | None,
        history: NDArray[np.int64] | None,
    ) -> None: ...

# --- rows: row_table.h, occurrences.h ---------------------------------------------------------------------

_Floats = NDArray[np.float32]
_Ids = NDArray[np.int64]
_Counts = NDArray[np.uint32]
_Tables = NDArray[np.uint16]
_Block = tuple[_Ids, _Floats, _Floats, _Counts, _Counts, _Counts, _Tables]

class RowPartSpec:
    def __init__(self, *, kind: str, width: int, init: float, **numbers: float) -> None:
        """The kinds, and the numbers that they know, are listed in row_optimizer_list.h."""

_Rule = tuple[int, float, bool, int, float]  # row_rules.h: RowRule

def ended_rows(
    rules: list[_Rule],
    width: int,
    horizons: list[int],
    weights: _Floats,
    touches: _Counts,
    last_step: _Counts,
    tables: _Tables,
    out: NDArray[np.bool_],
) -> None: ...

class RowFileError(UserError): ...

def allow_io_uring(allowed: bool) -> None: ...
def random_read_rate(path: str, seconds: float, bytes: int = 4096) -> float: ...
def read_plan(block_reads: float, extent_reads: float, longest_reads: float) -> tuple[int, int]: ...

class RowTable:
    def __init__(
        self, parts: list[RowPartSpec], seed: int, portable: bool = False, little_memory: bool = False
    ) -> None: ...
    @property
    def width(self) -> int: ...
    @property
    def state_width(self) -> int: ...
    def add_cold_tier(
        self, folder: str, budget_bytes: int, hot_rows: int, tables: int = 0, shards: int = 1
    ) -> int: ...
    def prefetch(self, ids: _Ids) -> None: ...
    def begin_chunk(self) -> None: ...
    def expect(self, ids: _Ids) -> float: ...
    def load_expected(self) -> bool: ...
    def close_cold_tier(self) -> None: ...
    def cold_write_failure(self) -> str: ...
    def settle_cold_tier(self) -> None: ...
    def tier_counts(self) -> dict[str, int]: ...
    def lookups_by_table(self) -> NDArray[np.uint64]:
        """[T, 3]: lookups, misses, loads, by the number of the table."""

    def __len__(self) -> int: ...
    def memory_bytes(self) -> int: ...
    def pull(self, ids: _Ids, tables: _Tables | None, out: _Floats, threads: int) -> None: ...
    def peek(self, ids: _Ids, out: _Floats, threads: int) -> None: ...
    def push(
        self,
        ids: _Ids,
        tables: _Tables | None,
        sums: _Floats,
        counts: _Counts,
        examples: float,
        step: int,
        lr_scale: float,
        threads: int,
    ) -> None: ...
    def contains(self, ids: _Ids, out: NDArray[np.bool_]) -> None: ...
    def erase(self, ids: _Ids) -> int: ...
    def load(
        self,
        ids: _Ids,
        weights: _Floats,
        state: _Floats,
        touches: _Counts,
        last_step: _Counts,
        updates: _Counts,
        tables: _Tables,
    ) -> None: ...
    def read_partition(self, partition: int) -> _Block: ...
    def begin_cut(self) -> None: ...
    def cut_size(self) -> int: ...
    def read_cut_partition(self, partition: int) -> _Block: ...
    def write_cut_groups(self, first: int, last: int, path: str) -> list[str]: ...
    def adopt_files(self, paths: list[str]) -> None: ...
    def write_new_rows(self, path: str, ids: _Ids, touches: NDArray[np.uint32]) -> None: ...
    def load_files(self, paths: list[str]) -> None: ...
    @property
    def layout_hash(self) -> int: ...
    def end_cut(self) -> None: ...
    def set_rules(self, rules: list[_Rule]) -> None: ...
    def move_horizons(self, mark: int, horizons: list[int]) -> None: ...
    def rule_counts(self) -> NDArray[np.uint64]: ...
    def rows_by_table(self) -> list[int]: ...
    def cut_rules(self) -> dict[str, NDArray[Any]]: ...
    def restore_rules(self, state: dict[str, NDArray[Any]]) -> None: ...

class RowStack:
    """Row files of one layout, newest first."""

    def __init__(self, paths: list[str]) -> None: ...
    @property
    def partitions(self) -> tuple[int, int]: ...
    @property
    def layout_hash(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def state_width(self) -> int: ...
    @property
    def records(self) -> int: ...
    def read_partition(self, partition: int) -> _Block: ...
    def read_changes(self, partition: int) -> tuple[_Block, _Ids]: ...

class RowFileWriter:
    """Writes one row file. Each call's partitions must follow those of the calls before."""

    def __init__(self, path: str, width: int, state_width: int, layout_hash: int) -> None: ...
    @property
    def rows(self) -> int: ...
    def add(
        self,
        ids: _Ids,
        weights: _Floats,
        state: _Floats,
        touches: _Counts,
        last_step: _Counts,
        updates: _Counts,
        tables: _Tables,
        erased: _Ids,
    ) -> None: ...
    def finish(self) -> None: ...

class FrozenWriter:
    """Writes weights alone. Each call's partitions must follow those of the calls before."""

    def __init__(self, path: str, precision: str, parts: list[int]) -> None: ...
    def add(self, ids: _Ids, weights: _Floats) -> None: ...
    def finish(self) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def largest_error(self) -> float: ...

class FrozenRows:
    """Looks up weights in one file."""

    def __init__(self, path: str, load: bool) -> None: ...
    def __len__(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def parts(self) -> list[int]: ...
    @property
    def precision(self) -> str: ...
    @property
    def file_bytes(self) -> int: ...
    def verify(self) -> None: ...
    def lookup(self, ids: _Ids, out: _Floats, found: NDArray[np.bool_]) -> None: ...

def read_blocks(path: str, offsets: NDArray[np.uint64]) -> None: ...
def row_file_checksum(path: str) -> int: ...

class Occurrences:
    """The ids of a batch, each once (in order of first occurrence), and the way back to where they occur."""

    def __init__(self, ids: _Ids) -> None: ...
    def __len__(self) -> int: ...
    @property
    def unique_U(self) -> _Ids: ...
    @property
    def counts_U(self) -> _Counts: ...
    @property
    def first_U(self) -> _Counts:
        """The position of the first occurrence of each."""

    def expand(self, rows: _Floats, begin: int, end: int, out: _Floats, threads: int = 1) -> None: ...
    def sum(self, grads: _Floats, begin: int, end: int, out: _Floats, threads: int = 1) -> bool: ...

def place(ids: _Ids, shards: int, order: _Counts, begins: _Counts) -> None:
    """Positions of `ids` grouped by the shard that holds them; `begins` [shards + 1] says where groups begin."""
