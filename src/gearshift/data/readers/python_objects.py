"""Converts Python objects (a list of dicts, a lazy frame) to Arrow tables. Other sources are unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gearshift.errors import UserError
from gearshift.tables import to_arrow


def as_table(source: Any) -> Any:
    """A table for a list of dicts or a lazy frame (polars); any other source unchanged."""
    if isinstance(source, Mapping):
        raise UserError(
            "a dict can be one example or a table of columns: pass a list of examples, [{...}], or pyarrow.table({...})"
        )
    if isinstance(source, list | tuple) and source and isinstance(source[0], Mapping):
        return to_arrow(source)
    if hasattr(source, "collect") and hasattr(source, "collect_schema"):  # a polars LazyFrame
        return source.collect()
    return source
