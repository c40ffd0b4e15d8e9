"""Delimited text: columns, quotes and null values, and the error messages for lines that do not fit.

`text_lines.h` splits the text. A quote may be a stray character. A quoted value that spans lines is therefore
accepted only if it is short (`quoted_lines`) and its record matches the header. Otherwise only its first line is bad.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gearshift import _core
from gearshift.data.columns import Bytes
from gearshift.data.readers.bad_lines import ALLOW_SOME
from gearshift.data.readers.cut import BadText, TextRecords
from gearshift.data.readers.sniff import QUOTED_LINES

LIBFM_ADVICE = 'Read such lines as one bag: features: [{name: features, type: bag, separator: " "}]'
QUOTE_ADVICE = (
    "Close it, read without quoting: data.csv={quote: none}, or allow some: data.bad_lines={skip: 1000}"
)
NEVER_CLOSES, TOO_MANY_LINES, TEXT_AFTER_QUOTE, WHOLE_LINES = -1, -2, -3, -4  # BadRecord in text_lines.h


@dataclass(frozen=True)
class TextLayout:
    """How to split the text; `columns` has the names of all columns, in file order."""

    columns: tuple[str, ...]
    delimiter: str = ","
    quote: str = '"'  # "" for none
    header: bool = True
    null: tuple[str, ...] = ("",)
    trim: bool = False  # ignore spaces around values
    decimal: str = "."
    thousands: str = ""  # the thousands separator, "" for none
    marks_doubts: tuple[str, ...] = ()  # warnings, if the two marks are a guess that may be wrong
    marks_stated: tuple[str | None, str | None] | None = None  # set by the user; None: the format fixes them
    libfm: bool = False
    rest_in_last: bool = False  # the last column takes the rest of the line
    counted_by: str = "the header"  # what determines the number of columns, for error messages
    quoted_lines: int | None = None  # lines that a quoted value may span; if set, quotes are trusted
    is_json: bool = False
    escape: str = ""  # marks a quote inside quotes as text; "" for none
    header_line: str = ""  # the line that names the columns, to detect repetitions

    @property
    def doubts_quotes(self) -> bool:
        return self.quoted_lines is None

    def with_marks(self, decimal: str, thousands: str) -> TextLayout:
        """Use these marks instead of guessed ones. Return self if the user set different marks."""
        if self.marks_stated is None or any(
            stated not in (None, mark)
            for stated, mark in zip(self.marks_stated, (decimal, thousands), strict=True)
        ):
            return self
        return replace(self, decimal=decimal, thousands=thousands, marks_doubts=())

    def cutter(self, wanted: tuple[str, ...]) -> TextCutter:
        return TextCutter(self, wanted)


class TextCutter:
    def __init__(self, layout: TextLayout, wanted: tuple[str, ...]) -> None:
        self._layout = layout
        self._width = len(wanted)
        self._most_lines = layout.quoted_lines or QUOTED_LINES
        self._slots = np.full(len(layout.columns), -1, np.int32)
        for slot, name in enumerate(wanted):
            self._slots[layout.columns.index(name)] = slot

    def cut(self, text: Bytes, size: int, last: bool, room: int, line: int) -> TextRecords:
        layout = self._layout
        spans = np.empty((room, self._width, 2), np.uint32)
        lines = np.empty(room, np.uint32)
        records, consumed, passed, bad, long, headers = _core.split_lines(
            text, size, layout.delimiter, layout.quote, self._slots, self._width, layout.rest_in_last,
            layout.trim, last, self._most_lines, layout.doubts_quotes, spans, lines, layout.escape,
            layout.header_line.encode(),
        )  # fmt: skip
        return TextRecords(
            spans[:records],
            lines[:records] + line,
            consumed,
            passed,
            records == room,
            [self._bad_text(line, *record) for record in bad],
            dict(zip(long[::2], long[1::2], strict=True)),
            headers=headers,
        )

    def _bad_text(self, before: int, line: int, problem: int, opened: int, closed: int) -> BadText:
        if problem >= 0 and closed == line:
            advice = LIBFM_ADVICE if self._layout.libfm else ALLOW_SOME
            return BadText(before + line, self._column_count(problem), advice)
        where = "here" if opened == line else f"in line {before + opened + 1:,}"
        reason, advice = self._broken_quote(problem, f"{before + closed + 1:,}")
        return BadText(before + line, f"the quote that opens {where} {reason}", advice)

    def _broken_quote(self, problem: int, closed: str) -> tuple[str, str]:
        """(problem with the quote, advice)."""
        if problem == NEVER_CLOSES:
            return "never closes", QUOTE_ADVICE
        if problem == TOO_MANY_LINES:
            more = f"Close it, allow more lines: data.csv={{quoted_lines: {10 * self._most_lines}}}"
            advice = QUOTE_ADVICE.replace("Close it", more)
            return f"does not close within {self._most_lines} line{'s' * (self._most_lines != 1)}", advice
        if problem == TEXT_AFTER_QUOTE:
            return f"closes in line {closed}, in the middle of a value", QUOTE_ADVICE
        if problem == WHOLE_LINES:
            trust = f"or trust the quotes: data.csv={{quoted_lines: {QUOTED_LINES}}}"
            advice = f"Remove them, read without quoting: data.csv={{quote: none}}, {trust}"
            count = f"{len(self._slots):,} columns"
            return f"closes in line {closed}, but each line has {count} by itself: two stray quotes", advice
        return f"closes in line {closed}, and the record then has {self._column_count(problem)}", QUOTE_ADVICE

    def _column_count(self, columns: int) -> str:
        expected = f"{self._layout.counted_by} has {len(self._slots):,}"
        return f"{columns:,} column{'s' * (columns != 1)} where {expected}"
