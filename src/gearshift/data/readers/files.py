"""The files of a data set: found by path, list, glob or folder, opened as bytes, decompressed by file extension.

Text in other encodings is converted to UTF-8 while it is read. Paths are local or any URI that `pyarrow.fs` supports
(s3://, gs://, hdfs://). This module does not look at the contents. A folder stands for all data files in it, at any
depth (dt=2026-11-01/part-0.parquet), sorted by path.
"""

from __future__ import annotations

import codecs
import fnmatch
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from gearshift.data.readers.formats import COMPRESSIONS, DATA_ENDINGS
from gearshift.errors import UserError, nearest_name

UTF_8 = "utf-8"


@dataclass(frozen=True)
class DataFile:
    path: str  # as the user wrote it
    size: int  # bytes, compressed
    encoding: str = UTF_8  # of text

    @property
    def compression(self) -> str | None:
        return COMPRESSIONS.get(os.path.splitext(self.path)[1].lower())  # noqa: PTH122 - may be an s3:// address

    @property
    def is_stream(self) -> bool:
        """Whether a position in the file can be reached only by reading from the start."""
        return self.compression is not None or self.encoding != UTF_8

    @property
    def ending(self) -> str:
        """The extension of the format: ".csv" for clicks.csv.gz."""
        stem = self.path.removesuffix(os.path.splitext(self.path)[1]) if self.compression else self.path  # noqa: PTH122
        return os.path.splitext(stem)[1].lower()  # noqa: PTH122

    def head(self, limit: int) -> tuple[bytes, bool]:
        """(the first decompressed bytes, whether they are the whole file)."""
        with ByteStream(self) as stream:
            buffer = bytearray(limit)
            got = stream.read_into(memoryview(buffer))
            return bytes(buffer[:got]), got < limit

    def tail(self, limit: int) -> bytes:
        """The complete lines in the last decompressed bytes. A stream is read from the start for this."""
        with ByteStream(self, 0 if self.is_stream else max(self.size - limit, 0)) as stream:
            end, piece = b"", bytearray(1 << 20)
            while got := stream.read_into(memoryview(piece)):
                end = (end + bytes(piece[:got]))[-limit:]
            return end[end.find(b"\n") + 1 :]

    def sample_lines(self, limit: int) -> tuple[int, int]:
        """(number of lines, bytes of the file) for its first `limit` decompressed bytes."""
        with ByteStream(self) as stream:
            buffer = bytearray(limit)
            got = stream.read_into(memoryview(buffer))
            lines = buffer.count(b"\n", 0, got)
            if got < limit:
                return lines + (got > 0 and buffer[got - 1] != ord("\n")), self.size
            return lines, stream.tell()


