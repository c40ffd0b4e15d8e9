"""What users ask of a live run (a switch, a resize), carried out in the order in which it was asked.

Both may change the strategy: a resize cuts the global batch anew, and with it the share of a replica's batch. A change
that concerns replicas waits until they are shown, and so does everything that was asked after it.
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
    """`strategy_after` names the strategy that decides once a request is carried out."""
    if role.epoch is None or role.over:
        return
    requests = [queue.get() for _ in range(queue.qsize())]
    while requests and not role.meetings.concerns(strategy_after(requests[0])):
        carry_out(requests.pop(0))
    if requests:
        role.meetings.want()
    for request in requests:
        queue.put(request)
