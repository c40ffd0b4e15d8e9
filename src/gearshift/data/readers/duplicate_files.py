"""Detection of duplicate files in a data set: day.csv next to day.csv.gz, or `day (1).csv` saved by a browser.

Examples in duplicates would count twice, and validation examples could be used for training. The check is cheap: it
opens only files with equal size, or with the same name apart from the compression, and reads only their ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import pyarrow.parquet as pq

from gearshift.data.readers.files import DataFile, open_raw
from gearshift.data.readers.formats import COMPRESSIONS, PARQUET_ENDINGS

END_BYTES = 1 << 16
MOST_COMPARED = 1000  # files that share their size with another file


def copy_remarks(files: Sequence[DataFile]) -> tuple[str, ...]:
    """One warning, if the same file occurs twice."""
    copies = list(_copies(files))
    if not copies:
        return ()
    first, second = copies[0]
    more = f" ({len(copies) - 1:,} more duplicates)" if len(copies) > 1 else ""
    if first.path == second.path:
        return (f"{first.path} is listed twice{more}: its examples are read twice. List it once",)
    return (
        f"{second.path} seems to hold the same examples as {first.path}{more}: they are read twice. Move one of "
        "them away, or list the files explicitly",
    )


def _copies(files: Sequence[DataFile]) -> Iterator[tuple[DataFile, DataFile]]:
    """(file, another file with the same content)."""
    by_size: dict[int, list[DataFile]] = defaultdict(list)
    by_name: dict[str, list[DataFile]] = defaultdict(list)
    for file in files:
        by_size[file.size].append(file)
        by_name[_without_compression(file)].append(file)
    for alike in by_name.values():
        yield from ((alike[0], file) for file in alike[1:] if _same_start(alike[0], file))
    compared = [file for alike in by_size.values() if len(alike) > 1 for file in alike][:MOST_COMPARED]
    known: dict[tuple[int, bytes], DataFile] = {}
    for file in compared:
        first = known.setdefault((file.size, _ends(file)), file)
        if first is not file and first.path != file.path and _has_examples(file):
            yield first, file


def _without_compression(file: DataFile) -> str:
    ending = next((ending for ending in COMPRESSIONS if file.path.lower().endswith(ending)), "")
    return file.path[: len(file.path) - len(ending)]


def _same_start(one: DataFile, other: DataFile) -> bool:
    if one.path == other.path:
        return True
    return one.head(END_BYTES)[0] == other.head(END_BYTES)[0] and _has_examples(one)


def _ends(file: DataFile) -> bytes:
    with open_raw(file) as stream:
        start: bytes = stream.read(END_BYTES)
        stream.seek(max(file.size - END_BYTES, 0))
        return start + bytes(stream.read(END_BYTES))


def _has_examples(file: DataFile) -> bool:
    """Files of hours without clicks are equal: they hold a header or a Parquet footer and nothing else."""
    if file.ending in PARQUET_ENDINGS:
        with open_raw(file) as stream:
            return bool(pq.ParquetFile(stream).metadata.num_rows)
    return len(file.head(END_BYTES)[0].splitlines()) > 1
