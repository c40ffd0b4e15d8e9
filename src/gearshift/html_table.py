"""Rows of plain values as an HTML table, for notebooks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

Rows = Sequence[dict[str, Any]]


def number(value: Any) -> str:
    """.7712, 1.0040, 12,345, or text as it is; - where a figure is not defined."""
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
