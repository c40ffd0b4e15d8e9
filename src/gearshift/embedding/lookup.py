"""Maps the fields of a batch to stores: which ids it needs, and how rows become model inputs.

All fields of one width share one store. The ids of a batch in that store are arranged as *occurrences*: the single
fields as [B, F] row by row, then each bag or sequence. `find` deduplicates them. It does not depend on training, so it
can run ahead in another thread. `assemble` is the inverse: it returns the rows of all occurrences in the shapes that a
model expects, as fields, sequences and linear terms. This module does not depend on stores, optimizers or particular
models.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gearshift import _core
from gearshift.data.batch import Batch, Floats, Ids
from gearshift.data.schema import Bag, Field, Schema, Sequence
from gearshift.embedding.row_rules import RowRule, rules_of
from gearshift.embedding.store import MOST_TABLES, Tables
from gearshift.models.inputs import Fields, Inputs, Needs, SequenceRows, pad_rows, pool_rows


@dataclass(frozen=True)
class FieldGroup:
    """The fields that share a store because their rows have the same width."""

    dim: int
    singles: tuple[int, ...]  # columns of Batch.ids_BF
    ragged: tuple[int, ...]  # entries of Batch.ragged
    tables: tuple[str, ...] = ()  # of these fields; a row is marked with the position of its table, from 1
    single_tables: tuple[int, ...] = ()  # the numbers of the tables of `singles`
    ragged_tables: tuple[int, ...] = ()
    rules: tuple[RowRule, ...] = ()  # of admission and expiry, by the number of the table; empty: none

    def occurrences(self, batch: Batch) -> Ids:
        every = len(self.singles) == batch.ids_BF.shape[1]
        columns = batch.ids_BF if every else batch.ids_BF[:, self.singles]
        flat = [np.ascontiguousarray(columns).reshape(-1)]
        flat += [batch.ragged[i].ids for i in self.ragged]
        return np.ascontiguousarray(flat[0] if len(flat) == 1 else np.concatenate(flat))

    def occurrence_tables(self, batch: Batch) -> Tables:
        """The number of the table of each occurrence."""
        tables = [np.tile(np.array(self.single_tables, np.uint16), len(batch))]
        for table, i in zip(self.ragged_tables, self.ragged, strict=True):
            tables.append(np.full(len(batch.ragged[i].ids), table, np.uint16))
        return tables[0] if len(tables) == 1 else np.concatenate(tables)


def field_groups(schema: Schema, dim: int) -> tuple[FieldGroup, ...]:
    """Groups by width, most fields first; `dim` is the width of fields that do not set it."""
    singles = [schema.row_width(f, dim) for f in schema.single_fields]
    ragged = [schema.row_width(f, dim) for f in schema.ragged_fields]
    widths = sorted({*singles, *ragged}, key=lambda w: (w != dim, w))
    return tuple(
        _group(
            schema,
            width,
            tuple(i for i, w in enumerate(singles) if w == width),
            tuple(i for i, w in enumerate(ragged) if w == width),
        )
        for width in widths
    )


def _group(schema: Schema, width: int, singles: tuple[int, ...], ragged: tuple[int, ...]) -> FieldGroup:
    of_singles = [schema.table(schema.single_fields[i]) for i in singles]
    of_ragged = [schema.table(schema.ragged_fields[i]) for i in ragged]
    tables = tuple(dict.fromkeys([*of_singles, *of_ragged]))
    numbers = {table: n if n <= MOST_TABLES else 0 for n, table in enumerate(tables, 1)}
    return FieldGroup(
        width,
        singles,
        ragged,
        tables,
        tuple(numbers[table] for table in of_singles),
        tuple(numbers[table] for table in of_ragged),
        rules_of(schema, tables[:MOST_TABLES]),
    )


@dataclass(frozen=True)
class IndexedBatch:
    """A batch and, for each store, its distinct ids with their occurrences."""

    batch: Batch
    indices: tuple[_core.Occurrences, ...]
    tables: tuple[Tables, ...]  # of each distinct id, by store

    @property
    def ids(self) -> tuple[Ids, ...]:
        return tuple(index.unique_U for index in self.indices)


def find(batch: Batch, groups: tuple[FieldGroup, ...]) -> IndexedBatch:
    indices = tuple(_core.Occurrences(group.occurrences(batch)) for group in groups)
    tables = tuple(
        group.occurrence_tables(batch)[index.first_U] for group, index in zip(groups, indices, strict=True)
    )
    return IndexedBatch(batch, indices, tables)


def unique_ids(batch: Batch, groups: tuple[FieldGroup, ...]) -> tuple[Ids, ...]:
    """The distinct ids of each store, without their occurrences."""
    return tuple(_core.Occurrences(group.occurrences(batch)).unique_U for group in groups)


@dataclass(frozen=True)
class Leaves:
    """The rows of all occurrences of one store, as autograd leaves."""

    embedding_ND: Tensor | None
    linear_N: Tensor | None


def assemble(
    schema: Schema,
    groups: tuple[FieldGroup, ...],
    needs: Needs,
    batch: Batch,
    leaves: tuple[Leaves, ...],
) -> Inputs:
    """The rows of all occurrences as model inputs. Without bags and sequences nothing is copied."""
    numeric = torch.from_numpy(batch.numeric_BN)
    names = tuple(f.name for f in schema.fields)
    B, F = batch.ids_BF.shape
    if len(groups) == 1 and not batch.ragged:
        one = leaves[0]
        rows_ND = one.embedding_ND
        fields = Fields((), []) if rows_ND is None else Fields(names, rows_ND.view(B, F, -1))
        return Inputs(numeric, fields, {}, None if one.linear_N is None else one.linear_N.view(B, F))
    return _assemble_ragged(schema, groups, needs, batch, leaves)


def _assemble_ragged(
    schema: Schema,
    groups: tuple[FieldGroup, ...],
    needs: Needs,
    batch: Batch,
    leaves: tuple[Leaves, ...],
) -> Inputs:
    rows = _segments(groups, batch, [leaf.embedding_ND for leaf in leaves])
    terms = _segments(groups, batch, [leaf.linear_N for leaf in leaves])
    offsets = [torch.from_numpy(r.offsets) for r in batch.ragged]
    fields: dict[str, Tensor] = {}
    sequences: dict[str, SequenceRows] = {}
    linear: list[Tensor] = []

    def pooled(field: Field, part: Tensor, place: FieldPosition) -> Tensor:
        if place.kind == "single":
            return part
        return pool_rows(part, offsets[place.number], field.pool if isinstance(field, Bag) else "mean")

    for field, place in _places(schema):
        if place in rows and isinstance(field, Sequence) and needs.sequences:
            sequences[field.name] = pad_rows(rows[place], offsets[place.number], field.max_len)
        elif place in rows:
            fields[field.name] = pooled(field, rows[place], place)
        if place in terms:
            linear.append(pooled(field, terms[place].unsqueeze(1), place).squeeze(1))
    return Inputs(
        torch.from_numpy(batch.numeric_BN),
        Fields(tuple(fields), list(fields.values())),
        sequences,
        torch.stack(linear, 1) if linear else None,
    )


class FieldPosition(NamedTuple):
    """The position of a field's ids in a batch: a column of `ids_BF`, or an entry of `ragged`."""

    kind: Literal["single", "ragged"]
    number: int


