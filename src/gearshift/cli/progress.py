"""The progress display of a run: a bar on a terminal, a `key=value` line every 30 s elsewhere.

It reads only `Status`, not the training itself. Lasting information (a validation, a decision) comes as a message and
stays above the progress line.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from gearshift.cli import terminal

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from gearshift.run.status import Status

LOG_SECONDS = 30.0


class ProgressDisplay(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type | None, error: BaseException | None, at: TracebackType | None) -> None: ...
    def show(self, status: Status, messages: Sequence[str] = ()) -> None: ...
    def say(self, text: str) -> None: ...


def progress() -> ProgressDisplay:
    return TerminalProgress() if terminal.is_terminal() else LoggedProgress()


def share_done(status: Status) -> float | None:
    return min(1.0, status.examples / status.total) if status.total else None


def seconds_left(status: Status) -> float | None:
    if not status.total or not status.examples_per_second:
        return None
    return max(0, status.total - status.examples) / status.examples_per_second


def known(figure: float | None) -> bool:
    return figure is not None and math.isfinite(figure)


def rounded(figure: float | None) -> float | None:
    return round(figure, 5) if figure is not None and math.isfinite(figure) else None


def figures(status: Status) -> str:
    """`41 %  94,120 ex/s  loss .1312  AUC(so far) .7698  ETA 0:57`, as far as known."""
    share, left = share_done(status), seconds_left(status)
    parts = [
        f"{100 * share:3.0f} %" if share is not None else f"{terminal.count(status.examples)} examples",
        f"{terminal.count(status.examples_per_second)} ex/s" if status.examples_per_second else "",
        f"loss {terminal.figure(status.loss)}" if known(status.loss) else "",
        f"AUC(so far) {terminal.figure(status.auc_so_far)}" if known(status.auc_so_far) else "",
        f"ETA {terminal.clock(left)}" if left is not None else "",
    ]
    return "  ".join(part for part in parts if part)


def logged(status: Status, now: float) -> str:
    """One line for a log file: a timestamp, then `key=value`."""
    left = seconds_left(status)
    pairs: dict[str, object] = {
        "phase": status.phase,
        "day": status.day,
        "step": status.step,
        "examples": status.examples,
        "total": status.total,
        "examples_per_second": None
        if status.examples_per_second is None
        else round(status.examples_per_second),
        "loss": rounded(status.loss),
        "auc_so_far": rounded(status.auc_so_far),
        "seconds": round(status.seconds, 1),
        "seconds_left": None if left is None else round(left),
    }
    written = " ".join(
        f"{key}={str(value).replace(' ', '_')}" for key, value in pairs.items() if value is not None
    )
    return f"{timestamp(now)} {written}"


def timestamp(now: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))


class LoggedProgress:
    """For files, pipes and job logs: no colour, no cursor."""

    def __init__(self, now: Callable[[], float] = time.time, every: float = LOG_SECONDS) -> None:
        self._now, self._every = now, every
        self._next = now() + every
        self._noted = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def show(self, status: Status, messages: Sequence[str] = ()) -> None:
        for note in messages[self._noted :]:
            self.say(f"{timestamp(self._now())} {note}")
        self._noted = len(messages)
        if self._now() >= self._next:
            self.say(logged(status, self._now()))
            self._next = self._now() + self._every

    def say(self, text: str) -> None:
        terminal.say(text)


class TerminalProgress:
    """A bar that stays on the last line."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=26),
            TextColumn("{task.fields[figures]}"),
        )
        console = Console(highlight=False, soft_wrap=True)
        self._bar: RichProgress = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=None, figures="")
        self._noted = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def show(self, status: Status, messages: Sequence[str] = ()) -> None:
        for note in messages[self._noted :]:
            self.say(f"  {note}")
        self._noted = len(messages)
        self._bar.update(
            self._task,
            description=status.day or status.phase,
            total=status.total,
            completed=status.examples,
            figures=figures(status),
        )

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False)
