"""Loads a shard's part in a thread, so that the shard's loop keeps sending heartbeats, however long it takes.

A load that hangs (for example on an unresponsive network file system) must not look alive forever. A thread that reads
and copies uses CPU time; if the loading thread uses none for `HANG_SECONDS`, the load fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gearshift.parameters.server import Server

HANG_SECONDS = 600.0
LOOK_SECONDS = 5.0  # interval of checks of the loading thread's CPU time


def load_in_background(
    load: Callable[[], Server],
    done: Callable[[Server], None],
    post: Callable[[Callable[[], None]], None],
    *,
    hang_seconds: float = HANG_SECONDS,
    look_seconds: float = LOOK_SECONDS,
) -> None:
    """Returns at once. `post` runs `done` in the loop, or a function that raises the error of the load."""
    ended = threading.Event()

    def run() -> None:
        try:
            server = load()
        except BaseException as error:
            post(_raiser(error))
        else:
            post(lambda: done(server))
        finally:
            ended.set()

    thread = threading.Thread(target=run, name="gearshift-load", daemon=True)
    thread.start()
    watch = (thread, ended, post, hang_seconds, look_seconds)
    threading.Thread(target=_watch, args=watch, name="gearshift-load-watch", daemon=True).start()


def _watch(
    thread: threading.Thread,
    ended: threading.Event,
    post: Callable[[Callable[[], None]], None],
    hang_seconds: float,
    look_seconds: float,
) -> None:
    used, moved = -1.0, time.monotonic()
    while not ended.wait(look_seconds):
        now_used = _processor_time(thread)
        if now_used != used:
            used, moved = now_used, time.monotonic()
        elif time.monotonic() - moved > hang_seconds:
            sentence = f"its part of the checkpoint could not be read: no progress for {hang_seconds:g} s"
            post(_raiser(TimeoutError(sentence)))
            return


def _processor_time(thread: threading.Thread) -> float:
    assert thread.ident is not None, "it was started"
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    except OSError:  # it has just ended
        return -1.0


def _raiser(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail
