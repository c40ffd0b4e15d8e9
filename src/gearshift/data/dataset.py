"""A data set: examples by position, as batches of one size, in order or shuffled, read ahead by a thread.

The order of an epoch depends on (seed, epoch) alone. What fits into memory is shuffled as a whole; what does
not, by blocks: their order is permuted and 16 at a time are mixed (compressed text cannot jump, so its blocks
keep their order). A batch's `first` is its position in the epoch's order, so `start` resumes there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from threading import Lock
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gearshift.data.batch import Batch
from gearshift.data.encode import wanted_columns
from gearshift.data.examples import (
    Examples,
    HeadExamples,
    MemoryExamples,
    RawExamples,
    count_examples,
    locate,
)
from gearshift.data.missing_columns import MissingColumnsMode
from gearshift.data.prefetch import prefetched
from gearshift.data.readers.bad_lines import BadLine, BadLines
from gearshift.data.readers.generated import GeneratedExamples
from gearshift.data.readers.prepared import PreparedExamples, is_prepared, prepared_folder
from gearshift.data.readers.python_objects import as_table
from gearshift.data.readers.sniff import CsvFormat as CsvFormat
from gearshift.data.readers.sources import Source, builtin_schema, file_remarks, open_source
from gearshift.data.schema import TYPE_NAMES, Schema
from gearshift.data.synthetic import ClickLog
from gearshift.errors import UserError, unknown_name, warn
from gearshift.tables import html_table

PREFETCH_BATCHES = 8
BLOCK_EXAMPLES = 65_536
BLOCKS_MIXED = 16
IN_MEMORY_BYTES = 2 << 30


def read(
    source: Source | Batch | ClickLog,
    schema: Schema | None = None,
    *,
    format: str = "auto",
    csv: CsvFormat = CsvFormat(),
    bad_lines: int | BadLines = 0,
    labelled: bool = True,
    missing_columns: MissingColumnsMode = "fail",
) -> Dataset:
    """Examples of files, of a DataFrame or of an Arrow table, read as `schema` says.

    `source` is a path, a list of paths, a glob or a folder of CSV, TSV, JSON lines, libfm or Parquet files (text also
    as .gz or .zst), a folder made by `prepare`, any object with `__arrow_c_stream__` (pandas, polars, duckdb, datasets,
    pyarrow), a `Batch` or a `ClickLog`. Criteo, Avazu, libfm and prepared data know their schema. `bad_lines`
    lines that cannot be read are left out and listed in `skipped`. `labelled=False` is for prediction: the
    label columns may be absent and are not looked at. `missing_columns="as_missing"` lets feature columns be absent as
    well: such a feature is missing in every example. Which words of a text mean "missing" is `csv.null` where it
    is stated, otherwise `schema.null`, where `infer_schema` puts those that it finds.

    A list of dicts and a polars LazyFrame are read like the table that they make.
    """
    return open_dataset(
        source,
        schema,
        warn,
        format=format,
        csv=csv,
        bad_lines=bad_lines,
        labelled=labelled,
        missing_columns=missing_columns,
    )


def open_dataset(
    source: Source | Batch | ClickLog,
    schema: Schema | None,
    tell: Callable[[str], None] | None,
    *,
    format: str = "auto",
    csv: CsvFormat = CsvFormat(),
    bad_lines: int | BadLines = 0,
    labelled: bool = True,
    missing_columns: MissingColumnsMode = "fail",
) -> Dataset:
    """As `read`; `tell` hears what the user should know about the files. With None nobody looks for it."""
    if missing_columns not in get_args(MissingColumnsMode):
        raise unknown_name("missing_columns", missing_columns, get_args(MissingColumnsMode))
    if isinstance(source, Batch):
        return Dataset(MemoryExamples(source, _stated(schema, "a Batch")))
    if isinstance(source, ClickLog):
        return Dataset(GeneratedExamples(source))
    source = as_table(source)
    if isinstance(source, list) and len(source) == 1:
        source = source[0]
    if format == "prepared" or (format == "auto" and is_prepared(source)):
        return Dataset(PreparedExamples(prepared_folder(source), schema, labelled=labelled))
    if schema is not None and csv.null == CsvFormat().null:
        csv = replace(csv, null=schema.null)
    expected = frozenset() if schema is None else frozenset(wanted_columns(schema, labelled=labelled))
    raw, found = open_source(source, format=format, csv=csv, expected=expected)
    if schema is None:
        schema = _stated(builtin_schema(found, raw), found)
    lines = BadLines(bad_lines) if isinstance(bad_lines, int) else bad_lines
    examples = RawExamples(raw, schema, lines, labelled=labelled, missing_columns=missing_columns)
    if tell is not None:  # with the marks of the schema, if it has any
        for remark in file_remarks(examples.source):
            tell(remark)
    return Dataset(examples)


def _stated(schema: Schema | None, kind: str) -> Schema:
    if schema is None:
        raise UserError(f"reading {kind} needs a schema: gs.infer_schema(path) guesses one.")
    return schema


class Dataset:
    """Examples in a fixed order. Cheap to make and to keep; files are opened when examples are asked for."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples
        self._memory: Batch | None = None
        self._counted: int | None = None
        self._too_large = False
        self._order: tuple[tuple[int, int] | None, NDArray[np.int64]] = (None, np.empty(0, np.int64))
        self._loading = Lock()

    def __reduce__(self) -> tuple[type[Dataset], tuple[Examples]]:
        """To another process: what was read is read there again."""
        return Dataset, (self.examples,)

    def __repr__(self) -> str:
        labels = ", ".join(label.column for label in self.schema.labels)
        return f"Dataset({self.examples.describe()[0]}; {len(self.schema.features)} features, label {labels})"

    def _repr_html_(self) -> str:
        """A row for each column that is read."""
        known = vars(self.schema)
        rows = [{"column": label.column, "is": "label", "as": label.task} for label in self.schema.labels]
        for name in ("time", "group", "weight"):
            rows += [{"column": known[name], "is": name, "as": ""}] if known[name] else []
        for feature in self.schema.features:
            set_values = {
                k: v for k, v in vars(feature).items() if k not in ("name", "fit") and v is not None
            }
            words = ", ".join(f"{name}={value}" for name, value in set_values.items())
            rows.append({"column": feature.name, "is": TYPE_NAMES[type(feature)], "as": words})
        return html_table(rows, repr(self))

    @property
    def schema(self) -> Schema:
        """What the columns mean."""
        return self.examples.schema

    @property
    def skipped(self) -> list[BadLine]:
        """Lines that were left out so far (`bad_lines`)."""
        bad_lines: BadLines | None = getattr(self.examples, "bad_lines", None)
        return [] if bad_lines is None else bad_lines.listed()

    def count(self) -> int | None:
        """How many examples there are, if that is known without reading them."""
        return self._counted if self._counted is not None else self.examples.count()

    def estimate(self) -> int:
        """The count, or a guess from the size of the files."""
        count = self.count()
        return self.examples.estimate() if count is None else count

    def has_examples(self) -> bool:
        """Whether there is at least one; reads the first."""
        with closing(self.batches(1)) as batches:
            return next(batches, None) is not None

    def counted(self) -> int:
        """The exact count; reads through the data once if it has to."""
        if self.count() is None:
            self._counted = count_examples(self.examples)
        count = self.count()
        assert count is not None
        return count

    def batches(
        self, size: int, *, start: int = 0, shuffle: tuple[int, int] | None = None
    ) -> Generator[Batch]:
        """Consecutive batches of `size` examples, the last one shorter, from position `start` on.

        `shuffle=(seed, epoch)` permutes; the order depends on these two alone.
        """
        if size < 1:
            raise ValueError(f"a batch has at least one example, not {size}")
        return prefetched(cut(self.blocks(start, shuffle), size), PREFETCH_BATCHES)

    def blocks(self, start: int = 0, shuffle: tuple[int, int] | None = None) -> Iterator[Batch]:
        """The same examples in pieces of whatever size is at hand."""
        return self._ordered(start) if shuffle is None else self._shuffled(start, shuffle)

    def read(self, first: int, count: int, *, shuffle: tuple[int, int] | None = None) -> Batch:
        """Examples [first, first + count), fewer at the end; of a shuffled epoch as `batches` gives them.

        Compressed text is read again from the start; of what is shuffled in blocks, all that are mixed.
        """
        blocks = self._ordered(first) if shuffle is None else self._shuffled(first, shuffle, count)
        for batch in cut(blocks, count):
            return batch
        raise IndexError(f"there is no example {first}: the data end before it")

    def in_memory(self) -> Dataset:
        """All examples, read now; later passes cost nothing."""
        return Dataset(MemoryExamples(self._load(None), self.schema))

    def with_schema(self, schema: Schema) -> Dataset:
        """The same data, read as another schema says."""
        return Dataset(self.examples.with_schema(schema))

    def remarks(self, trained: Schema) -> dict[str, str]:
        """A sentence for each column that is absent, or written differently than in the training data of a model."""
        from gearshift.data.skew import remarks

        return remarks(self.examples, trained.forms)

    def head(self, n: int) -> Dataset:
        """The first `n` examples."""
        return Dataset(HeadExamples(self.examples, n))

    def fitted(self, reference: Dataset | None = None) -> Dataset:
        """The same examples with a schema that has learned what standardize, `missing: mean` and bucketize need.

        A `Trainer` does this itself; a loop of your own calls it on the training data, and on other data with these as
        `reference`: `valid.fitted(train)`.
        """
        return fitted(self, reference, warn)

    def split(
        self, *, time: str | None = None, hash: str | Literal[True] | None = None, valid: float | str = "10%"
    ) -> tuple[Dataset, Dataset]:
        """(train, valid): by a moment (`time`), by the hash of a column, or the last part of the log.

        `hash=True` draws single examples, `hash="user"` all examples of a user together.

        `valid` is a share (0.1, "10%"), with a time column also a duration at the end ("1d", "12h").
        """
        from gearshift.data import split

        if time is not None:
            return split.by_time(self, time)
        if hash is True:
            return split.by_example(self, valid)
        if hash is not None:
            return split.by_hash(self, hash, valid)
        return split.by_end(self, valid)

    def locate(self, first: int, count: int) -> str:
        """Where examples come from, in words: file and lines where that is known."""
        return locate(self.examples, first, count)

    def time_range(self) -> tuple[int, int] | None:
        """First and last epoch second, from the ends of the files; None without a time column."""
        return self.examples.time_range()

    def describe(self) -> str:
        """What it is, in a line: `7 files, 2.1 GB; 2026-11-01..07. Ignored columns: request_id`."""
        from gearshift.data.split import days_in_words

        what, remark = self.examples.describe()
        span = self.time_range()
        days = f"; {days_in_words(*span)}" if span is not None else ""
        return what + days + (f". {remark}" if remark else "")

    def _ordered(self, start: int) -> Iterator[Batch]:
        if self._memory is not None:
            return MemoryExamples(self._memory, self.schema).blocks(start)
        return self.examples.blocks(start)

    def _shuffled(self, start: int, shuffle: tuple[int, int], most: int = sys.maxsize) -> Iterator[Batch]:
        """In blocks of at most `most` examples, for who wants no more."""
        size = min(most, BLOCK_EXAMPLES)
        if self._fits_memory():
            assert self._memory is not None
            order = self._permutation(shuffle)
            for first in range(start, len(order), size):
                yield self._memory.take(order[first : first + size]).moved(first)
            return
        for position, window in self._windows(start, shuffle):
            order = np.random.default_rng((*shuffle, position)).permutation(len(window))
            for first in range(max(start - position, 0), len(order), size):
                yield window.take(order[first : first + size]).moved(position + first)

    def _permutation(self, shuffle: tuple[int, int]) -> NDArray[np.int64]:
        """Of all examples in memory; kept, because an epoch is read range by range too."""
        known, order = self._order
        if known != shuffle:
            assert self._memory is not None
            order = np.random.default_rng(shuffle).permutation(len(self._memory))
            self._order = (shuffle, order)
        return order

    def _windows(self, start: int, shuffle: tuple[int, int]) -> Iterator[tuple[int, Batch]]:
        """(position in the order, examples) of the blocks that are mixed; not those before `start`."""
        window = BLOCKS_MIXED * BLOCK_EXAMPLES
        if not self.examples.seekable:
            first = start // window * window
            for batch in cut(self.examples.blocks(first), window):
                yield batch.first, batch
            return
        count = self.counted()
        firsts = np.random.default_rng(shuffle).permutation(np.arange(0, count, BLOCK_EXAMPLES))
        position = 0
        for group in range(0, len(firsts), BLOCKS_MIXED):
            chosen = firsts[group : group + BLOCKS_MIXED]
            size = int(np.minimum(count - chosen, BLOCK_EXAMPLES).sum())
            if position + size > start:
                yield position, Batch.concat([self.read(int(f), BLOCK_EXAMPLES) for f in chosen])
            position += size

    def _fits_memory(self) -> bool:
        if self._memory is None and isinstance(self.examples, MemoryExamples):
            self._memory = self.examples.batch
        with self._loading:
            if self._memory is None and not self._too_large:
                try:
                    self._memory = self._load(IN_MEMORY_BYTES)
                except MemoryError:
                    self._too_large = True
        return self._memory is not None

    def _load(self, limit: int | None) -> Batch:
        """All examples as one batch; MemoryError if they need more than `limit` bytes."""
        blocks: list[Batch] = []
        size = 0
        for block in self.examples.blocks(0):
            size += block.memory_bytes()
            blocks.append(block)
            if limit is not None and size > limit:
                raise MemoryError
        if not blocks:
            raise UserError("there are no examples: the data are empty.")
        return Batch.concat(blocks)


