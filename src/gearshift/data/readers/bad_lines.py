"""Handling of unreadable lines: they end the run, or up to `allowed` of them are skipped and listed.

This module is independent of file formats. A reader reports where a bad line is and what is wrong with it. An example
that spans several lines counts as that many lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import Lock

from gearshift.errors import UserError

ALLOW_SOME = "Fix the line, or allow some: data.bad_lines={skip: 1000}"


@dataclass(frozen=True)
class SourcePlace:
    """The origin of an example: line 7 or lines 7-9 of a text file, or example 7 of a table."""

    file: str
    number: int  # starts at 1
    unit: str = "line"
    lines: int = 1

    def __str__(self) -> str:
        if self.lines > 1:
            return f"{self.file} lines {self.number:,}-{self.number + self.lines - 1:,}"
        return f"{self.file} {self.unit} {self.number:,}"


@dataclass(frozen=True)
class BadLine:
    place: SourcePlace
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


def lines_lost(bad: Iterable[BadLine]) -> int:
    """The number of bad lines. An example may span several lines."""
    return sum(line.place.lines for line in bad)


@dataclass
class BadLines:
    """Counts each bad line once, however often the data is read.

    `advice` replaces the advice "fix the line, or allow some" where no line may be skipped.
    """

    allowed: int = 0
    advice: str | None = None
    _seen: dict[SourcePlace, BadLine] = field(default_factory=dict)
    _lost: int = 0
    _lock: Lock = field(default_factory=Lock)

    def __reduce__(self) -> tuple[type[BadLines], tuple[int, str | None]]:
        """Pickle only the settings. Another process counts its bad lines separately."""
        return BadLines, (self.allowed, self.advice)

    def refuse(self, place: SourcePlace, reason: str, advice: str | Callable[[], str]) -> None:
        """Raise UserError unless one more bad line is allowed. A callable `advice` is called only for the error."""
        line = BadLine(place, reason)
        with self._lock:
            if place not in self._seen:
                self._seen[place] = line
                self._lost += place.lines
            count = self._lost
        if count <= self.allowed:
            return
        advice = self._shown(advice if isinstance(advice, str) else advice())
        if self.allowed == 0:
            raise UserError(f"{line}. {advice}")
        raise UserError(
            f"{line}; that is bad line {count:,} where data.bad_lines allows {self.allowed:,}. {advice}"
        )

    def _shown(self, advice: str) -> str:
        if self.advice is None:
            return advice
        tail = ALLOW_SOME[1:]  # after other advice it starts with a lower-case letter
        return advice.replace(tail, self.advice[1:]) if tail in advice else self.advice

    def listed(self) -> list[BadLine]:
        with self._lock:
            return list(self._seen.values())
