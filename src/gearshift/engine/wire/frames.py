"""The frames of one message: a header, then arrays as they are in memory, little endian.

`FrameReader` takes the arrays that `FrameWriter` puts, in the same order. It copies only arrays that are not aligned in
memory, compares the size of each with the limits before it uses it, and requires that nothing is left over.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from gearshift.data.batch import Floats
from gearshift.engine.wire.limits import Limits, WireError

assert sys.byteorder == "little", "arrays travel as they lie in memory"

MAGIC, FORMAT = b"GSFT", 3
HEAD = struct.Struct("<4sBBH")  # magic, format, kind, flags; the fields of the message follow
HALF = 1  # flag: rows and gradients are bfloat16, and answers should be

Array = NDArray[Any]
Buffer = Any  # bytes, or another contiguous buffer: a bytearray, a memoryview, an array of uint8


class FrameWriter:
    """Collects the arrays of a message; `shard` is whose dense values they hold, None if any shard's."""

    def __init__(self, limits: Limits, *, half: bool, shard: int | None) -> None:
        self.limits, self.shard, self._half = limits, shard, half
        self.dimensions: dict[str, int] = {}  # sizes by dimension letter
        self.text_left = limits.text  # bytes
        self.arrays: list[Array] = []

    def array(self, values: Array, dtype: DTypeLike, *, most: int, row: tuple[int, ...] = ()) -> None:
        if values.dtype != dtype or values.shape[1:] != row or len(values) > most:
            raise WireError(
                f"an array {values.dtype}{list(values.shape)} is not within the limits of the wire"
            )
        self.arrays.append(np.ascontiguousarray(values).reshape(-1).view(np.uint8))

    def floats(self, values: Floats, *, most: int, row: tuple[int, ...] = ()) -> None:
        """Rows or gradients."""
        if self._half:
            values_16 = torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)
            self.array(values_16.view(torch.int16).numpy(), np.int16, most=most, row=row)
        else:
            self.array(values, np.float32, most=most, row=row)


class FrameReader:
    """Returns the arrays of a message; `shard` is the shard whose dense values they hold."""

    def __init__(self, arrays: Sequence[Buffer], limits: Limits, *, half: bool, shard: int) -> None:
        self.limits, self.shard, self._half = limits, shard, half
        self.dimensions: dict[str, int] = {}
        self.text_left = limits.text
        self._arrays = arrays
        self._next = 0

    def end(self) -> None:
        if self._next != len(self._arrays):
            raise WireError("more data than the message has")

    def array(
        self, dtype: DTypeLike, *, most: int, row: tuple[int, ...] = (), exact: int | None = None
    ) -> Array:
        """The next frame as [n, *row], n at most `most`, or `exact`ly."""
        if self._next == len(self._arrays):
            raise WireError("less data than the message has")
        raw = memoryview(self._arrays[self._next])
        self._next += 1
        line = np.dtype(dtype).itemsize * int(np.prod(row, dtype=np.int64))
        count, rest = divmod(len(raw), line)
        if rest or count > most or (exact is not None and count != exact):
            raise WireError("an array of the wrong size")
        if not count:
            return np.empty((0, *row), dtype)
        values = np.frombuffer(raw, dtype).reshape(count, *row)
        return values if values.flags.aligned and values.flags.writeable else values.copy()

    def floats(self, *, most: int, row: tuple[int, ...] = (), exact: int | None = None) -> Floats:
        """Rows or gradients."""
        if not self._half:
            return self.array(np.float32, most=most, row=row, exact=exact)
        values_16 = torch.from_numpy(self.array(np.int16, most=most, row=row, exact=exact))
        values: Floats = values_16.view(torch.bfloat16).float().numpy()
        return values
