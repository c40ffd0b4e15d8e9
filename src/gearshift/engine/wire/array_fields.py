"""How a field of a message that holds arrays is written and read: which frames it has, and the limits of each.

Ids, rows and gradients are checked here: a store rejects values that are out of range or not finite, and this must not
happen in the middle of a shard's step. Weights and optimizer states are sent in full precision even if rows and
gradients are sent as bfloat16, because the lost precision could not be recovered. They may have any value, even if it
is not finite: otherwise a diverged replica would make the others wait forever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from gearshift.data.batch import Floats, Ids
from gearshift.embedding.store import MOST_TABLES, Tables
from gearshift.engine.wire.frames import Array, FrameReader, FrameWriter
from gearshift.engine.wire.limits import Limits, WireError
from gearshift.engine.wire.scalar_fields import Count
from gearshift.parameters.push import RowPush


def finite(values: Floats) -> Floats:
    flat = values.reshape(-1)
    # The dot product is three times as fast, and finite unless a value is not finite or very large.
    with np.errstate(all="ignore"):
        if not np.isfinite(flat.dot(flat)) and not np.isfinite(flat).all():
            raise WireError("a gradient that is not finite")
    return values


def read_ids(r: FrameReader) -> Ids:
    ids = r.array(np.int64, most=r.limits.ids)
    if len(ids) and ids.min() < 0:
        raise WireError("an id out of range")
    return ids


class IdsByStore:
    """`tuple[Ids, ...]`: the ids of rows, for each store."""

    head = None

    def write(self, value: tuple[Ids, ...], w: FrameWriter) -> None:
        for ids, _ in zip(value, w.limits.widths, strict=True):
            w.array(ids, np.int64, most=w.limits.ids)

    def read(self, head_value: None, r: FrameReader) -> tuple[Ids, ...]:
        ids = tuple(read_ids(r) for _ in r.limits.widths)
        r.dimensions |= {f"ids {store}": len(of_store) for store, of_store in enumerate(ids)}
        return ids

    def frames(self, limits: Limits) -> int:
        return len(limits.widths)


def read_tables(r: FrameReader, ids: int) -> Tables:
    tables = r.array(np.uint16, most=ids, exact=ids)
    if len(tables) and tables.max() > MOST_TABLES:
        raise WireError("a table out of range")
    return tables


class TablesByStore:
    """`tuple[Tables, ...]`: the table of each id, for each store. In a message it comes after the ids."""

    head = None

    def write(self, value: tuple[Tables, ...], w: FrameWriter) -> None:
        for tables, _ in zip(value, w.limits.widths, strict=True):
            w.array(tables, np.uint16, most=w.limits.ids)

    def read(self, head_value: None, r: FrameReader) -> tuple[Tables, ...]:
        return tuple(read_tables(r, r.dimensions[f"ids {store}"]) for store in range(len(r.limits.widths)))

    def frames(self, limits: Limits) -> int:
        return len(limits.widths)


class RowsByStore:
    """`tuple[Floats, ...]`: rows, for each store; of its width."""

    head = None

    def write(self, value: tuple[Floats, ...], w: FrameWriter) -> None:
        for rows_UW, width in zip(value, w.limits.widths, strict=True):
            w.floats(rows_UW, most=w.limits.ids, row=(width,))

    def read(self, head_value: None, r: FrameReader) -> tuple[Floats, ...]:
        return tuple(r.floats(most=r.limits.ids, row=(width,)) for width in r.limits.widths)

    def frames(self, limits: Limits) -> int:
        return len(limits.widths)


class RowGradients:
    """`tuple[RowPush, ...]`: the sums and counts of gradients of rows and their tables, for each store."""

    head = None

    def write(self, value: tuple[RowPush, ...], w: FrameWriter) -> None:
        for rows, width in zip(value, w.limits.widths, strict=True):
            w.array(rows.ids_U, np.int64, most=w.limits.ids)
            w.floats(rows.sums_UW, most=w.limits.ids, row=(width,))
            w.array(rows.counts_U, np.uint32, most=w.limits.ids)
            w.array(rows.tables_U, np.uint16, most=w.limits.ids)

    def read(self, head_value: None, r: FrameReader) -> tuple[RowPush, ...]:
        return tuple(self._of_store(r, width) for width in r.limits.widths)

    def frames(self, limits: Limits) -> int:
        return 4 * len(limits.widths)

    def _of_store(self, r: FrameReader, width: int) -> RowPush:
        ids_U = read_ids(r)
        sums_UW = finite(r.floats(most=len(ids_U), row=(width,), exact=len(ids_U)))
        counts_U = r.array(np.uint32, most=len(ids_U), exact=len(ids_U))
        return RowPush(ids_U, sums_UW, counts_U, tables_U=read_tables(r, len(ids_U)))


class DensePart:
    """`Tensor`: a shard's dense values; if `optional`, all of them or none."""

    head = None

    def __init__(self, *, optional: bool) -> None:
        self._optional = optional

    def write(self, value: Tensor, w: FrameWriter) -> None:
        w.array(value.numpy(), np.float32, most=_most_dense(w))

    def read(self, head_value: None, r: FrameReader) -> Tensor:
        size = r.limits.dense[r.shard]
        values = r.array(np.float32, most=size)
        if len(values) != size and (len(values) or not self._optional):
            raise WireError("an array of the wrong size")
        return torch.from_numpy(values)

    def frames(self, limits: Limits) -> int:
        return 1


