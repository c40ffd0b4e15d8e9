"""The supported file formats and file extensions: plain values, so that a config can be read without pyarrow."""

from __future__ import annotations

from typing import Literal, get_args

FileFormat = Literal["auto", "csv", "criteo", "avazu", "libfm", "jsonl", "parquet", "prepared"]
FORMATS: tuple[str, ...] = get_args(FileFormat)
SELF_DESCRIBING = frozenset({"criteo", "avazu", "libfm", "prepared"})  # their columns need no description
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
PARQUET_ENDINGS = (".parquet", ".pq")
DATA_ENDINGS = (".csv", ".tsv", ".txt", ".libfm", ".libsvm", ".svm", *JSON_ENDINGS, *PARQUET_ENDINGS)
ENDINGS = (*DATA_ENDINGS, *COMPRESSIONS)  # also of compressed files
