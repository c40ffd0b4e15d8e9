"""Facts about the columns of a sample: number of values, numbers, times, lists. Their meaning is inferred elsewhere.

Only distinct values and their counts are processed, so a sample of 100,000 examples takes a fraction of a second.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gearshift.data import columns as raw
from gearshift.data.columns import TextColumn
from gearshift.data.encode import RawBlock
from gearshift.data.examples import RawSource
from gearshift.data.readers.bad_lines import BadLine, BadLines, SourcePlace
from gearshift.data.readers.nested import nesting

SAMPLE_EXAMPLES = 100_000
PARTS_VALUES = 20_000  # maximum number of distinct values that are split into parts
SEPARATORS = ("|", ";", "^", "~", "#", ",", "/", " ")  # strong ones first: rare inside plain values
STRONG_SEPARATORS = "|;^~#"
FEW_WITHOUT_TIME = 0.01  # share of examples with errors in a column of times
EARLIEST, LATEST = 631_152_000, 4_102_444_800  # 1990 .. 2100: other times are errors or placeholders
FEWEST_FOR_SLIPS = 20  # examples, of which one may lack a time
INFINITY = re.compile(r"[-+]?inf(inity)?", re.IGNORECASE)


class _Unreadable(Exception):
    """Raised for the first value that does not have the expected form."""


@dataclass(frozen=True)
class Parts:
    """A column split at a separator."""

    separator: str
    share: float  # share of the values that contain the separator
    fewest: int
    most: int
    counts: Counter[str]  # of the parts, weighted by examples
    mobile: float  # share of parts that come first in some values and later in others


@dataclass(frozen=True)
class SampleTimes:
    """The times of a sample, and its examples with no time or an implausible one."""

    seconds: NDArray[np.int64]
    without: tuple[int, ...]
    odd: tuple[int, ...] = ()  # before 1990 or after 2100, while the others are not


@dataclass(frozen=True)
class Profile:
    """One column of a sample. `values` does not include missing values."""

    name: str
    examples: int
    values: list[str]  # distinct, most frequent first
    counts: NDArray[np.int64]
    column: raw.RawColumn
    place: Callable[[int], SourcePlace]  # the origin of an example of the sample

    @property
    def missing(self) -> int:
        return int(self.examples - self.counts.sum())

    @property
    def missing_share(self) -> float:
        return self.missing / max(self.examples, 1)

    @property
    def distinct(self) -> int:
        return len(self.values)

    @cached_property
    def endless(self) -> int:
        """The number of examples with an infinite value, which a model cannot use."""
        pairs = zip(self.values, self.counts.tolist(), strict=False)
        return sum(count for value, count in pairs if INFINITY.fullmatch(value))

    @cached_property
    def numbers(self) -> NDArray[np.float64] | None:
        """The number for each distinct value, NaN for an infinity; None if a value is not a number."""
        column = raw.plain(pa.array(self.values, pa.large_string()))
        assert isinstance(column, TextColumn)
        if isinstance(self.column, TextColumn):
            column = replace(column, decimal=self.column.decimal, thousands=self.column.thousands)
        infinite: list[int] = []

        def refuse(i: int, text: str) -> None:
            if INFINITY.fullmatch(text) is None:
                raise _Unreadable
            infinite.append(i)

        try:
            numbers = raw.floats(column, refuse)
        except _Unreadable:
            return None
        numbers[infinite] = np.nan
        return None if not self.values or np.isnan(numbers).all() else numbers

    @cached_property
    def is_whole(self) -> bool:
        numbers = self.numbers
        known = None if numbers is None else numbers[~np.isnan(numbers)]
        return known is not None and bool((known == np.trunc(known)).all())

    @cached_property
    def quantity(self) -> NDArray[np.float64]:
        """All numbers of the sample, with repetitions."""
        assert self.numbers is not None
        everything = np.repeat(self.numbers, self.counts)
        return everything[~np.isnan(everything)]

    @cached_property
    def skew(self) -> float:
        values = self.quantity
        spread = values.std()
        return float((((values - values.mean()) / spread) ** 3).mean()) if spread > 0 else 0.0

    @cached_property
    def times(self) -> NDArray[np.int64] | None:
        """Epoch seconds in the order of the sample, except for a few examples without a time; None if not a time."""
        times = self.read_times(FEW_WITHOUT_TIME)
        return None if times is None else times.seconds

    def read_times(self, most_without: float) -> SampleTimes | None:
        """The times, or None if more than this share of the examples has no time.

        The same share may have implausible times, such as 1970-01-01 or the year 9999; if more do, they are accepted.
        """
        without: list[int] = []
        allowed = max(most_without * self.examples, 1 if self.examples >= FEWEST_FOR_SLIPS else 0)

        def refuse(i: int, _text: str) -> None:
            without.append(i)
            if len(without) > allowed:
                raise _Unreadable

        try:
            seconds = raw.times(self.column, refuse)
        except (_Unreadable, pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        outside = (seconds < EARLIEST) | (seconds > LATEST)
        outside[without] = False
        odd = np.flatnonzero(outside).tolist()
        odd = odd if len(without) + len(odd) <= allowed else []
        known = np.delete(seconds, without + odd)
        return SampleTimes(known, tuple(without), tuple(odd)) if len(known) else None

    @property
    def list_of_floats(self) -> int | None:
        """The common length, if this is a column of float lists."""
        if isinstance(self.column, TextColumn) or not raw.is_list(self.column.type):
            return None
        lengths = pc.unique(pc.list_value_length(self.column).drop_null())
        is_float = pa.types.is_floating(self.column.type.value_type)
        return int(lengths[0].as_py()) if is_float and len(lengths) == 1 else None

    @property
    def nesting(self) -> str | None:
        """The kind of the values if they are not single values: "lists", "structs"."""
        return nesting(self.column)

    @property
    def is_list(self) -> bool:
        return not isinstance(self.column, TextColumn) and raw.is_list(self.column.type)

    def texts(self) -> list[str | None]:
        """The value of each example, in order."""
        values: list[str | None] = _as_text(raw.as_arrow(self.column)).to_pylist()
        return values

    def first_other(self, values: list[str]) -> tuple[SourcePlace, str]:
        """The place and text of the first example whose value is not in `values`; "" for a missing value."""
        texts = self.texts()
        i = next(i for i, text in enumerate(texts) if text not in values)
        return self.place(i), texts[i] or ""

    def parts(self, separator: str) -> Parts:
        counts: Counter[str] = Counter()
        sizes: list[int] = []
        first: set[str] = set()
        later: set[str] = set()
        holding = 0
        for value, count in zip(self.values[:PARTS_VALUES], self.counts.tolist(), strict=False):
            pieces = split_parts(value, separator)
            sizes.append(len(pieces))
            holding += count if separator in value else 0
            first.update(pieces[:1])
            later.update(pieces[1:])
            for piece in pieces:
                counts[piece] += count
        share = holding / max(int(self.counts[:PARTS_VALUES].sum()), 1)
        mobile = sum(counts[piece] for piece in first & later) / max(counts.total(), 1)
        return Parts(separator, share, min(sizes, default=0), max(sizes, default=0), counts, mobile)


def plain_name(name: str) -> str:
    """Clicked on Ad -> clicked_on_ad, isClick -> is_click."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[\s.-]+", "_", words).lower()