class DenseGradientPart:
    """The gradients of a shard's dense values, or the sum of a group: all of them, and finite."""

    head = None

    def write(self, value: Tensor, w: FrameWriter) -> None:
        w.floats(value.numpy(), most=_most_dense(w))

    def read(self, head_value: None, r: FrameReader) -> Tensor:
        size = r.limits.dense[r.shard]
        return torch.from_numpy(finite(r.floats(most=size, exact=size)))

    def frames(self, limits: Limits) -> int:
        return 1


class VariancePart:
    """The variance of the gradients in the sum of a group. The limits define whether the optimizer needs it.

    If it does, the sum cannot be applied without it. If it does not, there is no frame.
    """

    head = None
    _values = DenseGradientPart()

    def write(self, value: Tensor | None, w: FrameWriter) -> None:
        if w.limits.spread:
            assert value is not None, "the optimizer needs the variance of a sum"
            self._values.write(value, w)

    def read(self, head_value: None, r: FrameReader) -> Tensor | None:
        if not r.limits.spread:
            return None
        variance = self._values.read(None, r)
        if (variance < 0).any():
            raise WireError("a number out of range")
        return variance

    def frames(self, limits: Limits) -> int:
        return int(limits.spread)


class NotSent:
    """A field that the receiver does not need: it has no frame, and the receiver gets `instead`."""

    head = None

    def __init__(self, instead: Array) -> None:
        self._instead = instead

    def write(self, value: Array, w: FrameWriter) -> None:
        pass

    def read(self, head_value: None, r: FrameReader) -> Array:
        return self._instead

    def frames(self, limits: Limits) -> int:
        return 0


def _most_dense(w: FrameWriter) -> int:
    return max(w.limits.dense) if w.shard is None else w.limits.dense[w.shard]


def _present(is_present: Sequence[bool], known: Sequence[Any]) -> list[Any]:
    """The indices, among the known ones, of the entries that a message has."""
    if len(is_present) != len(known):
        raise WireError("a number out of range")
    return [one for one, is_there in zip(known, is_present, strict=True) if is_there]


class StatisticsByName:
    """The running statistics of the model that are present, or their changes."""

    head = tuple[bool, ...]

    def write(self, value: dict[str, Tensor], w: FrameWriter) -> list[bool]:
        known = w.limits.statistics
        for one in known:
            if one.name in value:
                flat = value[one.name].reshape(-1).numpy()
                w.array(flat, np.int64 if one.counts else np.float32, most=one.size)
        return [one.name in value for one in known]

    def read(self, head_value: tuple[bool, ...], r: FrameReader) -> dict[str, Tensor]:
        tensors = {}
        for one in _present(head_value, r.limits.statistics):
            values = r.array(np.int64 if one.counts else np.float32, most=one.size, exact=one.size)
            tensors[one.name] = torch.from_numpy(values if one.counts else finite(values)).view(one.shape)
        return tensors

    def frames(self, limits: Limits) -> int:
        return len(limits.statistics)


