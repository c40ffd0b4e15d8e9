"""The frames of one message: a head of numbers and text, little endian, then arrays as they lie in memory.

`FrameReader` takes what `FrameWriter` puts, in the same order. It copies only arrays that are not aligned in memory,
checks every number against the limits before it uses it, and requires that nothing is left over. So two different
sequences of frames are never the same message.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from gearshift.data.batch import Floats
from gearshift.engine.wire.limits import HEAD_BYTES, Limits, WireError

assert sys.byteorder == "little", "arrays travel as they lie in memory"

MAGIC, FORMAT = b"GSFT", 1
HEAD = struct.Struct("<4sBBHq")  # magic, format, kind, flags, incarnation
MOST = 2**62  # of any number
HALF = 1  # flag: rows and gradients are bfloat16, and answers should be

Array = NDArray[Any]
Buffer = Any  # bytes, or what has bytes in one piece: a bytearray, a memoryview, an array of uint8


class FrameWriter:
    def __init__(self, kind: int, incarnation: int, limits: Limits, flags: int) -> None:
        self.limits, self.half, self._flags = limits, bool(flags & HALF), flags
        self._kind, self._incarnation = kind, incarnation
        self._body: list[bytes] = []
        self._arrays: list[Array] = []

    def frames(self) -> list[Buffer]:
        head = HEAD.pack(MAGIC, FORMAT, self._kind, self._flags, self._incarnation)
        return [b"".join([head, *self._body]), *self._arrays]

    def flag(self, flag: int) -> None:
        self._flags |= flag

    def numbers(self, *values: int) -> None:
        self._body.append(struct.pack(f"<{len(values)}q", *values))

    def reals(self, *values: float) -> None:
        self._body.append(struct.pack(f"<{len(values)}d", *values))

    def text(self, text: str) -> None:
        """The last of the head. What is too long is cut: it is a reason in words."""
        cut = text.encode("utf-8", "replace")[: self.limits.text]
        self._body.append(cut.decode("utf-8", "ignore").encode())

    def array(self, values: Array, dtype: DTypeLike, *, most: int, row: tuple[int, ...] = ()) -> None:
        if values.dtype != dtype or values.shape[1:] != row or len(values) > most:
            raise WireError(
                f"an array {values.dtype}{list(values.shape)} is not within the limits of the wire"
            )
        self._arrays.append(np.ascontiguousarray(values).reshape(-1).view(np.uint8))

    def floats(self, values: Floats, *, most: int, row: tuple[int, ...] = ()) -> None:
        """Rows or gradients."""
        if self.half:
            values_16 = torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)
            self.array(values_16.view(torch.int16).numpy(), np.int16, most=most, row=row)
        else:
            self.array(values, np.float32, most=most, row=row)


class FrameReader:
    def __init__(self, frames: Sequence[Buffer], limits: Limits) -> None:
        self.limits = limits
        if not 0 < len(frames) <= limits.frames:
            raise WireError("too many frames" if frames else "no frames")
        self._head = memoryview(frames[0])
        if not HEAD.size <= len(self._head) <= limits.text + HEAD_BYTES:
            raise WireError("a head of another size")
        magic, form, self.kind, self.flags, self.incarnation = HEAD.unpack_from(self._head)
        if magic != MAGIC or form != FORMAT:
            raise WireError("not of this protocol" if magic != MAGIC else "another version of the protocol")
        if not 0 <= self.incarnation < MOST:
            raise WireError("a number out of range")
        self.half = bool(self.flags & HALF)
        self._at = HEAD.size
        self._arrays = frames[1:]
        self._next = 0

    def end(self) -> None:
        if self._at != len(self._head) or self._next != len(self._arrays):
            raise WireError("more than the message has")

    def numbers(self, count: int) -> tuple[int, ...]:
        values: tuple[int, ...] = self._unpack(f"<{count}q", 8 * count)
        if not all(0 <= value < MOST for value in values):
            raise WireError("a number out of range")
        return values

    def reals(self, count: int) -> tuple[float, ...]:
        values: tuple[float, ...] = self._unpack(f"<{count}d", 8 * count)
        if not all(map(isfinite, values)):
            raise WireError("a number that is not finite")
        return values

    def _unpack(self, form: str, size: int) -> tuple[Any, ...]:
        if self._at + size > len(self._head):
            raise WireError("less than the message has")
        at, self._at = self._at, self._at + size
        return struct.unpack_from(form, self._head, at)

    def text(self) -> str:
        raw, self._at = bytes(self._head[self._at :]), len(self._head)
        if len(raw) > self.limits.text:
            raise WireError("a text that is too long")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise WireError("a text that is none") from None

    def array(
        self, dtype: DTypeLike, *, most: int, row: tuple[int, ...] = (), exact: int | None = None
    ) -> Array:
        """The next frame as [n, *row], n at most `most`, or `exact`ly."""
        if self._next == len(self._arrays):
            raise WireError("less than the message has")
        raw = memoryview(self._arrays[self._next])
        self._next += 1
        line = np.dtype(dtype).itemsize * int(np.prod(row, dtype=np.int64))
        count, rest = divmod(len(raw), line)
        if rest or count > most or (exact is not None and count != exact):
            raise WireError("an array of another size")
        if not count:
            return np.empty((0, *row), dtype)
        values = np.frombuffer(raw, dtype).reshape(count, *row)
        return values if values.flags.aligned and values.flags.writeable else values.copy()

    def floats(self, *, most: int, row: tuple[int, ...] = (), exact: int | None = None) -> Floats:
        """Rows or gradients."""
        if not self.half:
            return self.array(np.float32, most=most, row=row, exact=exact)
        values_16 = torch.from_numpy(self.array(np.int16, most=most, row=row, exact=exact))
        values: Floats = values_16.view(torch.bfloat16).float().numpy()
        return values
