"""Retries with backoff: one schedule, used in two ways.

`retry` is for calls that may fail for a while: it blocks until the call succeeds, or raises its last error.

`Retries` is for writes that must not be lost. The last steps of a run are only in memory until they are saved. If the
disk is full, read-only or gone, ending the run would lose them, so the save is retried, and the user is notified of the
failure and of how to give up. It ends when the write succeeds, the user gives up, or a time limit passes. Independent
of checkpoints and files.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from gearshift.errors import UserError

T = TypeVar("T")
FIRST_SECONDS, LONGEST_SECONDS = 1.0, 30.0  # between two attempts
IN_MEMORY = "Later steps exist only in memory"


def backoff(attempt: int, first: float | None = None, longest: float | None = None) -> float:
    """Seconds to wait after attempt 0, 1, 2, ... has failed: the delay doubles, up to a limit."""
    first, longest = (
        FIRST_SECONDS if first is None else first,
        LONGEST_SECONDS if longest is None else longest,
    )
    return min(longest, first * 2.0 ** min(attempt, 30))


class Attempts:
    """Counts failed attempts, and computes when the next one is due."""

    def __init__(self, seconds: float, first: float | None = None, longest: float | None = None) -> None:
        """The last attempt is made `seconds` after the first failure."""
        self._seconds, self._first, self._longest = seconds, first, longest
        self.count, self.began, self.due = 0, 0.0, 0.0

    def fail(self) -> bool:
        """Counts a failed attempt. Returns whether there is time for another."""
        now = time.monotonic()
        if not self.count:
            self.began = now
        self.count += 1
        self.left = self.began + self._seconds - now
        self.due = now + max(0.0, min(backoff(self.count - 1, self._first, self._longest), self.left))
        return self.left > 0

    @property
    def pause(self) -> float:
        """Seconds until the next attempt is due."""
        return max(0.0, self.due - time.monotonic())


def retry(
    do: Callable[[], T],
    seconds: float,
    is_transient: Callable[[Exception], bool],
    failed: Callable[[int, Exception], None] = lambda attempt, error: None,
    *,
    first: float = 0.25,
    longest: float | None = None,
) -> T:
    """The result of `do`, retried for `seconds`. Raises its last error, or at once one that is not transient."""
    attempts = Attempts(seconds, first, longest)
    while True:
        try:
            return do()
        except Exception as error:
            if not is_transient(error) or not attempts.fail():
                raise
            failed(attempts.count, error)
        time.sleep(attempts.pause)


class Retries:
    def __init__(
        self,
        seconds: float,
        notify: Callable[[str], None],
        how_to_stop: str = "stop the run",
        what_is_kept: Callable[[], str] = str,
    ) -> None:
        """Retries for this many `seconds`; 0: never. `notify` gets messages for the user.

        `what_is_kept` returns a message on what remains if retrying is given up.
        """
        self._seconds, self._notify = seconds, notify
        self._how_to_stop, self._what_is_kept = how_to_stop, what_is_kept
        self._given_up = threading.Event()
        self._attempts = Attempts(seconds)
        self._failure = ""

    @property
    def active(self) -> bool:
        """Whether a failed write is being retried."""
        return self._attempts.count > 0

    def give_up(self) -> None:
        """Stops retrying; unwritten data is lost. May be called from any thread."""
        self._given_up.set()

    def until_done(self, attempt: Callable[[], str | None], stake: str = IN_MEMORY) -> None:
        """Blocks until `attempt` returns None; any other result is the reason of a failure. Raises a `UserError` when
        it gives up.

        `stake` explains why it is retried.
        """
        while failure := attempt():
            self.failed(failure, stake)
            self._given_up.wait(self._attempts.pause)
            self._raise_if_given_up()
        self.succeeded()

    def failed(self, failure: str, stake: str = IN_MEMORY) -> None:
        """An attempt failed: the user is notified. Raises a `UserError` when the time has run out."""
        if not self.active:
            self._given_up.clear()
        self._failure = failure
        has_time = self._attempts.fail()
        self._raise_if_given_up()
        if not has_time:
            tried = f". It was tried for {duration(self._seconds)} (checkpoint.retry_for)" * bool(
                self._seconds
            )
            raise UserError(f"{failure}{tried}{self._kept()}")
        if self._attempts.count.bit_count() == 1:  # notifies after attempts 1, 2, 4, 8, ... only
            self._notify(
                f"{failure}. {stake}, so the save is retried for up to {duration(self._attempts.left)}. To give up: "
                f"{self._how_to_stop}"
            )

    def due(self) -> bool:
        """Whether the next attempt is due, for callers that do not block. Raises a `UserError` if it was given up."""
        self._raise_if_given_up()
        return not self._attempts.pause

    def succeeded(self) -> None:
        if self.active:
            self._notify(f"saved after {duration(time.monotonic() - self._attempts.began)} of retries")
        self._attempts = Attempts(self._seconds)

    def _raise_if_given_up(self) -> None:
        if self._given_up.is_set():
            raise UserError(f"{self._failure}. Retrying was stopped on request{self._kept()}")

    def _kept(self) -> str:
        kept = self._what_is_kept()
        return f": {kept}" if kept else ""


def duration(seconds: float) -> str:
    """
    >>> duration(3600), duration(90), duration(0.2)
    ('1 h', '2 min', '1 s')
    """
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{round(seconds / length)} {unit}"
    return f"{max(1, round(seconds))} s"
