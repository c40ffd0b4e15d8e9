"""Writes that must not be lost: tried again, with backoff, until they succeed.

The last steps of a run are in memory alone until they are saved. If the disk is full, read-only or gone, ending the run
would throw them away, so it is tried again; the operator is told what failed and how to give up. It ends when the write
succeeds, when somebody gives up, or when a set time is over. Knows no checkpoint and no file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gearshift.errors import UserError

FIRST_SECONDS, LONGEST_SECONDS = 1.0, 30.0  # between two attempts


class Retries:
    def __init__(self, seconds: float, tell: Callable[[str], None]) -> None:
        """It is tried again for so many `seconds`; 0: never. `tell` gets sentences for the user."""
        self._seconds, self._tell = seconds, tell
        self.how_to_stop = "stop the run"
        self._given_up = threading.Event()
        self._attempts, self._began, self._due = 0, 0.0, 0.0  # attempts that failed, one after the other
        self._failure = ""

    @property
    def active(self) -> bool:
        """Whether something waits to be tried again."""
        return self._attempts > 0

    def give_up(self) -> None:
        """From any thread: what could not be written until now is lost."""
        self._given_up.set()

    def until_done(self, attempt: Callable[[], str | None]) -> None:
        """`attempt` says why it failed, or None. Blocks; raises a `UserError` if it is not tried any more."""
        while failure := attempt():
            self.failed(failure)
            self._given_up.wait(max(0.0, self._due - time.monotonic()))
            self._raise_if_given_up()
        self.succeeded()

    def failed(self, failure: str) -> None:
        """An attempt failed: the user is told. Raises a `UserError` if the time is over."""
        now = time.monotonic()
        if not self._attempts:
            self._began = now
            self._given_up.clear()
        self._attempts += 1
        self._failure = failure
        self._raise_if_given_up()
        left = self._began + self._seconds - now
        if left <= 0:
            tried = f". It was tried for {duration(self._seconds)} (checkpoint.retry_for)" * bool(
                self._seconds
            )
            raise UserError(failure + tried)
        pause = min(FIRST_SECONDS * 2 ** (self._attempts - 1), LONGEST_SECONDS, left)
        self._due = now + pause
        if self._attempts.bit_count() == 1:  # 1, 2, 4, 8, ...: not at every attempt
            self._tell(
                f"{failure}. The steps since then exist only in memory, so the save is retried for up to "
                f"{duration(left)}. To discard them: {self.how_to_stop}"
            )

    def due(self) -> bool:
        """Whether the next attempt may be made, for who does not block. Raises a `UserError` if it was given up."""
        self._raise_if_given_up()
        return time.monotonic() >= self._due

    def succeeded(self) -> None:
        if self._attempts:
            self._tell(f"saved after {duration(time.monotonic() - self._began)} of retries")
        self._attempts = 0

    def _raise_if_given_up(self) -> None:
        if self._given_up.is_set():
            raise UserError(f"{self._failure}. Retrying was stopped on request")


def duration(seconds: float) -> str:
    """
    >>> duration(3600), duration(90), duration(0.2)
    ('1 h', '2 min', '1 s')
    """
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{round(seconds / length)} {unit}"
    return f"{max(1, round(seconds))} s"