def cut(blocks: Iterator[Batch], size: int) -> Iterator[Batch]:
    """Blocks of any size to batches of one size; copies only where a batch crosses the end of a block."""
    waiting: list[Batch] = []
    missing = size
    for block in blocks:
        at = 0
        while len(block) - at >= missing:
            waiting.append(block.slice(at, at + missing))
            yield Batch.concat(waiting)
            at += missing
            waiting, missing = [], size
        if at < len(block):
            waiting.append(block.slice(at, len(block)))
            missing -= len(block) - at
    if waiting:
        yield Batch.concat(waiting)


def fitted(dataset: Dataset, reference: Dataset | None, tell: Callable[[str], None]) -> Dataset:
    """As `Dataset.fitted`; `tell` hears what the user should know about the ids."""
    from gearshift.data.fitted_transforms import fit_schema
    from gearshift.data.id_spellings import spelling_remarks
    from gearshift.data.separators import check_separators
    from gearshift.data.value_forms import marked, raw_examples

    check_separators(dataset.examples)
    raw = raw_examples(dataset.examples)
    for remark in spelling_remarks(raw.source, raw.schema.features) if raw is not None else ():
        tell(remark)
    schema = reference.schema if reference is not None else marked(fit_schema(dataset), dataset.examples)
    return dataset if schema == dataset.schema else dataset.with_schema(schema)
