"""Conversion of one raw column: text spans or an Arrow array in; ids, floats, labels or times out.

Both kinds of raw column give the same ids and numbers for the same values (the text "17", the integer 17 and the
float 17.0 are one category). A value that cannot be converted is reported with its index and text; the caller knows
the file, the line and the column name. The C++ core does the conversion, with the GIL released.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gearshift import _core
from gearshift.data.batch import Floats, Ids, Ragged
from gearshift.data.label_rule import Missing, Positive, Threshold, threshold_of, values_of
from gearshift.data.readers.number_marks import grouped_pattern

Bytes = NDArray[np.uint8]
NO_NULLS: Bytes = np.empty(0, np.uint8)
Refuse = Callable[[int, str], None]  # (index of the value, its text); returns if the example may be skipped


@dataclass(frozen=True)
class TextColumn:
    """A buffer and the span of each value in it. An empty value is a missing value.

    In JSON, a list is a value: its text. `nested` describes values that are not single values.
    """

    data: Bytes
    spans: NDArray[np.uint32]  # [n, 2]: start and size
    decimal: str = "."
    thousands: str = ""  # the thousands separator, "" for none
    json: bool = False
    nested: str | None = None

    def __len__(self) -> int:
        return len(self.spans)

    def text(self, i: int) -> str:
        start, size = (int(v) for v in self.spans[i])
        return self.data[start : start + size].tobytes().decode("utf-8", "replace")

    def slice(self, start: int, stop: int) -> TextColumn:
        return replace(self, spans=self.spans[start:stop])


RawColumn: TypeAlias = TextColumn | pa.Array


def value_text(column: RawColumn, i: int) -> str:
    return column.text(i) if isinstance(column, TextColumn) else str(column[i].as_py())


def slice_column(column: RawColumn, start: int, stop: int) -> RawColumn:
    return column.slice(start, stop) if isinstance(column, TextColumn) else column.slice(start, stop - start)


def is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _needs_text(kind: pa.DataType) -> bool:
    """Types that are only read as text: null, decimal, string view, time of day."""
    is_view = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    is_clock = pa.types.is_time(kind) or pa.types.is_duration(kind)
    return bool(pa.types.is_null(kind) or pa.types.is_decimal(kind) or is_view or is_clock)


def plain(column: RawColumn) -> RawColumn:
    """Arrow text as spans; numbers, booleans, dates and lists unchanged."""
    if isinstance(column, TextColumn):
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if _needs_text(column.type):
        column = column.cast(pa.string())
    return _arrow_text(column) if is_text(column.type) else column


def _arrow_text(column: pa.Array) -> TextColumn:
    validity, offsets, data = column.buffers()
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    count = len(column)
    positions = np.frombuffer(offsets, np.int64 if wide else np.int32) if offsets else np.zeros(1, np.int32)
    positions = positions[column.offset : column.offset + count + 1]
    spans = np.empty((count, 2), np.uint32)
    bits = NO_NULLS if validity is None or column.null_count == 0 else np.frombuffer(validity, np.uint8)
    _core.arrow_spans(positions, bits, column.offset, spans)
    values = np.frombuffer(data, np.uint8) if data is not None and data.size else NO_NULLS
    return TextColumn(values[int(positions[0]) :] if count else NO_NULLS, spans)


def _each_bad(parse: Callable[[int], int], column: TextColumn, refuse: Refuse) -> None:
    """Call parse(begin) until the end of the column. It returns the index of the value at which it stopped."""
    at = parse(0)
    while at < len(column):
        refuse(at, column.text(at))
        at = parse(at + 1)


def write_ids(column: RawColumn, seed: int, out: Ids) -> None:
    """Write the ids of a column's values to `out`, which may be a column of a row-major array."""
    if isinstance(column, pa.Array) and pa.types.is_dictionary(column.type):
        _write_dictionary_ids(column, seed, out)
        return
    column = plain(column)
    if isinstance(column, TextColumn):
        _core.hash_text(column.data, column.spans, seed, out)
        return
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_temporal(kind):
        write_ids(column.cast(pa.string()), seed, out)
        return
    missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    _core.hash_numbers(_numbers(column), seed, out)
    if missing is not None:
        out[missing] = _core.xxh64(b"", seed) >> 1


def _write_dictionary_ids(column: pa.Array, seed: int, out: Ids) -> None:
    ids = np.empty(len(column.dictionary) + 1, np.int64)
    write_ids(column.dictionary, seed, ids[:-1])
    ids[-1] = _core.xxh64(b"", seed) >> 1
    index = pc.fill_null(column.indices.cast(pa.int64()), len(ids) - 1)
    out[:] = ids[index.to_numpy(zero_copy_only=False)]


