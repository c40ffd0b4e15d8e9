"""The embedding rows of a batch in the shapes that a model expects: fields, sequences and linear terms."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gearshift.data.batch import Batch
from gearshift.data.schema import Bag, Field, Schema, Sequence
from gearshift.embedding.lookup import FieldGroup
from gearshift.models.inputs import Fields, Inputs, Needs, SequenceRows, pad_rows, pool_rows


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
    """The occurrences of each field, as parts of its store's: [B, D] for a single field, [nnz, D] for a ragged one."""
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