def _places(schema: Schema) -> Iterator[tuple[Field, FieldPosition]]:
    """The fields in schema order."""
    single, ragged = itertools.count(), itertools.count()
    for field in schema.fields:
        is_ragged = isinstance(field, Bag | Sequence)
        yield (
            field,
            FieldPosition("ragged", next(ragged)) if is_ragged else FieldPosition("single", next(single)),
        )


def _segments(
    groups: tuple[FieldGroup, ...], batch: Batch, parts: list[Tensor | None]
) -> dict[FieldPosition, Tensor]:
    """The occurrences of each field in its store: [B, D] for a single field, [nnz, D] for a ragged one."""
    segments: dict[FieldPosition, Tensor] = {}
    for group, part in zip(groups, parts, strict=True):
        if part is None:
            continue
        end = len(batch) * len(group.singles)
        table = part[:end].view(len(batch), len(group.singles), *part.shape[1:])
        for column, single in enumerate(group.singles):
            segments[FieldPosition("single", single)] = table[:, column]
        for ragged in group.ragged:
            begin, end = end, end + len(batch.ragged[ragged].ids)
            segments[FieldPosition("ragged", ragged)] = part[begin:end]
    return segments


class Buffers:
    """Arrays that are reused for every batch: a new large array costs a page fault for every 4 KB."""

    def __init__(self) -> None:
        self._kept: dict[str, Floats] = {}

    def floats(self, name: str, rows: int, columns: int) -> Floats:
        """An uninitialised [rows, columns] array, valid until the name is requested again."""
        size = rows * columns
        if name not in self._kept or self._kept[name].size < size:
            self._kept[name] = np.empty(size + size // 4, np.float32)
        return self._kept[name][:size].reshape(rows, columns)
