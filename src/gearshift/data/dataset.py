"""A data set: examples by position, in batches of equal size, in order or shuffled, prefetched by a thread.

`read` opens one. The order of the examples in an epoch is defined in `reading_order`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Literal, get_args

from gearshift.data.batch import Batch
from gearshift.data.encode import wanted_columns
from gearshift.data.examples import (
    Examples,
    HeadExamples,
    MemoryExamples,
    RawExamples,
    locate,
)
from gearshift.data.missing_columns import MissingColumnsMode
from gearshift.data.prefetch import prefetched
from gearshift.data.readers.bad_lines import BadLine, BadLines
from gearshift.data.readers.csv_format import CsvFormat as CsvFormat
from gearshift.data.readers.generated import GeneratedExamples
from gearshift.data.readers.prepared import PreparedExamples, is_prepared, prepared_folder
from gearshift.data.readers.python_objects import as_table
from gearshift.data.readers.source_opener import (
    Source,
    builtin_schema,
    file_remarks,
    open_source,
    refuse_other_libfm_labels,
)
from gearshift.data.reading_order import ReadingOrder, cut, load
from gearshift.data.schema import TYPE_NAMES, Schema
from gearshift.data.synthetic import ClickLog
from gearshift.data.time_column import refuse_no_times
from gearshift.errors import UserError, unknown_name, warn
from gearshift.tables import html_table

PREFETCH_BATCHES = 8


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
    """Read examples from files, a DataFrame or an Arrow table according to `schema`.

    `source` is a path, a list of paths, a glob or a folder of CSV, TSV, JSON lines, libfm or Parquet files (text also
    as .gz or .zst), a folder made by `prepare`, any object with `__arrow_c_stream__` (pandas, polars, duckdb, datasets,
    pyarrow), a `Batch` or a `ClickLog`. Criteo, Avazu, libfm and prepared data have a built-in schema. Up to
    `bad_lines` unreadable lines are skipped and listed in `skipped`. `labelled=False` is for prediction: the label
    columns may be absent and are not read. With `missing_columns="as_missing"` feature columns may be absent too; such
    a feature is missing in every example. `csv.null` lists the texts that mean "missing"; if it is not set,
    `schema.null` does, which `infer_schema` fills.

    A list of dicts and a polars LazyFrame are read like the equivalent table.
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
    report: Callable[[str], None] | None,
    *,
    format: str = "auto",
    csv: CsvFormat = CsvFormat(),
    bad_lines: int | BadLines = 0,
    labelled: bool = True,
    missing_columns: MissingColumnsMode = "fail",
    label_stated: bool = False,
) -> Dataset:
    """Like `read`. `report` gets remarks about the files for the user; with None the checks for them are skipped.

    `label_stated`: the caller replaces the label of the schema that comes with the data.
    """
    if missing_columns not in get_args(MissingColumnsMode):
        raise unknown_name("missing_columns", missing_columns, get_args(MissingColumnsMode))
    if isinstance(source, Batch):
        return Dataset(MemoryExamples(source, _required(schema, "a Batch")))
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
    raw, detected = open_source(source, format=format, csv=csv, expected=expected)
    if schema is None:
        schema = _required(builtin_schema(detected, raw), detected)
        if detected == "libfm" and labelled and not label_stated:
            refuse_other_libfm_labels(raw)
    lines = BadLines(bad_lines) if isinstance(bad_lines, int) else bad_lines
    examples = RawExamples(raw, schema, lines, labelled=labelled, missing_columns=missing_columns)
    if examples.schema.time is not None:
        refuse_no_times(examples.source, examples.schema.time)
    if report is not None:  # with the number marks of the schema, if it has any
        for remark in file_remarks(examples.source):
            report(remark)
    return Dataset(examples)


def _required(schema: Schema | None, kind: str) -> Schema:
    if schema is None:
        raise UserError(f"reading {kind} needs a schema: gs.infer_schema(path) infers one.")
    return schema


