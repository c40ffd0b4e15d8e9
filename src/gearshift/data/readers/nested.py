"""Checks of columns that hold lists or structs (Parquet, Arrow, JSON): which features read them, and advice otherwise.

The check uses the type of the column, before any value is read.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from gearshift.data.columns import RawColumn, TextColumn, is_list
from gearshift.data.schema import Bag, Feature, Numeric, Schema, Sequence, Vector
from gearshift.errors import UserError

UNNEST = "write each of their fields as a separate column"


def check_nesting(schema: Schema, columns: Mapping[str, RawColumn], *, labelled: bool = True) -> None:
    """Refuse a column that its feature or role cannot read."""
    for feature in schema.features:
        _check_feature(feature, columns[feature.name])
    roles = {key: getattr(schema, key) for key in ("time", "group", "weight")}
    names = [(key, name) for key, name in roles.items() if name is not None]
    names += [("label", label.column) for label in schema.labels] if labelled else []
    for role, name in names:
        check_single(f"{role} `{name}`", columns[name])


def check_single(what: str, column: RawColumn) -> None:
    """Refuse a column with more than one value per example."""
    if (kind := nesting(column)) is not None:
        raise UserError(f"{what}: the column holds {kind}; it must hold one value per example")


def nesting(column: RawColumn) -> str | None:
    """What the values are if they are not single values: "lists", "structs", "lists of structs"."""
    return column.nested if isinstance(column, TextColumn) else _in_words(column.type)


def _in_words(kind: pa.DataType) -> str | None:
    if isinstance(kind, pa.BaseExtensionType):
        return _in_words(kind.storage_type)
    if is_list(kind):
        inner = _in_words(kind.value_type)
        return f"lists of {inner}" if inner else "lists"
    if pa.types.is_struct(kind):
        return "structs"
    if pa.types.is_map(kind):
        return "maps"
    return f"values of type {kind}" if pa.types.is_nested(kind) else None


def _check_feature(feature: Feature, column: RawColumn) -> None:
    kind = nesting(column)
    if kind is None or (kind == "lists" and isinstance(feature, Bag | Sequence | Vector)):
        return
    advice = UNNEST
    if kind == "lists":
        advice = f"use type: bag or sequence{', or vector' if isinstance(feature, Numeric) else ''}"
    elif kind.startswith("lists of"):
        advice = "write lists of single values"
    raise UserError(f"feature `{feature.name}`: the column holds {kind}; {advice}")
