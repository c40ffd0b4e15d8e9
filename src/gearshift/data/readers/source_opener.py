"""Opens a source named by the user: detects its format and layout, and checks that its files agree.

criteo   Criteo Kaggle and Terabyte: label, I1-I13, C1-C26, tabs, no header
avazu    Avazu: CSV with a header; `hour` (yymmddHH) is the time
libfm    "label index:1 ...": fields f1, f2, ... if all lines have the same number, otherwise one bag `features`
csv      any delimited text        jsonl    a JSON object per line
parquet  any Parquet               and any object with __arrow_c_stream__
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from gearshift.data.columns import floats
from gearshift.data.examples import RawSource
from gearshift.data.readers.csv_format import CsvFormat
from gearshift.data.readers.delimited import TextLayout
from gearshift.data.readers.duplicate_files import copy_remarks
from gearshift.data.readers.files import DataFile, encoding_name, find_files
from gearshift.data.readers.formats import FORMATS, JSON_ENDINGS, PARQUET_ENDINGS
from gearshift.data.readers.json_lines import find_json_layout
from gearshift.data.readers.public_logs import KNOWN_LOGS
from gearshift.data.readers.sniff import (
    AVAZU_START,
    CRITEO_COLUMNS,
    Sniffed,
    header_names,
    sample_text,
    sniff,
)
from gearshift.data.readers.tables import ParquetSource, TableSource
from gearshift.data.readers.text import TextSource
from gearshift.data.readers.unsupported import is_json_lines
from gearshift.data.schema import Bag, Categorical, Label, Schema
from gearshift.errors import UserError

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Any


def libfm_schema(raw: RawSource) -> Schema:
    """libfm labels are 0 and 1, or -1 and 1. In both cases 1 is a click."""
    names, label = raw.columns[1:], Label("label", positive="1")
    if tuple(names) == ("features",):
        return Schema((Bag("features", separator=" ", pool="sum", max_len=1000),), (label,))
    return Schema(tuple(Categorical(name) for name in names), (label,))


def refuse_other_libfm_labels(raw: RawSource) -> None:
    """Used if no label is configured: refuses ratings and counts, which would be read as no click unless 1."""
    for block in raw.starts("label"):
        values = floats(block.columns["label"], lambda _i, _text: None)
        for i in np.flatnonzero(~np.isin(values, (-1.0, 0.0, 1.0)) & ~np.isnan(values))[:1]:
            raise UserError(
                f"{block.place(int(i))}: the label is {values[i]:g}, and libfm's labels are 0 and 1, or -1 and 1. Set "
                "which values mean a click: data.label={column: label, positive: '>= 4'} (in Python: "
                'gs.infer_schema(path, label="label", positive=">= 4"))'
            )


def builtin_schema(format: str, raw: RawSource) -> Schema | None:
    """The schema of a format with fixed columns."""
    if format == "libfm":
        return libfm_schema(raw)
    return KNOWN_LOGS.get(format)


def is_table(source: object) -> bool:
    return hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")


def format_of_more(source: Source, trained_on: str) -> str:
    """The format of data that a trained model reads; it may differ from the format of the training data."""
    if is_table(source) or trained_on == "prepared":
        return "auto"
    ending = find_files(source)[0].ending
    if ending in (*JSON_ENDINGS, *PARQUET_ENDINGS) or trained_on in ("jsonl", "parquet"):
        return "auto"
    return trained_on


def open_source(
    source: Source,
    *,
    format: str = "auto",
    csv: CsvFormat = CsvFormat(),
    expected: frozenset[str] = frozenset(),
) -> tuple[RawSource, str]:
    """(raw columns, format). `expected` are the schema's columns; they help to recognise a header."""
    if format not in FORMATS:
        raise UserError(f"unknown data.format `{format}`; it is one of {', '.join(FORMATS)}.")
    if is_table(source):
        return TableSource(pa.table(source)), "table"
    files = find_files(source)
    for file in files:
        if file.size == 0:
            raise UserError(f"{file.path} is empty.")
    return _open_files(files, format, csv, expected)


def file_remarks(raw: RawSource) -> tuple[str, ...]:
    """Warnings about how the files are read. Opens files that may be duplicates."""
    return (*raw.remarks, *copy_remarks(raw.files))


