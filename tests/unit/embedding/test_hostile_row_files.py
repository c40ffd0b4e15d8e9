"""Row files with valid checksums and wrong contents, by a bug or an attacker: each is refused in one sentence."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gearshift as gs
from gearshift._core import xxh64
from gearshift.embedding.frozen_rows import write_blocks
from gearshift.embedding.row_files import blocks_of
from gearshift.embedding.store import RowAdagrad, RowBlock, RowPart, RowStack
from gearshift.embedding.table_store import MemoryStore
from gearshift.errors import UserError
from gearshift.parameters.row_changes import by_partition
from tests.unit.embedding.row_reference import mix

BLOCK, ALL_BITS = 4096, (1 << 64) - 1
TAIL = struct.Struct("<8s4I7Q2I64I")
FIELDS = [
    *("magic", "version", "weights", "states", "block_bytes", "layout", "rows", "tombstones", "blocks"),
    *("filter_words", "blocks_checksum", "footer_checksum", "record", "parts"),
]
IDS = np.array([i for i in range(20_000) if mix(i) >> 60 == 0])  # of one group of partitions
PART = RowPart("e", 16, RowAdagrad())


class RowFileText:
    """The bytes of a row file, whose tail can be changed and sealed again."""

    def __init__(self, path: Path) -> None:
        self.path, self.bytes = path, bytearray(path.read_bytes())
        values = TAIL.unpack_from(self.bytes, len(self.bytes) - BLOCK)
        self.tail = dict(zip(FIELDS, values, strict=False))
        self.widths = list(values[len(FIELDS) :])

    @property
    def footer(self) -> int:
        return int(self.tail["blocks"]) * BLOCK

    def seal(self) -> None:
        at = len(self.bytes) - BLOCK
        TAIL.pack_into(self.bytes, at, *self.tail.values(), *self.widths)
        struct.pack_into("<Q", self.bytes, at + TAIL.size, xxh64(bytes(self.bytes[at : at + TAIL.size]), 1))
        self.path.unlink()  # others may have it open
        self.path.write_bytes(self.bytes)

    def seal_blocks(self) -> None:
        checksum = 0
        for at in range(0, self.footer, BLOCK):
            struct.pack_into("<Q", self.bytes, at, xxh64(bytes(self.bytes[at + 8 : at + BLOCK]), 1))
            checksum = mix((checksum + 1) & ALL_BITS) ^ struct.unpack_from("<Q", self.bytes, at)[0]
        self.tail["blocks_checksum"] = checksum

    def seal_footer(self, blocks: int) -> None:
        size = 8 * blocks + 4 * int(self.tail["filter_words"])
        at = blocks * BLOCK
        self.tail["footer_checksum"] = xxh64(bytes(self.bytes[at : at + size]), 1)


def no_filter(file: RowFileText) -> None:
    blocks, tail = int(file.tail["blocks"]), len(file.bytes) - BLOCK
    size = -(-8 * blocks // BLOCK) * BLOCK
    file.bytes[file.footer + 8 * blocks : tail] = bytes(size - 8 * blocks)
    file.tail["filter_words"] = 0
    file.seal_footer(blocks)


def odd_filter(file: RowFileText) -> None:
    words = int(file.tail["filter_words"]) - 1
    at = file.footer + 8 * int(file.tail["blocks"]) + 4 * words
    file.bytes[at : at + 4] = bytes(4)
    file.tail["filter_words"] = words
    file.seal_footer(int(file.tail["blocks"]))


def too_many_rows(file: RowFileText) -> None:
    file.tail["rows"] = ALL_BITS


def no_rows(file: RowFileText) -> None:
    file.tail["rows"] = 0


def too_many_tombstones(file: RowFileText) -> None:
    file.tail["tombstones"] = file.tail["rows"] + 1


def blocks_that_overflow(file: RowFileText) -> None:
    """Their offset is 0 modulo 2^64, and so is the size of their fences less what the filter lacks."""
    file.tail["blocks"] += 1 << 52
    file.tail["filter_words"] = (file.tail["filter_words"] - (2 << 52)) % (1 << 62)


def fences_in_no_order(file: RowFileText) -> None:
    at = file.footer
    file.bytes[at : at + 8], file.bytes[at + 8 : at + 16] = (
        file.bytes[at + 8 : at + 16],
        file.bytes[at : at + 8],
    )
    file.seal_footer(int(file.tail["blocks"]))


def rows_in_no_order(file: RowFileText) -> None:
    at = 16 + 8  # ids of the second and the third row
    file.bytes[at : at + 8], file.bytes[at + 8 : at + 16] = (
        file.bytes[at + 8 : at + 16],
        file.bytes[at : at + 8],
    )
    file.seal_blocks()


def one_row_less(file: RowFileText) -> None:
    """The tail names one row more than the blocks have."""
    file.tail["rows"] += 1


FILTER, ROWS, SIZE = "the size of its filter is wrong", "its number of rows is wrong", "its size is wrong"
HOSTILE = {
    no_filter: FILTER,
    odd_filter: FILTER,
    too_many_rows: ROWS,
    no_rows: ROWS,
    too_many_tombstones: ROWS,
    blocks_that_overflow: SIZE,
    fences_in_no_order: "the blocks in its index are not in order",
    rows_in_no_order: "its rows are not in order",
    one_row_less: f"it has {len(IDS)} rows and not {len(IDS) + 1}",
}


@pytest.fixture
def written(tmp_path: Path) -> RowFileText:
    store = MemoryStore((PART,), seed=1)
    store.pull(IDS)
    with store.cut() as cut:
        (stack,) = cut.write_files(tmp_path, "rows0")
    return RowFileText(stack.files[0])


def test_a_tail_that_was_sealed_again_is_read(written: RowFileText) -> None:
    written.seal_blocks()
    written.seal_footer(int(written.tail["blocks"]))
    written.seal()
    assert sum(len(block.ids_U) for block in blocks_of(RowStack("rows0", (written.path,)))) == len(IDS)


READ = """
import sys
from pathlib import Path
import numpy as np
import gearshift as gs
from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.store import RowAdagrad, RowPart, RowStack
from gearshift.embedding.table_store import MemoryStore
kind, path, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
try:
    if kind == "serve":
        gs.FrozenRows.open(path).lookup(np.arange(1000))
    else:
        tier = ColdTier(folder, 4 << 20, 256) if kind == "disk" else None
        store = MemoryStore((RowPart("e", 16, RowAdagrad()),), seed=1, tier=tier)
        store.adopt([RowStack("rows0", (path,))])
        store.peek(np.arange(1000))
    print("accepted")
