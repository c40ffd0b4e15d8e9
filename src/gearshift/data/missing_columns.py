"""Columns that a schema names and the data lack: which may be absent, and what they mean then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from gearshift.data.schema import Schema
from gearshift.errors import UserError

MissingColumnsMode = Literal["fail", "as_missing"]


def absent_features(schema: Schema, present: Sequence[str], where: str) -> tuple[str, ...]:
    """The features that are missing in every example."""
    absent = tuple(f.name for f in schema.features if f.name not in present)
    if absent and len(absent) == len(schema.features):
        raise UserError(
            f"{where} has none of the features' columns ({', '.join(absent[:10])}). "
            f"It has: {', '.join(present[:40])}."
        )
    return absent


def without_roles(
    schema: Schema, present: Sequence[str], *, labelled: bool, missing_columns: MissingColumnsMode
) -> Schema:
    """The schema without a time, group or weight that is not there and not needed: they are no inputs of a model."""
    needless: tuple[str, ...] = ("time", "group", "weight")
    if labelled:
        needless = () if missing_columns == "fail" else ("time", "group")
    gone: dict[str, Any] = {role: None for role in needless if getattr(schema, role) not in (None, *present)}
    return replace(schema, **gone) if gone else schema