class StateByName:
    """The parts of a dense optimizer's state that are present; if `whole`, all of them or none."""

    head = tuple[bool, ...]

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole

    def write(self, value: dict[str, Tensor], w: FrameWriter) -> list[bool]:
        known = w.limits.state
        for one in known:
            if one.name in value:
                flat = value[one.name].reshape(-1).numpy()
                w.array(flat, np.int64 if one.counts else np.float32, most=max(1, *w.limits.dense))
        return [one.name in value for one in known]

    def read(self, head_value: tuple[bool, ...], r: FrameReader) -> dict[str, Tensor]:
        if self._whole and any(head_value) and not all(head_value):
            raise WireError("an incomplete optimizer state")
        tensors = {}
        for one in _present(head_value, r.limits.state):
            count = r.limits.dense[r.shard] if one.each else 1
            values = r.array(np.int64 if one.counts else np.float32, most=count, exact=count)
            tensors[one.name] = torch.from_numpy(values).view((count,) if one.each else ())
        return tensors

    def frames(self, limits: Limits) -> int:
        return len(limits.state)


class Columns:
    """`tuple[tuple[int, float], ...]` and the like: one frame for each place in the inner tuple."""

    head = None

    def __init__(self, *types: type) -> None:
        self._dtypes = [np.int64 if of is int else np.float64 for of in types]

    def write(self, value: Sequence[tuple[Any, ...]], w: FrameWriter) -> None:
        columns = zip(*value, strict=True) if value else [()] * len(self._dtypes)
        for column, dtype in zip(columns, self._dtypes, strict=True):
            w.array(np.array(column, dtype), dtype, most=w.limits.parts)

    def read(self, head_value: None, r: FrameReader) -> tuple[tuple[Any, ...], ...]:
        columns: list[Array] = []
        for dtype in self._dtypes:
            exact = len(columns[0]) if columns else None
            columns.append(r.array(dtype, most=r.limits.parts, exact=exact))
            if not (np.isfinite(columns[-1]).all() if dtype is np.float64 else (columns[-1] >= 0).all()):
                raise WireError("a number out of range")
        return tuple(zip(*(column.tolist() for column in columns), strict=True))

    def frames(self, limits: Limits) -> int:
        return len(self._dtypes)


class NamedDimensions:
    """An array whose dimensions are the last letters of its name; a letter means one size in the whole message.

    B is the examples of a batch, T the tasks.
    """

    head = tuple[Count, ...]  # its shape

    def __init__(self, letters: str, dtype: DTypeLike) -> None:
        self._letters, self._dtype = letters, dtype

    def write(self, value: Array, w: FrameWriter) -> tuple[int, ...]:
        self._check(value.shape, w)
        w.array(value, self._dtype, most=w.limits.batch, row=value.shape[1:])
        return value.shape

    def read(self, head_value: tuple[int, ...], r: FrameReader) -> Array:
        self._check(head_value, r)
        return r.array(self._dtype, most=head_value[0], row=head_value[1:], exact=head_value[0])

    def frames(self, limits: Limits) -> int:
        return 1

    def _check(self, shape: tuple[int, ...], message: FrameReader | FrameWriter) -> None:
        bounds = {"B": (0, message.limits.batch), "T": (1, message.limits.tasks)}
        if len(shape) != len(self._letters):
            raise WireError("an array of the wrong size")
        for letter, size in zip(self._letters, shape, strict=True):
            least, most = bounds[letter]
            if not least <= size <= most or message.dimensions.setdefault(letter, size) != size:
                raise WireError("an array of the wrong size")
