"""Splits a log into training and validation data: by time, by hash, or at its end; and checks the parts."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gearshift import _core
from gearshift.data.batch import Batch, Ids
from gearshift.data.columns import write_ids
from gearshift.data.examples import (
    Choice,
    Examples,
    FilteredExamples,
    HeadExamples,
    MemoryExamples,
    RawExamples,
)
from gearshift.data.readers.nested import check_single
from gearshift.data.readers.prepared import PreparedExamples
from gearshift.data.schema import Schema
from gearshift.errors import UserError

if TYPE_CHECKING:
    from gearshift.data.dataset import Dataset

Mask = NDArray[np.bool_]
TIME_STEP = 16  # one in this many times is read to find a quantile
DAY = 86_400
UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": DAY, "w": 7 * DAY}


def by_time(dataset: Dataset, moment: str | int) -> tuple[Dataset, Dataset]:
    """The examples before a point in time, and the rest."""
    if dataset.schema.time is None:
        raise UserError("a split by time needs data.time: set it to the column with the time.")
    at = moment if isinstance(moment, int) else parse_moment(moment)
    span = dataset.time_range()
    share = 0.5 if span is None else min(max((at - span[0]) / max(span[1] - span[0], 1), 0.0), 1.0)
    day = _moment_words(at)
    before = Choice(lambda b, _: _times(b) < at, share, f"before {day}", (None, at - 1))
    after = Choice(lambda b, _: _times(b) >= at, 1 - share, f"from {day}", (at, None))
    return _parts(dataset, before, after)


def by_hash(
    dataset: Dataset, column: str, valid: float | str, part: str = "valid"
) -> tuple[Dataset, Dataset]:
    """All examples with the same value (a user) are in the same part. Other names of parts draw independently."""
    share = parse_share(valid)
    seed = _core.table_seed(f"gearshift split {part}")

    def is_valid(batch: Batch, schema: Schema) -> Mask:
        return _is_drawn(_column_ids(batch, schema, column), seed, share)

    words = f"by hash of {column}"
    train = Choice(lambda b, s: ~is_valid(b, s), 1 - share, f"{1 - share:.0%} {words}", column=column)
    held_out = Choice(is_valid, share, f"{share:.0%} {words}", column=column)
    return _parts(dataset, train, held_out)


def _column_ids(batch: Batch, schema: Schema, column: str) -> Ids:
    if column == schema.group:
        assert batch.groups_B is not None
        return batch.groups_B
    if schema.has_ids_of(column):
        names = [f.name for f in schema.single_fields]
        return batch.ids_BF[:, names.index(column)]
    assert batch.kept is not None
    ids = np.empty(len(batch), np.int64)
    values = batch.kept.column(column).combine_chunks()
    check_single(f"hash({column})", values)
    write_ids(values, _core.table_seed(column), ids)
    return ids


def by_end(dataset: Dataset, valid: float | str) -> tuple[Dataset, Dataset]:
    """The last part of the log: a duration if there is a time column, or a share of the examples."""
    seconds = parse_duration(valid) if isinstance(valid, str) else None
    if seconds is not None:
        span = dataset.time_range()
        if span is None:
            raise UserError(
                f"a split by duration ({valid}) needs data.time: set it to the column with the time."
            )
        return by_time(dataset, span[1] + 1 - seconds)
    share = parse_share(valid)
    if dataset.schema.time is not None:
        return by_time(dataset, _time_at(dataset, 1 - share))
    return by_position(dataset, share)


def by_position(dataset: Dataset, valid: float | str) -> tuple[Dataset, Dataset]:
    """The first examples of the files, and the last share of them."""
    share = parse_share(valid)
    cut = dataset.counted() - round(dataset.counted() * share)
    train = Choice(lambda b, _: _positions(b) < cut, 1 - share, f"the first {1 - share:.0%}", by_place=True)
    held_out = Choice(lambda b, _: _positions(b) >= cut, share, f"the last {share:.0%}", by_place=True)
    return _parts(dataset, train, held_out)


def by_example(dataset: Dataset, valid: float | str, part: str = "valid") -> tuple[Dataset, Dataset]:
    """Single examples, selected by the hash of their position: always the same for the same files."""
    share = parse_share(valid)
    seed = _core.table_seed(f"gearshift split {part}")

    def is_valid(batch: Batch) -> Mask:
        return _is_drawn(_positions(batch), seed, share)

    train = Choice(lambda b, _: ~is_valid(b), 1 - share, f"{1 - share:.0%} by hash")
    held_out = Choice(lambda b, _: is_valid(b), share, f"{share:.0%} by hash")
    return _parts(dataset, train, held_out)


def _is_drawn(ids: Ids, seed: int, share: float) -> Mask:
    mixed = np.empty(len(ids), np.int64)
    _core.hash_numbers(ids, seed, mixed)
    drawn: Mask = mixed < int(share * (1 << 63))
    return drawn


def _time_at(dataset: Dataset, share: float) -> int:
    """The time before which this share of the examples lies. Reads the time column once."""
    examples = dataset.examples
    if not isinstance(examples, MemoryExamples):
        examples = examples.with_schema(Schema((), (), dataset.schema.time))
    times = np.concatenate([_times(block)[::TIME_STEP] for block in examples.blocks(0)])
    return int(np.quantile(times, share, method="higher"))


def check_parts(
    train: Dataset, valid: Dataset | None, test: Dataset | None, allow_overlap: bool = False
) -> None:
    """Refuse parts with a common file, and a later part that starts before an earlier one ends.

    Parts of one log may overlap in time (a hash split); they have no example in common.
    """
    if allow_overlap:
        return
    named = [(name, part) for name, part in (("train", train), ("valid", valid), ("test", test)) if part]
    for i, (later, after) in enumerate(named):
        for earlier, before in named[:i]:
            if not _are_cut_from_one_log(before, after):
                _check_files(earlier, before, later, after)
            elif _is_cut_across_time(before) and _is_cut_across_time(after):
                continue
            _check_times(earlier, before, later, after)


def _check_files(earlier: str, before: Dataset, later: str, after: Dataset) -> None:
    files = _files(before.examples)
    shared = sorted(path for path in _files(after.examples) if path in files)
    if shared:
        raise UserError(
            f"{Path(shared[0]).name} is in data.{earlier} and in data.{later}: the score would include "
            "training examples. Use other files, set data.split, or set data.allow_overlap=true"
        )


def _check_times(earlier: str, before: Dataset, later: str, after: Dataset) -> None:
    span, later_span = before.time_range(), after.time_range()
    if span is None or later_span is None or later_span[0] >= span[1]:
        return
    starts, ends = _day(later_span[0]), _day(span[1])
    if starts == ends:
        starts, ends = _moment_words(later_span[0]), _moment_words(span[1])
    raise UserError(
        f"{later} starts {starts}, before {earlier} ends {ends}: future data would leak into the score. "
        "Move the split, or set data.allow_overlap=true"
    )


def _are_cut_from_one_log(a: Dataset, b: Dataset) -> bool:
    both = isinstance(a.examples, FilteredExamples) and isinstance(b.examples, FilteredExamples)
    return both and _log(a.examples) == _log(b.examples)


def _is_cut_across_time(dataset: Dataset) -> bool:
    examples = dataset.examples
    return isinstance(examples, FilteredExamples) and examples.choice.bounds == (None, None)


def _log(examples: Examples) -> object:
    """The log that the examples come from: the same value for all its parts."""
    if isinstance(examples, FilteredExamples | HeadExamples):
        return _log(examples.inner)
    return _files(examples) or id(getattr(examples, "source", examples))


def _files(examples: Examples) -> frozenset[str]:
    """The files that the examples are read from, with canonical names."""
    if isinstance(examples, FilteredExamples | HeadExamples):
        return _files(examples.inner)
    if isinstance(examples, RawExamples):
        return frozenset(_one_name(file.path) for file in examples.source.files)
    return frozenset({_one_name(examples.folder)} if isinstance(examples, PreparedExamples) else ())


def _one_name(path: str | Path) -> str:
    return str(path) if "://" in str(path) else str(Path(path).expanduser().resolve())


def parse_moment(text: str) -> int:
    """Epoch seconds of an ISO date or time, parsed like a time column."""
    data = np.frombuffer(text.encode(), np.uint8)
    out = np.zeros(1, np.int64)
    spans = np.array([[0, len(data)]], np.uint32)
    if len(data) == 0 or _core.parse_times(data, spans, 0, out) == 0:
        raise UserError(f"'{text}' is not a date or time; write one such as 2026-11-08 or 2026-11-08T12:00.")
    return int(out[0])


def parse_duration(text: str) -> int | None:
    """Seconds of "1d", "12h", "30min"; None if it is not a duration."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|w)", text.strip())
    return int(float(match[1]) * UNITS[match[2]]) if match else None


