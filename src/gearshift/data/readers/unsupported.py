"""Recognises files that are neither text nor Parquet, by their first bytes or extension, and suggests a conversion.

The content decides. The extension is used only if the content is not text.
"""

from __future__ import annotations

import json
import re

from gearshift.data.readers.files import DataFile
from gearshift.data.readers.formats import JSON_ENDINGS
from gearshift.errors import UserError

UTF_16 = (
    "is UTF-16 text; name its encoding: data.csv={encoding: utf-16}, or convert it: iconv -f UTF-16 -t UTF-8"
)
EXCEL = (
    "is an Excel workbook; save the sheet as CSV, or write Parquet: pandas.read_excel(...).to_parquet(...)"
)
ARROW = "is an Arrow IPC (Feather) file; write Parquet: pandas.read_feather(...).to_parquet(...)"
PICKLE = (
    "is a Python pickle, which is never loaded: it can run code; write Parquet instead: df.to_parquet(...)"
)
SQLITE = 'is an SQLite database; write the table as CSV: sqlite3 -header -csv FILE "select * from TABLE" > clicks.csv'
ORC = "is an ORC file; write Parquet: pandas.read_orc(...).to_parquet(...)"
AVRO = "is an Avro file; write Parquet, or JSON lines: avro-tools tojson FILE > clicks.jsonl"
HDF5 = "is an HDF5 file; write Parquet: pandas.read_hdf(...).to_parquet(...)"
NUMPY = "is a NumPy array, which has no column names; write CSV or Parquet with a name for each column"
ZIP = "is a zip archive; unpack it first: unzip FILE"
TAR = "is a tar archive; unpack it first: tar -xf FILE"
MARKUP = "is an XML or HTML document, not a table; write CSV, JSON lines or Parquet"
TFRECORD = "is a TFRecord file; write CSV, JSON lines or Parquet"
STATISTICS = "is a file of a statistics program; write Parquet: pandas.read_sas, pandas.read_stata"
OLD_LINE_ENDS = (
    "has lines that end in a carriage return alone; convert it: tr '\\r' '\\n' < FILE > clicks.csv"
)
DELIMITER_NOTE = (
    "begins with a note for Excel ({}) instead of a header; remove that line: tail -n +2 FILE > clicks.csv"
)
OTHER_ARCHIVE = "is an archive of a kind that is not read; unpack it, or compress it with gzip or zstd"

MAGIC = {
    b"\xff\xfe": UTF_16,
    b"\xfe\xff": UTF_16,
    b"\x1f\x8b": "is gzip-compressed; its name must end in .gz.",
    b"\x28\xb5\x2f\xfd": "is zstd-compressed; its name must end in .zst.",
    b"BZh": "is bzip2-compressed; its name must end in .bz2.",
    b"\x04\x22\x4d\x18": "is lz4-compressed; its name must end in .lz4.",
    b"\xfd7zXZ\x00": "is xz-compressed; unpack it, or compress it with gzip or zstd: xz -d FILE",
    b"7z\xbc\xaf": OTHER_ARCHIVE,
    b"Rar!": OTHER_ARCHIVE,
    b"PAR1": "is a Parquet file; set data.format=parquet",
    b"Obj\x01": AVRO,
    b"ORC": ORC,
    b"ARROW1": ARROW,
    b"FEA1": ARROW,
    b"SQLite format 3\x00": SQLITE,
    b"\x89HDF": HDF5,
    b"\x93NUMPY": NUMPY,
    b"\xd0\xcf\x11\xe0": EXCEL,
    b"<?xml": MARKUP,
    b"<!DOCTYPE": MARKUP,
    b"<!doctype": MARKUP,
    b"<html": MARKUP,
    b"%PDF": "is a PDF document, not a table; write CSV, JSON lines or Parquet",
}
ENDINGS = {
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), PICKLE),
    **dict.fromkeys((".tfrecord", ".tfrecords"), TFRECORD),
    **dict.fromkeys((".xls", ".xlsx", ".xlsb", ".ods"), EXCEL),
    **dict.fromkeys((".npy", ".npz"), NUMPY),
    **dict.fromkeys((".sas7bdat", ".dta", ".rds", ".rdata"), STATISTICS),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3", ".duckdb"), SQLITE),
    **dict.fromkeys((".feather", ".arrow", ".ipc"), ARROW),
    ".avro": AVRO,
    ".orc": ORC,
    ".h5": HDF5,
    ".hdf5": HDF5,
    ".zip": ZIP,
    ".tar": TAR,
    ".tgz": TAR,
}
# A pickle of protocol 2 to 5 starts with its number; the following bytes distinguish it from text in an unusual
# encoding.
EXCEL_NOTE = re.compile(rb'(?:\xef\xbb\xbf)?("?sep=.{1,2}?"?)\r?\n', re.IGNORECASE)
PICKLE_START = re.compile(rb"\x80[\x02-\x05][\x00-\x7f\x8c\x95]")


def refuse_foreign(file: DataFile, start: bytes) -> None:
    """Raise UserError if a file that should be text starts like another format."""
    sentence = _by_content(start)
    if sentence is None and b"\0" in start:
        unknown = f"is not a text file (byte 0 at {start.index(0):,}); see data.format"
        sentence = ENDINGS.get(file.ending, unknown)
    sentence = sentence or _odd_lines(start)
    if sentence is not None:
        raise UserError(f"{file.path} {sentence}")


def _odd_lines(start: bytes) -> str | None:
    """Text whose lines cannot be read as they are."""
    if b"\n" not in start and b"\r" in start.rstrip(b"\r"):
        return OLD_LINE_ENDS
    note = EXCEL_NOTE.match(start)
    return None if note is None else DELIMITER_NOTE.format(note[1].decode("utf-8", "replace"))


def _by_content(start: bytes) -> str | None:
    if start.startswith(b"PK\x03\x04"):
        is_excel = b"xl/" in start or b"[Content_Types].xml" in start[:200]
        return EXCEL if is_excel else NUMPY if b".npy" in start[:200] else ZIP
    if PICKLE_START.match(start):
        return PICKLE
    if start[257:262] == b"ustar":
        return TAR
    return next((sentence for magic, sentence in MAGIC.items() if start.startswith(magic)), None)


def is_json_lines(file: DataFile, text: str) -> bool:
    """Whether the file has one JSON object per line. Other JSON is refused, with a command that converts it."""
    start = text.lstrip()
    if re.match(r"\[\s*\{", start) or (start.startswith("[") and file.ending in JSON_ENDINGS):
        raise UserError(
            f"{file.path} is one JSON array; write one object per line: jq -c '.[]' {file.path} > clicks.jsonl"
        )
    if not start.startswith("{"):
        return file.ending in JSON_ENDINGS
    first, _, rest = start.partition("\n")
    if _is_object(first):
        return True
    if re.match(r'\s*("|\})', rest) and re.fullmatch(r'\{\s*("[^"]*"\s*:.*[,{\[])?\s*', first):
        raise UserError(
            f"{file.path} holds JSON over several lines; write one object per line: "
            f"jq -c . {file.path} > clicks.jsonl"
        )
    return file.ending in JSON_ENDINGS


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