def _numbers(column: pa.Array) -> NDArray[Any]:
    """A numeric array as int64, uint64, float32 or float64; the values of nulls are undefined."""
    kind = column.type
    filled = pc.fill_null(column, pa.scalar(0).cast(kind)) if column.null_count else column
    values: NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        return values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)
    return values if values.dtype == np.uint64 else values.astype(np.int64, copy=False)


def ragged_ids(column: RawColumn, separator: str, max_len: int, keep_last: bool, seed: int) -> Ragged:
    column = plain(column)
    if isinstance(column, TextColumn):
        ids, offsets = _core.hash_parts(
            column.data, column.spans, separator, max_len, keep_last, seed, column.json
        )
        return Ragged(ids, offsets)
    if not is_list(column.type):
        column = column.cast(pa.string())
        return ragged_ids(column, separator, max_len, keep_last, seed)
    values = column.flatten()
    ids = np.empty(len(values), np.int64)
    write_ids(values, seed, ids)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return _shorten(ids, lengths, max_len, keep_last)


def _shorten(ids: Ids, lengths: NDArray[np.int64], max_len: int, keep_last: bool) -> Ragged:
    kept = np.minimum(lengths, max_len)
    offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    if not (kept < lengths).any():
        return Ragged(ids, offsets)
    starts = np.cumsum(lengths) - lengths + (lengths - kept if keep_last else 0)
    source = np.repeat(starts - offsets[:-1], kept) + np.arange(offsets[-1])
    return Ragged(ids[source], offsets)


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def floats(column: RawColumn, refuse: Refuse) -> NDArray[np.float64]:
    """The values as floats; NaN if missing. Infinities are refused."""
    column = plain(column)
    if isinstance(column, TextColumn):
        text, parsed = _without_thousands(column), np.empty(len(column), np.float64)
        _each_bad(
            lambda begin: _core.parse_floats(text.data, text.spans, begin, text.decimal, parsed),
            column,
            refuse,
        )
        return parsed
    if _refused_nested(column, refuse):
        return np.full(len(column), np.nan)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_temporal(column.type):
        column = times_of_arrow(column)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    # Not `safe`: integers beyond 2^53 are rounded, as they are when read from text.
    out: NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).copy()
    out[missing] = np.nan
    for i in np.flatnonzero(np.isinf(out)):
        refuse(int(i), str(out[i]))
    return out


def _without_thousands(column: TextColumn) -> TextColumn:
    """Turn 1,234.5 into 1234.5. A separator in any other position stays, so that the value is refused."""
    if not column.thousands:
        return column
    mark, texts = column.thousands, as_arrow(column)
    if not pc.any(pc.match_substring(texts, mark)).as_py():
        return column
    grouped = pc.match_substring_regex(texts, rf"^\s*{grouped_pattern(mark)}\s*$")
    plain_text = plain(pc.if_else(grouped, pc.replace_substring(texts, mark, ""), texts))
    assert isinstance(plain_text, TextColumn)
    return replace(plain_text, decimal=column.decimal)


def _refused_nested(column: pa.Array, refuse: Refuse) -> bool:
    """Refuse every value of a column of lists or structs where single numbers are expected."""
    if not pa.types.is_nested(column.type):
        return False
    for i in np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)):
        refuse(int(i), value_text(column, int(i)))
    return True


def labels(column: RawColumn, positive: Positive, refuse: Refuse, missing: Missing = "fail") -> Floats:
    """1 for a click and 0 otherwise, by the label's rule. A missing label is refused or means no click."""
    if missing == "no_click":
        return _present_labels(plain(column), positive, refuse)
    threshold = threshold_of(positive)
    if threshold is not None:
        return _beyond(threshold, column, refuse)
    column = plain(column)
    if not isinstance(column, TextColumn):
        if _refused_nested(column, refuse):
            return np.zeros(len(column), np.float32)
        column = plain(number_text(column))
    assert isinstance(column, TextColumn)
    text, out = column, np.zeros(len(column), np.float32)
    clicks = list(values_of(positive))
    _each_bad(
        lambda begin: _core.parse_labels(text.data, text.spans, begin, clicks, text.decimal, out),
        text,
        refuse,
    )
    return out


def _present_labels(column: RawColumn, positive: Positive, refuse: Refuse) -> Floats:
    """The labels that are present, and 0 elsewhere. After a join most are missing, so these are skipped in bulk."""
    if isinstance(column, TextColumn):
        present = np.flatnonzero(column.spans[:, 1])
        given: RawColumn = replace(column, spans=column.spans[present])
    else:
        known = column.is_valid()
        if pa.types.is_floating(column.type):
            known = pc.and_(known, pc.invert(pc.is_nan(column).fill_null(True)))
        present = np.flatnonzero(known.to_numpy(zero_copy_only=False))
        given = column.take(pa.array(present))
    out = np.zeros(len(column), np.float32)
    # A value of spaces only is a missing label too.
    out[present] = labels(
        given, positive, lambda i, text: refuse(int(present[i]), text) if text.strip() else None
    )
    return out


