"""How one field of a message is written and read, if it is not an array: numbers, text, and nested values.

A `FieldFormat` puts one value into the header of the message. `head` is the type of that value: msgspec rejects a
header with anything else in it. Arrays are separate frames (array_fields.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import index
from typing import Annotated, Any, Protocol

from msgspec import Meta

from gearshift.engine.wire.frames import FrameReader, FrameWriter
from gearshift.engine.wire.limits import Limits, WireError

MOST = 2**62  # of any number
Count = Annotated[int, Meta(ge=0, lt=MOST)]
Real = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]  # excludes NaN


class FieldFormat(Protocol):
    @property
    def head(self) -> Any:
        """The type of the value in the header."""

    def write(self, value: Any, w: FrameWriter) -> Any:
        """The value for the header; arrays go to `w`."""

    def read(self, head_value: Any, r: FrameReader) -> Any:
        """Restores the value from its part of the header (of the type `head`) and the arrays of `r`."""

    def frames(self, limits: Limits) -> int:
        """The maximum number of arrays that it writes."""


class Scalar:
    """A number or a bool; `plain` converts other types, such as numpy's, to Python's."""

    def __init__(self, head: Any, of: type, plain: Callable[[Any], Any]) -> None:
        self.head, self._type, self._plain = head, of, plain

    def write(self, value: Any, w: FrameWriter) -> Any:
        return value if type(value) is self._type else self._plain(value)

    def read(self, head_value: Any, r: FrameReader) -> Any:
        return head_value

    def frames(self, limits: Limits) -> int:
        return 0


def integer(least: int = 0) -> Scalar:
    return Scalar(Annotated[int, Meta(ge=least, lt=MOST)], int, lambda value: index(value) + 0)


REAL = Scalar(Real, float, float)
TRUTH = Scalar(bool, bool, bool)


class Text:
    """A name or a reason in words. A text that is too long is truncated when written and refused when read."""

    head = str

    def write(self, value: str, w: FrameWriter) -> str:
        raw = value.encode("utf-8", "replace")[: w.text_left]
        w.text_left -= len(raw)
        return raw.decode("utf-8", "ignore")

    def read(self, head_value: str, r: FrameReader) -> str:
        r.text_left -= len(head_value.encode())
        if r.text_left < 0:
            raise WireError("a text that is too long")
        return head_value

    def frames(self, limits: Limits) -> int:
        return 0


class Maybe:
    """A field that may be None."""

    def __init__(self, present: FieldFormat) -> None:
        assert present.head is not None, "None means that the field is absent"
        self.present, self.head = present, present.head | None

    def write(self, value: Any, w: FrameWriter) -> Any:
        return None if value is None else self.present.write(value, w)

    def read(self, head_value: Any, r: FrameReader) -> Any:
        return None if head_value is None else self.present.read(head_value, r)

    def frames(self, limits: Limits) -> int:
        return self.present.frames(limits)
