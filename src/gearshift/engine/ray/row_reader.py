"""Reads rows that a shard will soon be asked for from its disk into memory, in a thread beside the shard's loop.

A request that finds the queue full is dropped: the rows are then read when they are pulled, so no result changes.
"""

from __future__ import annotations

import contextlib
import queue
import threading

from gearshift.data.batch import Ids
from gearshift.parameters.server import Server

WAITING = 16  # requests; each is what one worker needs for one batch


class RowReader:
    def __init__(self) -> None:
        self._queue = queue.Queue[tuple[Server, tuple[Ids, ...]]](WAITING)
        threading.Thread(target=self._loop, name="gearshift-read-rows", daemon=True).start()

    def read(self, server: Server, ids: tuple[Ids, ...]) -> None:
        """Returns at once. The ids are by store."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait((server, tuple(ids_U.copy() for ids_U in ids)))

    def wait(self) -> None:
        """Until everything requested so far has been read (for tests)."""
        self._queue.join()

    def _loop(self) -> None:
        while True:
            _prefetch(*self._queue.get())
            self._queue.task_done()


def _prefetch(server: Server, ids: tuple[Ids, ...]) -> None:
    """A function of its own: no name keeps the server's memory while the thread waits."""
    with contextlib.suppress(Exception):  # the pull of these rows meets the same error, and reports it
        for store, ids_U in zip(server.stores, ids, strict=True):
            if store.tier is not None:
                store.tier.prefetch(ids_U)
