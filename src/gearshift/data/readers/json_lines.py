"""JSON lines: one object per line. Its keys are columns; `user.id` is the key `id` of the object `user`.

Lines may differ in their keys; an absent key is a missing value. The full set of columns is therefore not known in
advance: it contains the keys at the start of the files, and keys named by a schema that occur later.
`json_lines.h` splits the lines. A value is its text, so "17" and 17 are the same category, as in a CSV file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gearshift import _core
from gearshift.data.columns import Bytes
from gearshift.data.readers.bad_lines import ALLOW_SOME
from gearshift.data.readers.cut import BadText, TextRecords
from gearshift.data.readers.files import ByteStream, DataFile
from gearshift.errors import UserError

SAMPLE_BYTES = 8 << 20  # read from the first file
OTHERS_BYTES = 64 << 10  # read from each other file
OBJECTS, LISTS_OF_OBJECTS, LISTS_OF_LISTS, LISTS = 8, 4, 2, 1  # Nesting in json_lines.h
WORDS = {
    OBJECTS: "structs",
    LISTS_OF_OBJECTS: "lists of structs",
    LISTS_OF_LISTS: "lists of lists",
    LISTS: "lists",
}


@dataclass(frozen=True)
class JsonLayout:
    columns: tuple[str, ...]
    null: tuple[str, ...] = ("",)
    header: bool = False
    decimal: str = "."
    thousands: str = ""
    is_json: bool = True
    doubts_quotes: bool = False

    def cutter(self, wanted: tuple[str, ...]) -> JsonCutter:
        return JsonCutter(wanted)


class JsonCutter:
    def __init__(self, wanted: tuple[str, ...]) -> None:
        self._wanted = list(wanted)

    def cut(self, text: Bytes, size: int, last: bool, room: int, line: int) -> TextRecords:
        spans = np.empty((room, len(self._wanted), 2), np.uint32)
        lines = np.empty(room, np.uint32)
        records, consumed, passed, bad, nesting = _core.split_json(
            text, size, self._wanted, last, spans, lines
        )
        return TextRecords(
            spans[:records],
            lines[:records] + line,
            consumed,
            passed,
            records == room,
            [_bad_text(line, *record) for record in bad],
            nested={
                name: nested
                for name, kind in zip(self._wanted, nesting, strict=True)
                if (nested := _nesting_name(kind)) is not None
            },
        )


def _bad_text(before: int, line: int, character: int, reason: str) -> BadText:
    return BadText(before + line, f"not a JSON object: {reason} at character {character + 1:,}", ALLOW_SOME)


def _nesting_name(nesting: int) -> str | None:
    return next((words for bit, words in WORDS.items() if nesting & bit), None)


def find_json_layout(
    files: Sequence[DataFile], null: tuple[str, ...], expected: frozenset[str]
) -> JsonLayout:
    """The layout of the files. Columns that the schema names (`expected`) are searched for beyond the samples."""
    columns: dict[str, None] = {}
    for number, file in enumerate(files):
        data, _ = file.head(OTHERS_BYTES if number else SAMPLE_BYTES)
        columns |= dict.fromkeys(_paths(np.frombuffer(bytearray(data), np.uint8)))
    if not columns:
        _refuse_other_text(files[0])
    late = sorted(expected - set(columns))
    for file in files if late else ():
        columns |= dict.fromkeys(_search(file, late))
        late = [name for name in late if name not in columns]
    return JsonLayout(tuple(columns), null)


def _refuse_other_text(file: DataFile) -> None:
    data, _ = file.head(OTHERS_BYTES)
    if not data:
        raise UserError(f"{file.path} is empty.")
    text = np.frombuffer(bytearray(data), np.uint8)
    for bad in JsonCutter(()).cut(text, len(text), True, 1, 0).bad:
        raise UserError(f"{file.path} line {bad.line + 1:,}: {bad.reason}; see data.format")


def _paths(data: Bytes) -> list[str]:
    return _core.json_paths(data, len(data))


def _search(file: DataFile, names: Sequence[str]) -> set[str]:
    """The columns among `names` that occur anywhere in the file."""
    present: set[str] = set()
    with ByteStream(file) as stream:
        carry = b""
        buffer = bytearray(SAMPLE_BYTES)
        while len(present) < len(names) and (got := stream.read_into(memoryview(buffer))):
            data = carry + bytes(buffer[:got])
            end = data.rfind(b"\n") + 1 if got == len(buffer) else len(data)
            present.update(set(_paths(np.frombuffer(bytearray(data[:end]), np.uint8))) & set(names))
            carry = data[end:]
    return present
