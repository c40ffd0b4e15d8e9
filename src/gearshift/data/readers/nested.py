"""Columns whose values are lists or structs (Parquet, Arrow, JSON): what reads them, and what to do about others.

Decided by the column's type, before any value is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from gearshift.data.columns import RawColumn, TextColumn, is_list
from gearshift.data.schema import Bag, Feature, Numeric, Schema, Sequence, Vector
from gearshift.errors import UserError

UNNEST = "write each of their fields as a column of its own"


def check_nesting(schema: Schema, columns: Mapping[str, RawColumn], *, labelled: bool = True) -> None:
    """Refuses a column that its feature, or its role, cannot read."""
    for feature in schema.features:
        _check_feature(feature, columns[feature.name])
    roles = {key: getattr(schema, key) for key in ("time", "group", "weight")}
    names = [(key, name) for key, name in roles.items() if name is not None]
    names += [("label", label.column) for label in schema.labels] if labelled else []
    for role, name in names:
        check_single(f"{role} `{name}`", columns[name])


def check_single(what: str, column: RawColumn) -> None:
    """One value per example is needed."""
    if (held := nesting(column)) is not None:
        raise UserError(f"{what}: the column holds {held}; it must hold one value per example")


def nesting(column: RawColumn) -> str | None:
    """What the values are if they are no single ones, in words: "lists", "structs", "lists of structs"."""
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
    held = nesting(column)
    if held is None or (held == "lists" and isinstance(feature, Bag | Sequence | Vector)):
        return
    advice = UNNEST
    if held == "lists":
        advice = f"use type: bag or sequence{', or vector' if isinstance(feature, Numeric) else ''}"
    elif held.startswith("lists of"):
        advice = "write lists of single values"
    raise UserError(f"feature `{feature.name}`: the column holds {held}; {advice}")
