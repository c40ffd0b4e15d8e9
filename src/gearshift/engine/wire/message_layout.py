"""The layout of a message, derived from its dataclass: its fields, in order, each by its type.

    int, float, bool, str, an IntEnum        a value in the header
    X | None                                 the same, or None
    a dataclass                              its fields, in the header, and its arrays
    a union of dataclasses                   the same, after the place of the dataclass in the union
    tuple[Ids, ...], tuple[Floats, ...], ... arrays, one for each store
    tuple[RowPush, ...]                      arrays, four for each store
    Tensor                                   the dense values of a shard
    Statistics, DenseGradient, ...           according to the annotation of the type (parameters/marked_types.py)
    tuple[tuple[int, float], ...]            an array for each column
    NDArray, as `labels_BT`                  an array; the letters at the end of its name are its dimensions

A new message is a dataclass in `engine/protocol` and needs no change here. A number is at least 0, or at least its
default if that is lower. The header of a message is an array in MessagePack; msgspec checks it against types that are
derived here too.
"""

from __future__ import annotations

import types
from dataclasses import Field, fields, is_dataclass
from enum import IntEnum
from operator import attrgetter
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from msgspec import Struct, defstruct
from msgspec.structs import astuple
from torch import Tensor

from gearshift.engine.wire.array_fields import (
    Columns,
    DenseGradientPart,
    DensePart,
    IdsByStore,
    NamedDimensions,
    NotSent,
    RowGradients,
    RowsByStore,
    StateByName,
    StatisticsByName,
    TablesByStore,
    VariancePart,
)
from gearshift.engine.wire.frames import FrameReader, FrameWriter
from gearshift.engine.wire.limits import Limits
from gearshift.engine.wire.scalar_fields import REAL, TRUTH, FieldFormat, Maybe, Scalar, Text, integer
from gearshift.parameters.marked_types import (
    DENSE_GRADIENT,
    GRADIENT_VARIANCE,
    GROUP_NUMBER,
    OPTIMIZER_STATE,
    OPTIONAL_DENSE,
    PREDICTIONS,
    STATISTICS,
    WHOLE_OPTIMIZER_STATE,
)
from gearshift.parameters.push import NO_PREDICTIONS, RowPush

BY_TYPE: dict[Any, FieldFormat] = {
    float: REAL,
    bool: TRUTH,
    str: Text(),
    Tensor: DensePart(optional=False),
    tuple[RowPush, ...]: RowGradients(),
}
BY_MARK: dict[str, FieldFormat] = {
    STATISTICS: StatisticsByName(),
    OPTIMIZER_STATE: StateByName(whole=False),
    WHOLE_OPTIMIZER_STATE: StateByName(whole=True),
    OPTIONAL_DENSE: DensePart(optional=True),
    DENSE_GRADIENT: DenseGradientPart(),
    GRADIENT_VARIANCE: VariancePart(),
    PREDICTIONS: NotSent(NO_PREDICTIONS),
    GROUP_NUMBER: integer(1),
}
BY_STORE: dict[Any, FieldFormat] = {
    np.int64: IdsByStore(),
    np.float32: RowsByStore(),
    np.uint16: TablesByStore(),
}


class MessageLayout:
    """The layout of one dataclass: a message, or a part of one. `tag` is its position in a union, if it is in one.

    msgspec alone can convert between `cls` and `head` if it `is_plain`. It does not enforce text limits and does not
    support numpy.
    """

    def __init__(self, cls: type[Any], tag: int | None = None) -> None:
        self.cls, self._tag = cls, () if tag is None else (tag,)
        hints = get_type_hints(cls, include_extras=True)
        formats = {field.name: _format_of(hints[field.name], field) for field in fields(cls)}
        names = list(formats)
        self._formats = list(formats.values())
        self._writes = [format_.write for format_ in self._formats]
        self._reads = [format_.read for format_ in self._formats]
        self._values = attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
        self.is_plain = all(map(_is_plain, self._formats))
        self.head: type[Struct] = defstruct(
            cls.__name__,
            [(name, format_.head) for name, format_ in formats.items()],
            array_like=True,
            forbid_unknown_fields=True,
            tag=tag,
        )

    def write(self, value: Any, w: FrameWriter) -> list[Any]:
        values = zip(self._writes, self._values(value), strict=True)
        return [*self._tag, *[write(one, w) for write, one in values]]

    def read(self, head_value: Any, r: FrameReader) -> Any:
        return self.cls(*[read(one, r) for read, one in zip(self._reads, astuple(head_value), strict=True)])

    def frames(self, limits: Limits) -> int:
        return sum(format_.frames(limits) for format_ in self._formats)


class OneOf:
    """A field that holds one of several dataclasses."""

    def __init__(self, *classes: type[Any]) -> None:
        self._by_class = {cls: MessageLayout(cls, tag) for tag, cls in enumerate(classes)}
        self._by_head = {layout.head: layout for layout in self._by_class.values()}
        self.head = Union[*self._by_head]

    def write(self, value: Any, w: FrameWriter) -> Any:
        return self._by_class[type(value)].write(value, w)

    def read(self, head_value: Any, r: FrameReader) -> Any:
        return self._by_head[type(head_value)].read(head_value, r)

    def frames(self, limits: Limits) -> int:
        return max(layout.frames(limits) for layout in self._by_head.values())


def _is_plain(format_: FieldFormat) -> bool:
    """Whether it has no array, so that msgspec alone can convert it."""
    match format_:
        case Scalar() | Text():
            return True
        case Maybe(present=present):
            return _is_plain(present)
        case MessageLayout(is_plain=is_plain):
            return is_plain
    return False


def _format_of(hint: Any, field: Field[Any]) -> FieldFormat:
    if hint in BY_TYPE:
        return BY_TYPE[hint]
    if hint is int:
        return integer(min(0, field.default) if isinstance(field.default, int) else 0)
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return Scalar(hint, hint, hint)
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return MessageLayout(hint)
    return _compound(get_origin(hint), get_args(hint), field)


def _compound(origin: Any, arguments: tuple[Any, ...], field: Field[Any]) -> FieldFormat:
    if origin is Annotated:
        return BY_MARK[arguments[1]]
    if origin in (types.UnionType, Union):
        present = [one for one in arguments if one is not types.NoneType]
        if len(present) < len(arguments):
            return Maybe(_format_of(Union[*present], field))
        return OneOf(*present)
    if origin is np.ndarray:
        return NamedDimensions(field.name.rpartition("_")[2], _dtype(arguments))
    if origin is tuple and arguments[1:] == (...,):
        item, items = get_origin(arguments[0]), get_args(arguments[0])
        return Columns(*items) if item is tuple else BY_STORE[_dtype(items)]
    raise TypeError(f"{field.name}: there is no form on the wire for {origin}{list(arguments)}")


def _dtype(arguments: tuple[Any, ...]) -> Any:
    """The dtype of an `NDArray`: its second argument is `np.dtype[...]`."""
    return get_args(arguments[1])[0]