def _open_files(
    files: tuple[DataFile, ...], format: str, csv: CsvFormat, expected: frozenset[str]
) -> tuple[RawSource, str]:
    if format == "parquet" or (format == "auto" and files[0].ending in PARQUET_ENDINGS):
        return ParquetSource(files), "parquet"
    if csv.encoding is not None:
        files = tuple(replace(file, encoding=encoding_name(csv.encoding)) for file in files)
    if format == "jsonl" or (format == "auto" and is_json_lines(files[0], sample_text(files[0]))):
        return TextSource(files, find_json_layout(files, csv.null, expected)), "jsonl"
    sniffed = _stated(format, files[0]) or sniff(files[0], csv, expected, format)
    if sniffed.header:
        _check_headers(files, sniffed, stated=csv.columns is not None)
    if sniffed.format == "libfm":
        sniffed = _check_libfm(files, sniffed, expected)
    return TextSource(files, _layout(sniffed, csv)), sniffed.format


def _stated(format: str, file: DataFile) -> Sniffed | None:
    """A format that was named by the user and needs no detection."""
    if format == "criteo":
        return Sniffed("criteo", "\t", False, CRITEO_COLUMNS, quote="")
    if format in ("libfm", "avazu"):
        sniffed = sniff(file)
        if sniffed.format != format:
            expected = (
                '"label index:1 index:1 ..."' if format == "libfm" else f'"{",".join(AVAZU_START)},..."'
            )
            raise UserError(
                f"{file.path} does not look like {format}: expected lines like {expected}; see data.format"
            )
        return sniffed
    return None


def _check_headers(files: Sequence[DataFile], first: Sniffed, stated: bool) -> None:
    """Check that all files have the same columns in the same order. `stated` names may rename but not reorder."""
    for file in files if stated else files[1:]:
        columns = header_names(file, first)
        if stated and columns != first.columns and sorted(columns) == sorted(first.columns):
            raise UserError(f"{file.path} line 1: {_difference(columns, first.columns)} data.csv.columns.")
        if not stated and columns != first.columns:
            raise UserError(f"{file.path} line 1: {_difference(columns, first.columns)} {files[0].path}.")


def _difference(columns: Sequence[str], first: Sequence[str]) -> str:
    missing = [name for name in first if name not in columns]
    added = [name for name in columns if name not in first]
    if missing:
        return f"the header lacks column `{missing[0]}`, which is in"
    if added:
        return f"the header has a column `{added[0]}` that is not in"
    at = next(i for i, name in enumerate(columns) if name != first[i])
    return f"the header has column `{columns[at]}` where `{first[at]}` is in"


def _check_libfm(files: Sequence[DataFile], first: Sniffed, expected: frozenset[str]) -> Sniffed:
    """Read libfm as one bag if a file has lines of another length, or if the schema has the column `features`."""
    same = "features" not in expected and all(sniff(file).columns == first.columns for file in files[1:])
    return first if same else replace(first, columns=("label", "features"))


def _layout(sniffed: Sniffed, csv: CsvFormat) -> TextLayout:
    libfm = sniffed.format == "libfm"
    return TextLayout(
        sniffed.columns,
        sniffed.delimiter,
        sniffed.quote,
        sniffed.header,
        csv.null,
        sniffed.trim,
        sniffed.decimal,
        libfm=libfm,
        rest_in_last=libfm and len(sniffed.columns) == 2,
        counted_by=_counted_by(sniffed, csv),
        quoted_lines=csv.quoted_lines,
        escape=sniffed.escape,
        thousands=sniffed.thousands,
        marks_doubts=sniffed.remarks,
        marks_stated=_stated_marks(csv) if sniffed.format == "csv" else None,
        header_line=sniffed.header_line,
    )


def _stated_marks(csv: CsvFormat) -> tuple[str | None, str | None]:
    return csv.decimal, "" if csv.thousands == "none" else csv.thousands


def _counted_by(sniffed: Sniffed, csv: CsvFormat) -> str:
    if csv.columns is not None:
        return "data.csv.columns"
    if sniffed.format == "criteo":
        return "Criteo's format"
    return "the header" if sniffed.header else "the first line"
