"""Examples in Python objects as Arrow tables: a list of dicts, a lazy frame. Everything else stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gearshift.errors import UserError
from gearshift.tables import to_arrow


def as_table(source: Any) -> Any:
    """A table in the place of a list of dicts or of a lazy frame (polars); other sources unchanged."""
    if isinstance(source, Mapping):
        raise UserError(
            "a dict can be one example or a table of columns: pass a list of examples, [{...}], or pyarrow.table({...})"
        )
    if isinstance(source, list | tuple) and source and isinstance(source[0], Mapping):
        return to_arrow(source)
    if hasattr(source, "collect") and hasattr(source, "collect_schema"):  # a polars LazyFrame
        return source.collect()
    return source