class Dataset:
    """Examples in a fixed order. A data set is cheap to create and to keep; files are opened on first use."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples
        self._reading = ReadingOrder(examples)

    def __repr__(self) -> str:
        labels = ", ".join(label.column for label in self.schema.labels)
        return f"Dataset({self.examples.describe()[0]}; {len(self.schema.features)} features, label {labels})"

    def _repr_html_(self) -> str:
        """An HTML table with a row for each column that is read."""
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
        """The meaning of the columns."""
        return self.examples.schema

    @property
    def skipped(self) -> list[BadLine]:
        """The lines that were skipped so far (`bad_lines`)."""
        bad_lines: BadLines | None = getattr(self.examples, "bad_lines", None)
        return [] if bad_lines is None else bad_lines.listed()

    def count(self) -> int | None:
        """How many examples there are, if that is known without reading them."""
        return self._reading.count()

    def estimate(self) -> int:
        """The number of examples, or an estimate from the size of the files."""
        count = self.count()
        return self.examples.estimate() if count is None else count

    def counted(self) -> int:
        """The exact count; reads all data once if necessary."""
        return self._reading.counted()

    def batches(
        self, size: int, *, start: int = 0, shuffle: tuple[int, int] | None = None
    ) -> Generator[Batch]:
        """Consecutive batches of `size` examples from position `start` on. The last batch may be shorter.

        `shuffle=(seed, epoch)` permutes the examples. The order depends only on these two numbers.
        """
        if size < 1:
            raise ValueError(f"a batch has at least one example, not {size}")
        return prefetched(cut(self.blocks(start, shuffle), size), PREFETCH_BATCHES)

    def blocks(self, start: int = 0, shuffle: tuple[int, int] | None = None) -> Iterator[Batch]:
        """The same examples in pieces of any convenient size."""
        return self._reading.blocks(start, shuffle)

    def read(self, first: int, count: int, *, shuffle: tuple[int, int] | None = None) -> Batch:
        """Examples [first, first + count), fewer at the end. With `shuffle`, positions are those of `batches`.

        Compressed text is read from the start. If blocks are shuffled, all blocks mixed with this range are read.
        """
        return self._reading.read(first, count, shuffle)

    def in_memory(self) -> Dataset:
        """All examples, read now; later passes cost nothing."""
        return Dataset(MemoryExamples(load(self.examples), self.schema))

    def with_schema(self, schema: Schema) -> Dataset:
        """The same data, read with another schema."""
        return Dataset(self.examples.with_schema(schema))

    def head(self, n: int) -> Dataset:
        """The first `n` examples."""
        return Dataset(HeadExamples(self.examples, n))

    def fitted(self, reference: Dataset | None = None) -> Dataset:
        """The same examples with a fitted schema: means, spreads and buckets are learned from the data.

        A `Trainer` does this itself. In your own training loop, call it on the training data, and on other data with
        the training data as `reference`: `valid.fitted(train)`.
        """
        return fitted(self, reference, warn)

    def split(
        self, *, time: str | None = None, hash: str | Literal[True] | None = None, valid: float | str = "10%"
    ) -> tuple[Dataset, Dataset]:
        """(train, valid), split by a point in time (`time`), by a hash, or at the end of the log.

        `hash=True` selects single examples; `hash="user"` keeps all examples of a user together.

        `valid` is a share (0.1, "10%") or, with a time column, a duration at the end of the log ("1d", "12h").
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
        """The origin of these examples, as text: file and lines if they are known."""
        return locate(self.examples, first, count)

    def time_range(self) -> tuple[int, int] | None:
        """First and last time in epoch seconds, read from the ends of the files; None without a time column."""
        return self.examples.time_range()

    def describe(self) -> str:
        """A one-line description: `7 files, 2.1 GB; 2026-11-01..07. Ignored columns: request_id`."""
        from gearshift.data.split import days_in_words

        what, remark = self.examples.describe()
        span = self.time_range()
        days = f"; {days_in_words(*span)}" if span is not None else ""
        return what + days + (f". {remark}" if remark else "")


def fitted(dataset: Dataset, reference: Dataset | None, report: Callable[[str], None]) -> Dataset:
    """Like `Dataset.fitted`. `report` receives warnings about the spelling of ids."""
    from gearshift.data.fitted_transforms import fit_schema
    from gearshift.data.id_spellings import spelling_remarks
    from gearshift.data.separators import check_separators
    from gearshift.data.value_forms import marked, raw_examples

    check_separators(dataset.examples)
    raw = raw_examples(dataset.examples)
    for remark in spelling_remarks(raw.source, raw.schema.features) if raw is not None else ():
        report(remark)
    schema = reference.schema if reference is not None else marked(fit_schema(dataset), dataset.examples)
    return dataset if schema == dataset.schema else dataset.with_schema(schema)


def has_examples(dataset: Dataset) -> bool:
    """Whether there is at least one example. Reads the first."""
    with closing(dataset.batches(1)) as batches:
        return next(batches, None) is not None