def parse_share(value: float | str) -> float:
    try:
        share = (
            float(value.strip().removesuffix("%")) / 100
            if isinstance(value, str) and "%" in value
            else float(value)
        )
    except ValueError:
        raise UserError(f"'{value}' is neither a share (10%, 0.1) nor a duration (1d).") from None
    if not 0 < share < 1:
        raise UserError(f"the share {value} must lie between 0 and 1.")
    return share


def days_in_words(first: int, last: int) -> str:
    """2026-11-01..07, or ..2026-12-03 if the month differs."""
    a, b = _day(first), _day(last)
    return a if a == b else f"{a}..{b[8:] if a[:7] == b[:7] else b}"


def _day(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def _moment_words(seconds: int) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%d" if seconds % DAY == 0 else "%Y-%m-%d %H:%M:%S")


def _times(batch: Batch) -> NDArray[np.int64]:
    assert batch.times_B is not None
    return batch.times_B


def _positions(batch: Batch) -> NDArray[np.int64]:
    return batch.first + np.arange(len(batch), dtype=np.int64)


def _parts(dataset: Dataset, train: Choice, valid: Choice) -> tuple[Dataset, Dataset]:
    from gearshift.data.dataset import Dataset

    return Dataset(FilteredExamples(dataset.examples, train)), Dataset(
        FilteredExamples(dataset.examples, valid)
    )
