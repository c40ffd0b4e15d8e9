"""Examples in Python objects as Arrow tables: a list of dicts, a lazy frame. Everything else stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from gearshift.errors import UserError


def as_table(source: Any) -> Any:
    """A table in the place of a list of dicts or of a lazy frame (polars); other sources unchanged."""
    if isinstance(source, Mapping):
        raise UserError(
            "a dict can be one example or a table of columns: pass a list of examples, [{...}], or pyarrow.table({...})"
        )
    if isinstance(source, list | tuple) and source and isinstance(source[0], Mapping):
        return from_records(source)
    if hasattr(source, "collect") and hasattr(source, "collect_schema"):  # a polars LazyFrame
        return source.collect()
    return source


def from_records(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A column for every key that occurs; an example that lacks one has a missing value there."""
    for number, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise UserError(
                f"example {number + 1} of the list is a {type(record).__name__}; all of them are dicts"
            )
    names = dict.fromkeys(name for record in records for name in record)
    return pa.table({name: _column(name, [record.get(name) for record in records]) for name in names})


def _column(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        kinds = ", ".join(sorted({type(value).__name__ for value in values if value is not None}))
        raise UserError(
            f"column `{name}` of the examples holds values of different kinds ({kinds}); give all of them one kind"
        ) from error
