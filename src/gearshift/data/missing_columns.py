"""Columns that are in the schema but not in the data: which of them may be absent, and what this means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from gearshift.data.schema import Schema
from gearshift.errors import UserError

MissingColumnsMode = Literal["fail", "as_missing"]


def absent_features(schema: Schema, present: Sequence[str], where: str) -> tuple[str, ...]:
    """The features that are absent, and therefore missing in every example."""
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
    """The schema without an absent time, group or weight that is not needed. They are not model inputs."""
    needless: tuple[str, ...] = ("time", "group", "weight")
    if labelled:
        needless = () if missing_columns == "fail" else ("time", "group")
    absent: dict[str, Any] = {
        role: None for role in needless if getattr(schema, role) not in (None, *present)
    }
    return replace(schema, **absent) if absent else schema