except gs.UserError as error:
    print(error)
"""


def told(kind: str, path: Path, folder: Path) -> str:
    """In a process of its own, which may crash or hang."""
    command = [sys.executable, "-c", READ, kind, str(path), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("damage", HOSTILE, ids=[each.__name__ for each in HOSTILE])
def test_wrong_contents_with_valid_checksums_are_refused(
    tmp_path: Path, written: RowFileText, damage: Callable[[RowFileText], None], kind: str
) -> None:
    damage(written)
    written.seal()
    assert f".gsr is damaged: {HOSTILE[damage]}" in told(kind, written.path, tmp_path / "rows")


@pytest.mark.parametrize("widths", [[2**31, 2**31 + 5], [2**21, 1], [0, 9]])
def test_parts_whose_widths_cannot_be_are_refused(tmp_path: Path, widths: list[int]) -> None:
    """The sum of the first has the record of a real row, modulo 2^32."""
    path = tmp_path / "rows.gsr"
    weights_UW = np.ones((100, 9), np.float32)
    none_U = np.zeros(100, np.uint32)
    block = RowBlock(np.arange(100), weights_UW, np.zeros((100, 0), np.float32), none_U, none_U, none_U)
    write_blocks(path, (part for _, part in by_partition([block])), (9,), "int8")
    file = RowFileText(path)
    file.tail["parts"] = len(widths)
    file.widths[: len(widths)] = widths
    file.seal()
    assert "rows.gsr is damaged: its rows are too wide" in told("serve", path, tmp_path)


def test_rows_for_serving_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "rows.gsr"
    none_U = np.zeros(100, np.uint32)
    block = RowBlock(
        np.arange(100), np.ones((100, 9), np.float32), np.zeros((100, 0), np.float32), none_U, none_U, none_U
    )
    write_blocks(path, (part for _, part in by_partition([block])), (9,), "int8")
    file = RowFileText(path)
    one_row_less(file)
    file.seal()
    with pytest.raises(UserError, match=r"rows\.gsr is damaged: it has 100 rows and not 101"):
        gs.FrozenRows.open(path).verify()
