"""Runs an iterator ahead in a thread of its own, at most `depth` items; ends when its reader does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

Item = TypeVar("Item")


class _End:
    """The last thing in the queue; `error` is what ended the iterator, if it was not its end."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetched(items: Iterator[Item], depth: int) -> Generator[Item]:
    """The same items in the same order; an exception of `items` is raised where it would have been."""
    ready: queue.Queue[Item | _End] = queue.Queue(depth)
    closed = threading.Event()
    thread = threading.Thread(target=_fill, args=(items, ready, closed), name="gearshift-read", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        closed.set()
        _drain(ready)  # the thread may wait for room
        thread.join()


def _fill(items: Iterator[Item], ready: queue.Queue[Item | _End], closed: threading.Event) -> None:
    error: BaseException | None = None
    try:
        for item in items:
            ready.put(item)
            if closed.is_set():
                break
    except BaseException as caught:  # handed over to the reader, who raises it
        error = caught
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()
    if not closed.is_set():
        ready.put(_End(error))


def _drain(ready: queue.Queue[Item | _End]) -> None:
    while True:
        try:
            ready.get_nowait()
        except queue.Empty:
            return
