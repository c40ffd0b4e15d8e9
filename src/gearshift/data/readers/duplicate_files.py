"""The same file twice among the files of a data set: day.csv beside day.csv.gz, `day (1).csv` of a browser.

Their examples would count twice, and those of a validation set could be trained on. Cheap: only files of the same name
but for the compression, or of the same size, are opened, and only their ends are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import pyarrow.parquet as pq

from gearshift.data.readers.files import COMPRESSIONS, PARQUET_ENDINGS, DataFile, open_raw

END_BYTES = 1 << 16
MOST_COMPARED = 1000  # files of the same size as another


def copy_remarks(files: Sequence[DataFile]) -> tuple[str, ...]:
    """One sentence, if a file is there twice."""
    copies = list(_copies(files))
    if not copies:
        return ()
    first, again = copies[0]
    more = f" ({len(copies) - 1:,} more such)" if len(copies) > 1 else ""
    if first.path == again.path:
        return (f"{first.path} is named twice{more}: its examples are read twice. Name it once",)
    return (
        f"{again.path} seems to hold the same examples as {first.path}{more}: they are read twice. Move one of them "
        "out of the way, or name the files to read one by one",
    )


def _copies(files: Sequence[DataFile]) -> Iterator[tuple[DataFile, DataFile]]:
    """(a file, another with the same content)."""
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
    """Hours without a click have equal files: a header, or a Parquet footer, and nothing else."""
    if file.ending in PARQUET_ENDINGS:
        with open_raw(file) as stream:
            return bool(pq.ParquetFile(stream).metadata.num_rows)
    return len(file.head(END_BYTES)[0].splitlines()) > 1
