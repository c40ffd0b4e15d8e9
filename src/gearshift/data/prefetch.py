"""Runs an iterator ahead in a separate thread, by at most `depth` items. The thread ends with its reader."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

Item = TypeVar("Item")


class _End:
    """The last item of the queue; `error` is the exception that ended the iterator, if any."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetched(items: Iterator[Item], depth: int) -> Generator[Item]:
    """The same items in the same order. An exception of `items` is raised at its position."""
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
        _drain(ready)  # the thread may be waiting for room
        thread.join()


def _fill(items: Iterator[Item], ready: queue.Queue[Item | _End], closed: threading.Event) -> None:
    error: BaseException | None = None
    try:
        for item in items:
            ready.put(item)
            if closed.is_set():
                break
    except BaseException as caught:  # passed to the reader, which raises it
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
