"""How long to wait before the next attempt: the delay doubles with every attempt, up to a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import TypeVar

T = TypeVar("T")
LONGEST = 30.0  # seconds between two attempts


def backoff(attempt: int, first: float = 1.0) -> float:
    """Seconds to wait after attempt 0, 1, 2, ... has failed."""
    return min(LONGEST, first * 2.0 ** min(attempt, 30))


def retry(
    do: Callable[[], T],
    seconds: float,
    is_transient: Callable[[Exception], bool],
    failed: Callable[[int, Exception], None] = lambda attempt, error: None,
) -> T:
    """What `do` returns. It is tried again for `seconds`; then, or at an error that will stay, the error is raised."""
    until = time.monotonic() + seconds
    for attempt in count():
        try:
            return do()
        except Exception as error:
            if not is_transient(error) or time.monotonic() >= until:
                raise
            failed(attempt, error)
        time.sleep(max(0.0, min(backoff(attempt, 0.25), until - time.monotonic())))
    raise AssertionError("count() does not end")