def split_parts(value: str, separator: str) -> list[str]:
    """The parts of one value, split as in text_columns.h."""
    is_list = len(value) >= 2 and value[0] == "[" and value[-1] == "]"
    pieces = [piece.strip(" \t") for piece in (value[1:-1] if is_list else value).split(separator)]
    if is_list:
        pieces = [p[1:-1] if len(p) >= 2 and p[0] == p[-1] and p[0] in "'\"" else p for p in pieces]
    return [piece for piece in pieces if piece]


def sample_profiles(
    source: RawSource, columns: tuple[str, ...] | None = None
) -> tuple[list[Profile], int, list[BadLine]]:
    """(a profile per column, number of examples in the sample, unreadable lines)."""
    columns = source.columns if columns is None else columns
    bad_lines = BadLines(allowed=1_000_000)
    blocks = list(_first_blocks(source, columns, bad_lines))
    examples = sum(block.size for block in blocks)
    place = _places(blocks)
    profiles = [_profile(name, blocks, examples, place) for name in columns]
    return profiles, examples, bad_lines.listed()


def _first_blocks(source: RawSource, columns: tuple[str, ...], bad_lines: BadLines) -> Iterator[RawBlock]:
    total = 0
    for block, _ in source.blocks(columns, bad_lines):
        yield block
        total += block.size
        if total >= SAMPLE_EXAMPLES:
            return


