"""Reading ahead changes nothing but the time it takes."""

import threading
import time
from collections.abc import Iterator

import pytest

from gearshift.data.prefetch import prefetched


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gearshift-read"]


def test_the_same_items_in_the_same_order() -> None:
    assert list(prefetched(iter(range(100)), 3)) == list(range(100))
    assert list(prefetched(iter([]), 3)) == []
    assert readers() == []


def test_an_error_comes_where_it_would_have_come() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("three")

    found = []
    with pytest.raises(KeyError, match="three"):
        found.extend(prefetched(items(), 8))  # extend keeps nothing of a failed iterable
    for item in (ahead := prefetched(items(), 8)):
        found.append(item)
        if item == 2:
            break
    with pytest.raises(KeyError):
        next(ahead)
    assert found[-2:] == [1, 2]


def test_it_never_runs_further_ahead_than_allowed() -> None:
    made = []

    def items() -> Iterator[int]:
        for i in range(100):
            made.append(i)
            yield i

    ahead = prefetched(items(), 4)
    next(ahead)
    deadline = time.monotonic() + 5
    while len(made) < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(made) == 6  # one taken, four waiting, one in hand
    ahead.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_closing_ends_the_thread_and_the_source(depth: int) -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            closed.set()

    for taken in range(4):
        closed.clear()
        ahead = prefetched(items(), depth)
        for _ in range(taken):
            next(ahead)
        if taken:
            assert len(readers()) == 1
        ahead.close()  # type: ignore[attr-defined]
        assert readers() == []
        assert closed.is_set() == (taken > 0)
