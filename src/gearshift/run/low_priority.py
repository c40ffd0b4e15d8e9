"""Work beside the training that must not slow it down: threads that get what the others leave of the cores."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

NICE = 10


def in_background(name: str, do: Callable[[], None], *, to_its_end: bool = False) -> threading.Thread:
    """Begins at once; with `to_its_end` the process does not end before it.

    A training that stops may wait for it, and then it has the cores for itself.
    """

    def run() -> None:
        if sys.platform == "linux":  # elsewhere it would be that of the whole process
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        do()

    thread = threading.Thread(target=run, name=name, daemon=not to_its_end)
    thread.start()
    return thread
