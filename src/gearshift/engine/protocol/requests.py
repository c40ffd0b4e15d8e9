"""A user's requests to a live run (a switch, a resize), carried out in order of arrival.

Both may change the strategy: a resize divides the global batch by another number of workers, which changes the share of
a replica's batch. A change that affects replicas waits until they are shown, and so does every later request.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from gearshift.engine.protocol.coordinator import CoordinatorRole
from gearshift.sync.strategy import Strategy

R = TypeVar("R")


def carry_out_requests(
    role: CoordinatorRole,
    queue: SimpleQueue[R],
    strategy_after: Callable[[R], Strategy],
    carry_out: Callable[[R], None],
) -> None:
    """`strategy_after` returns the strategy that will decide once a request is carried out."""
    if role.running is None or role.over:
        return
    meetings = role.running.meetings
    requests = [queue.get() for _ in range(queue.qsize())]
    while requests and not meetings.concerns(strategy_after(requests[0])):
        carry_out(requests.pop(0))
    if requests:
        meetings.request_show()
    for request in requests:
        queue.put(request)
