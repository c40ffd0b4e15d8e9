"""Rows of plain values (a list of dicts) as an HTML, Arrow or pandas table. pandas is needed only by `to_pandas`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gearshift.errors import UserError

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa

Rows = Sequence[dict[str, Any]]


def number(value: Any) -> str:
    """.7712, 1.0040, 12,345, or unchanged text; "-" if a value is undefined."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4f}"
    )


def html_table(rows: Rows, title: str = "") -> str:
    """A table with a column for each key of the first row; columns that are empty in all rows are left out."""
    names = [name for name in (rows[0] if rows else ()) if any(row.get(name) is not None for row in rows)]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(number(row.get(name)))}</td>" for name in names) + "</tr>"
        for row in rows
    )
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def to_arrow(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A column for every key that occurs; an example without the key has a missing value."""
    import pyarrow as pa  # imported here, because most commands show no table

    for number, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise UserError(
                f"example {number + 1} of the list is a {type(record).__name__}; all examples must be dicts"
            )
    names = dict.fromkeys(name for record in records for name in record)
    return pa.table({name: _column(name, [record.get(name) for record in records]) for name in names})


def _column(name: str, values: list[Any]) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        kinds = ", ".join(sorted({type(value).__name__ for value in values if value is not None}))
        raise UserError(
            f"column `{name}` of the examples has values of different types ({kinds}); convert them to one type"
        ) from error


def to_pandas(rows: Rows) -> pandas.DataFrame:
    if find_spec("pandas") is None:
        raise UserError("to_pandas() needs pandas: pip install pandas; to_arrow() gives the same without it")
    frame: pandas.DataFrame = to_arrow(rows).to_pandas()
    return frame
