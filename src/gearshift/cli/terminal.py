"""Formatting of numbers and tables. Text in, text out; prints to stdout, and draws only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any


def say(text: str = "") -> None:
    print(text, flush=True)


def warn(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def is_terminal() -> bool:
    return sys.stdout.isatty()


def count(number: float) -> str:
    """1,204,331"""
    return f"{number:,.0f}"


def figure(number: float | None, digits: int = 4) -> str:
    """.7712, in the usual notation of metrics below one; 1.0040 above."""
    if number is None or number != number:
        return "-"
    text = f"{number:.{digits}f}"
    return text.replace("0.", ".", 1) if -1 < number < 1 and text.lstrip("-").startswith("0.") else text


def percent(share: float, digits: int = 1) -> str:
    """3.4 %"""
    return f"{100 * share:.{digits}f} %"


def clock(seconds: float) -> str:
    """1:48, 2:03:10"""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def size(count_of_bytes: float) -> str:
    """2.1 GB"""
    for unit in ("B", "kB", "MB", "GB"):
        if count_of_bytes < 1000:
            return f"{count_of_bytes:.3g} {unit}"
        count_of_bytes /= 1000
    return f"{count_of_bytes:,.1f} TB"


def ago(seconds: float) -> str:
    """4 min ago"""
    for unit, length in (("day", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            amount = int(seconds // length)
            return f"{amount} {unit}{'s' if unit == 'day' and amount > 1 else ''} ago"
    return "just now"


def features(names: Sequence[str]) -> str:
    """item, history: the features whose rows are in one table."""
    return ", ".join(names) or "(unknown)"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: str = "", indent: int = 0) -> str:
    """Columns two spaces apart. Columns with the letter `r` in `right` are right-aligned."""
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    sides = right.ljust(len(heads), "l")

    def written(line: list[str]) -> str:
        cells = (
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(line, widths, sides, strict=True)
        )
        return " " * indent + "  ".join(cells).rstrip()

    return "\n".join(written(line) for line in lines)


def gap(sync_gap: dict[str, Any] | None) -> str:
    """Batches between two exchanges of a replica; "-" without replicas or exchanges."""
    mean = sync_gap and sync_gap["mean"]
    return "-" if mean is None else f"{mean:.1f}"