def _places(blocks: list[RawBlock]) -> Callable[[int], SourcePlace]:
    places = [block.place for block in blocks]
    starts = [0, *np.cumsum([block.size for block in blocks]).tolist()]

    def place(i: int) -> SourcePlace:
        number = bisect_right(starts, i) - 1
        return places[number](i - starts[number])

    return place


def _profile(
    name: str, blocks: list[RawBlock], examples: int, place: Callable[[int], SourcePlace]
) -> Profile:
    parts = [block.columns[name] for block in blocks]
    texts = [part for part in parts if isinstance(part, TextColumn)]
    arrays = [raw.as_arrow(part) for part in parts]
    if len({array.type for array in arrays}) > 1:  # files of one folder that store it differently
        arrays = [_as_text(array) for array in arrays]
    merged = pa.chunked_array(arrays).combine_chunks() if arrays else pa.array([], pa.large_string())
    column: raw.RawColumn = merged
    nested = {part.nested for part in texts if part.nested is not None}
    if nested == {"lists"}:
        column = merged = list_array(merged)
    elif texts:
        text = raw.plain(merged)
        assert isinstance(text, TextColumn)
        column = replace(texts[0], data=text.data, spans=text.spans, nested=max(nested, default=None))
    values, counts = _distinct(column, merged)
    return Profile(name, examples, values, counts, column, place)


def list_array(texts: pa.Array) -> pa.Array:
    """Lists written as JSON. A single value among them becomes a list of one."""
    lists = [_items(text) if text else None for text in texts.to_pylist()]
    items = {type(item) for parsed in lists for item in parsed or ()}
    if items and items <= {int, float} and float in items:
        return pa.array(lists, pa.list_(pa.float64()))
    return pa.array(
        [parsed and [str(item) for item in parsed] for parsed in lists], pa.list_(pa.large_string())
    )


def _items(text: str) -> list[Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = text
    return [item for item in parsed if item is not None] if isinstance(parsed, list) else [text]


def _distinct(column: raw.RawColumn, array: pa.Array) -> tuple[list[str], NDArray[np.int64]]:
    """Distinct values as text, most frequent first. Lists and structs are not examined."""
    if nesting(column) is not None:
        return [], np.full(1, len(array) - array.null_count, np.int64)
    table = pc.value_counts(_as_text(array).drop_null())
    values: list[str] = table.field("values").to_pylist()
    counts = table.field("counts").to_numpy(zero_copy_only=False).astype(np.int64)
    order = [i for i in np.argsort(-counts, kind="stable") if values[i] != ""]
    return [values[i] for i in order], counts[order]


def _as_text(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        texts = (None if value is None else value.decode(errors="replace") for value in array.to_pylist())
        return pa.array(list(texts), pa.large_string())
    return (raw.number_text(array) if not raw.is_text(array.type) else array).cast(pa.large_string())
