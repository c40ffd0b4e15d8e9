"""Background work that must not slow down the training: threads with a low priority."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

NICE = 10


def in_background(name: str, do: Callable[[], None], *, to_its_end: bool = False) -> threading.Thread:
    """Starts at once; with `to_its_end` the process does not exit before the thread has finished.

    A stopping training may wait for the thread, which then has all cores to itself.
    """

    def run() -> None:
        if sys.platform == "linux":  # elsewhere this would change the priority of the whole process
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        do()

    thread = threading.Thread(target=run, name=name, daemon=not to_its_end)
    thread.start()
    return thread
