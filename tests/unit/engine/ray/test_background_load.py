"""A shard loads its part beside its loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pytest

from gearshift.engine.ray.background_load import load_in_background
from gearshift.parameters.server import Server
from tests.protocol.world import restored

Posted = queue.SimpleQueue[Callable[[], None]]


def test_the_caller_goes_on_while_it_loads() -> None:
    posted, may_end, server, found = Posted(), threading.Event(), restored(None, 0, 1), list[Server]()

    def load() -> Server:
        assert may_end.wait(60)
        return server

    load_in_background(load, found.append, posted.put)
    assert posted.empty() and not found  # it returned before the part was there
    may_end.set()
    posted.get(timeout=60)()
    assert found == [server]


def test_an_error_of_the_load_is_raised_where_messages_are_handled() -> None:
    posted = Posted()

    def load() -> Server:
        raise OSError("the disk is gone")

    load_in_background(load, lambda server: None, posted.put)
    with pytest.raises(OSError, match="the disk is gone"):
        posted.get(timeout=60)()


def test_a_load_that_hangs_fails_with_a_sentence() -> None:
    posted, for_ever = Posted(), threading.Event()

    def load() -> Server:
        for_ever.wait()
        return restored(None, 0, 1)

    load_in_background(load, lambda server: None, posted.put, hang_seconds=0.05, look_seconds=0.01)
    with pytest.raises(TimeoutError, match=r"could not be read: no progress for 0.05 s"):
        posted.get(timeout=60)()
    for_ever.set()


def test_a_load_that_uses_the_processor_does_not_hang() -> None:
    posted, done, server = Posted(), threading.Event(), restored(None, 0, 1)

    def load() -> Server:
        while not done.is_set():
            sum(range(10_000))
        return server

    load_in_background(load, lambda server: None, posted.put, hang_seconds=0.3, look_seconds=0.1)
    with pytest.raises(queue.Empty):
        posted.get(timeout=1.0)
    done.set()
    posted.get(timeout=60)()