def find_files(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[DataFile, ...]:
    """All files that `source` names, in the given order; files of a glob or folder are sorted by path."""
    if isinstance(source, str | os.PathLike):
        return _find(os.fspath(source))
    try:
        files = [file for part in source for file in _find(os.fspath(part))]
    except TypeError:
        raise UserError(
            f"cannot read an object of type {type(source).__name__}: pass file names, or an object with "
            "__arrow_c_stream__ (pandas, polars, duckdb, pyarrow)."
        ) from None
    if not files:
        raise UserError("the list of data files is empty")
    return tuple(files)


def _find(pattern: str) -> tuple[DataFile, ...]:
    files = _find_remote(pattern) if "://" in pattern else _find_local(pattern)
    if not files:
        raise UserError(f"no such file: {pattern}{_why_no_match(pattern)}")
    return tuple(files)


def _find_local(pattern: str) -> list[DataFile]:
    path = Path(pattern).expanduser()
    if path.is_file():
        return [DataFile(pattern, path.stat().st_size)]
    if path.is_dir():
        inside = (p for p in path.rglob("*") if p.is_file() and _is_data(p.relative_to(path)))
        return [DataFile(str(p), p.stat().st_size) for p in sorted(inside)]
    if not any(c in pattern for c in "*?["):
        return []
    anchor = Path(path.anchor) if path.is_absolute() else Path()
    relative = str(path.relative_to(path.anchor)) if path.is_absolute() else str(path)
    files: list[DataFile] = []
    for match in sorted(anchor.glob(relative)):
        files += _find_local(str(match))
    return files


def _is_data(path: Path) -> bool:
    """Not hidden, not a marker such as _SUCCESS, and with the extension of a data file."""
    if any(part[0] in "._" for part in path.parts):
        return False
    return DataFile(path.name, 0).ending in DATA_ENDINGS


def _find_remote(pattern: str) -> list[DataFile]:
    magic = [i for i, c in enumerate(pattern) if c in "*?["]
    root = pattern[: pattern.rfind("/", 0, magic[0])] if magic else pattern
    filesystem, path = _filesystem(root)
    scheme = root.removesuffix(path)
    info = filesystem.get_file_info(path)
    if info.type == pafs.FileType.File:
        return [DataFile(pattern, info.size)]
    if info.type == pafs.FileType.NotFound:
        return []
    inside = filesystem.get_file_info(pafs.FileSelector(path, recursive=True))
    files = [DataFile(scheme + i.path, i.size) for i in inside if i.type == pafs.FileType.File]
    if magic:
        files = [f for f in files if fnmatch.fnmatchcase(f.path, pattern)]
    else:
        files = [f for f in files if _is_data(Path(f.path.removeprefix(root).lstrip("/")))]
    return sorted(files, key=lambda f: f.path)


def _filesystem(address: str) -> tuple[pafs.FileSystem, str]:
    try:
        filesystem, path = pafs.FileSystem.from_uri(address)
    except (pa.ArrowInvalid, OSError, NotImplementedError) as error:
        raise UserError(f"cannot open {address}: {error}") from None
    return filesystem, path


def _why_no_match(pattern: str) -> str:
    """A hint: similar files in the folder, such as files with another extension, or an empty folder."""
    if "://" in pattern:
        return ""
    folder = Path(pattern).expanduser().parent
    while not folder.is_dir() and any(c in str(folder) for c in "*?["):
        folder = folder.parent
    if not folder.is_dir():
        return f" (there is no folder {folder})"
    names = sorted(p.name for p in folder.iterdir() if p.is_file())
    name = Path(pattern).name
    bare = name.removesuffix(Path(name).suffix) if Path(name).suffix in COMPRESSIONS else name
    if bare != name and (close := fnmatch.filter(names, bare)):
        ending = Path(bare).suffix
        return f" (folder {folder}/ has {_files(close)} that end in {ending}: drop {Path(name).suffix}?)"
    for suffix in COMPRESSIONS:
        if close := fnmatch.filter(names, name + suffix):
            return f" (folder {folder}/ has {_files(close)} that end in {suffix}: add {suffix}?)"
    if Path(pattern).expanduser().is_dir():
        endings = ", ".join(DATA_ENDINGS)
        return (
            f" (the folder contains no data files; they end in {endings}, optionally followed by .gz or .zst)"
        )
    near = nearest_name(name, names)
    return f" (did you mean {folder / near}?)" if near else ""


def _files(names: Sequence[str]) -> str:
    return "1 file" if len(names) == 1 else f"{len(names)} files"


def hive_keys(path: str) -> dict[str, str]:
    """{"dt": "2026-11-01"} of clicks/dt=2026-11-01/part-0.parquet."""
    folders = path.split("/")[:-1]
    return {key: value for key, _, value in (f.partition("=") for f in folders if "=" in f)}


def open_raw(file: DataFile) -> pa.NativeFile:
    """The raw bytes of the file, with random access."""
    filesystem, path = (
        _filesystem(file.path) if "://" in file.path else (None, str(Path(file.path).expanduser()))
    )
    try:
        return pa.OSFile(path) if filesystem is None else filesystem.open_input_file(path)
    except OSError as error:
        raise UserError(f"cannot open {file.path}: {error}") from None


def encoding_name(name: str) -> str:
    """The canonical name of an encoding; "utf-8" also for its subsets."""
    try:
        codec = codecs.lookup(name)
        "a".encode(name)  # not every codec encodes text
    except LookupError:
        raise UserError(
            f"data.csv.encoding: no encoding is called `{name}`; common ones: utf-8, latin-1, cp1252, utf-16"
        ) from None
    return UTF_8 if codec.name in (UTF_8, "ascii", "utf-8-sig") else codec.name


class ByteStream:
    """The bytes of a file from `offset` on, decompressed and in UTF-8. Truncated files are errors."""

    def __init__(self, file: DataFile, offset: int = 0) -> None:
        self.file = file
        self._raw = open_raw(file)
        self._stream: Any = self._raw
        self.error: EarlyEnd | None = None
        # Read a compressed stream in small pieces, so that data before a damaged part is not lost.
        self._piece = 1 << 16 if file.compression else 1 << 30
        if file.compression is not None:
            self._stream = pa.CompressedInputStream(self._raw, file.compression)
        if file.encoding != UTF_8:
            self._stream = pa.lib.transcoding_input_stream(self._stream, file.encoding, UTF_8)
        if file.is_stream:
            self._skip(offset)
        elif offset:
            self._raw.seek(offset)

    def read_into(self, buffer: memoryview) -> int:
        """Fill the buffer. Fewer bytes are returned at the end of the file or before damaged data (`error`)."""
        filled = 0
        while filled < len(buffer):
            try:
                got = int(self._stream.readinto(buffer[filled : filled + self._piece]))
            except OSError as error:
                self.error = EarlyEnd(self.file, str(error))
                break
            except UnicodeError as error:
                raise UserError(
                    f"{self.file.path} cannot be read as {self.file.encoding}: {error}; see data.csv.encoding"
                ) from None
            if got == 0:
                break
            filled += got
        return filled

    def _skip(self, count: int) -> None:
        scratch = memoryview(bytearray(min(count, 1 << 20)))
        while count > 0:
            got = self.read_into(scratch[: min(count, len(scratch))])
            if got == 0:
                return
            count -= got

    def tell(self) -> int:
        """The position in the raw file."""
        return int(self._raw.tell())

    def close(self) -> None:
        if self._stream is not self._raw:
            self._stream.close()
        self._raw.close()

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class EarlyEnd:
    """A truncated or damaged compressed stream. The caller that counts examples reports it to the user."""

    file: DataFile
    detail: str

    def sentence(self, examples: int, neighbours: Iterable[DataFile]) -> str:
        kind = self.file.compression
        size = _megabytes(self.file.size)
        others = sorted(f.size for f in neighbours if f.path != self.file.path)
        other_sizes = f", the other files about {_megabytes(others[len(others) // 2])}" if others else ""
        if "runcated" in self.detail:
            return (
                f"{self.file.path}: the {kind} stream ends early after {examples:,} examples; "
                f"the copy is incomplete ({size}{other_sizes})."
            )
        return (
            f"{self.file.path}: the {kind} stream is damaged after {examples:,} examples ({self.detail}); "
            f"copy the file again ({size}{other_sizes})."
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size:,} bytes"
