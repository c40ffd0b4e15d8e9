"""From what a user names to raw columns: which format it is, how it is cut, whether the files agree.

criteo   Criteo Kaggle and Terabyte: label, I1-I13, C1-C26, tabs, no header
avazu    Avazu: CSV with a header; `hour` (yymmddHH) is the time
libfm    "label index:1 ...": fields f1, f2, ... if all lines have as many, otherwise one bag `features`
csv      any delimited text        jsonl    a JSON object per line
parquet  any Parquet               and any object with __arrow_c_stream__
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from gearshift.data.examples import RawSource
from gearshift.data.readers.delimited import TextLayout
from gearshift.data.readers.duplicate_files import copy_remarks
from gearshift.data.readers.files import JSON_ENDINGS, PARQUET_ENDINGS, DataFile, encoding_name, find_files
from gearshift.data.readers.json_lines import find_json_layout
from gearshift.data.readers.public_logs import KNOWN_LOGS
from gearshift.data.readers.sniff import (
    AVAZU_START,
    CRITEO_COLUMNS,
    CsvFormat,
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

FORMATS = ("auto", "csv", "criteo", "avazu", "libfm", "jsonl", "parquet", "prepared")
Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Any


def libfm_schema(raw: RawSource) -> Schema:
    """Labels of libfm are 0 and 1, or -1 and 1: whichever of these a file has, 1 is a click."""
    names, label = raw.columns[1:], Label("label", positive="1")
    if tuple(names) == ("features",):
        return Schema((Bag("features", separator=" ", pool="sum", max_len=1000),), (label,))
    return Schema(tuple(Categorical(name) for name in names), (label,))


def builtin_schema(format: str, raw: RawSource) -> Schema | None:
    """The schema of a format that fixes the meaning of its columns."""
    if format == "libfm":
        return libfm_schema(raw)
    return KNOWN_LOGS.get(format)


def is_table(source: object) -> bool:
    return hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")


def format_of_more(source: Source, trained_on: str) -> str:
    """The format of data that a model gets to see after its training: they may come in another one."""
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
    """(raw columns, format). `expected` are the schema's columns, which tell a header from a first line."""
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
    """Sentences for the user about how the files are read. Opens those that may be copies of each other."""
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
    """A format that the user named and that leaves nothing to find out."""
    if format == "criteo":
        return Sniffed("criteo", "\t", False, CRITEO_COLUMNS, quote="")
    if format in ("libfm", "avazu"):
        found = sniff(file)
        if found.format != format:
            expected = (
                '"label index:1 index:1 ..."' if format == "libfm" else f'"{",".join(AVAZU_START)},..."'
            )
            raise UserError(
                f"{file.path} does not look like {format}: expected lines like {expected}; see data.format"
            )
        return found
    return None


def _check_headers(files: Sequence[DataFile], first: Sniffed, stated: bool) -> None:
    """All files have the same columns in the same order; names that are `stated` replace others, but no order."""
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
    return f"the header has column `{columns[at]}` where `{first[at]}` stands in"


def _check_libfm(files: Sequence[DataFile], first: Sniffed, expected: frozenset[str]) -> Sniffed:
    """One file with lines of another length makes all of them one bag; so does a schema that asks for it."""
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