def _beyond(threshold: Threshold, column: RawColumn, refuse: Refuse) -> Floats:
    refused: set[int] = set()

    def note(i: int, text: str) -> None:
        refused.add(i)
        refuse(i, text)

    values = floats(column, note)
    for i in np.flatnonzero(np.isnan(values)):
        if int(i) not in refused:
            refuse(int(i), "")
    clicked: Floats = threshold.holds(values).astype(np.float32)
    return clicked


def number_text(column: pa.Array) -> pa.Array:
    """Numbers as the text that is hashed, so that `positive: "1"` also matches 1.0."""
    if pa.types.is_floating(column.type):
        whole = pc.all(pc.equal(column, pc.trunc(column))).as_py()
        return column.cast(pa.int64(), safe=False).cast(pa.string()) if whole else column.cast(pa.string())
    return column.cast(pa.string())


def times(column: RawColumn, refuse: Refuse) -> NDArray[np.int64]:
    """The times in epoch seconds."""
    column = plain(column)
    if isinstance(column, TextColumn):
        text, out = column, np.zeros(len(column), np.int64)
        _each_bad(lambda begin: _core.parse_times(text.data, text.spans, begin, out), text, refuse)
        return out
    if _refused_nested(column, refuse):
        return np.zeros(len(column), np.int64)
    for i in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)):
        refuse(int(i), "")
    if pa.types.is_floating(column.type):
        endless = pc.invert(pc.is_finite(column)).fill_null(False).to_numpy(zero_copy_only=False)
        for i in np.flatnonzero(endless):
            refuse(int(i), value_text(column, int(i)))
    seconds: NDArray[np.int64] = times_of_arrow(column).to_numpy(zero_copy_only=False)
    return seconds


def times_of_arrow(column: pa.Array) -> pa.Array:
    """Dates, timestamps or numbers as int64 epoch seconds; nulls become 0."""
    if pa.types.is_temporal(column.type):
        column = (
            column.cast(pa.timestamp("s"), safe=False)
            if not _has_zone(column)
            else column.cast(pa.timestamp("s", "UTC"), safe=False)
        )
        return pc.fill_null(column.cast(pa.int64()), 0)
    whole = pc.floor(column) if pa.types.is_floating(column.type) else column
    # Integers are never converted to floats, which would round nanoseconds; NaN was refused before.
    numbers = pc.fill_null(whole.cast(pa.int64(), safe=False), 0)
    out = np.empty(len(numbers), np.int64)
    _core.epoch_seconds(numbers.to_numpy(zero_copy_only=False), out)
    return pa.array(out)


def _has_zone(column: pa.Array) -> bool:
    return bool(pa.types.is_timestamp(column.type) and column.type.tz is not None)


def write_vectors(column: RawColumn, separator: str, out_BW: Floats, refuse: Refuse) -> None:
    """Write `out_BW.shape[1]` floats per value. A missing vector becomes NaN."""
    column = plain(column)
    if isinstance(column, TextColumn):
        text = column
        _each_bad(
            lambda begin: _core.parse_vectors(
                text.data, text.spans, begin, separator, text.decimal, out_BW, text.json
            ),
            text,
            refuse,
        )
        return
    out_BW[:] = np.nan
    if not is_list(column.type):
        for i in np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)):
            refuse(int(i), value_text(column, int(i)))
        return
    width = out_BW.shape[1]
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    for i in np.flatnonzero((lengths != width) & (lengths != 0)):
        refuse(int(i), f"{lengths[i]} numbers")
    good = np.flatnonzero(lengths == width)
    parts = column.take(pa.array(good)).flatten()
    values = floats(parts, lambda part, text: refuse(int(good[part // width]), text))
    with np.errstate(over="ignore"):
        out_BW[good] = values.reshape(-1, width)


def as_arrow(column: RawColumn) -> pa.Array:
    """The original values, for columns that are copied to the output."""
    if not isinstance(column, TextColumn):
        return column
    sizes = column.spans[:, 1].astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    source = np.repeat(column.spans[:, 0].astype(np.int64) - offsets[:-1], sizes) + np.arange(offsets[-1])
    data = column.data[source]
    array = pa.Array.from_buffers(
        pa.large_string(), len(column), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:  # not UTF-8; the column is only displayed, so this is not an error
        return pa.array([column.text(i) for i in range(len(column))], pa.large_string())
    return array
