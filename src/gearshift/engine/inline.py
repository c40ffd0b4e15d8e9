"""One worker in the caller's own thread: begin, compute, report, in turn. No thread, no copy of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gearshift.embedding.lookup import Found
from gearshift.engine.epoch import Epoch
from gearshift.sync.messages import Begin
from gearshift.worker import Push

Compute = Callable[[Begin, Found], Push]


def run(epoch: Epoch, feed: Iterator[Found], compute: Compute, before_step: Callable[[], None]) -> None:
    """To the end of the data, or until the host says stop; `before_step` may switch the strategy."""
    epoch.joined(0)
    while not epoch.done:
        before_step()
        epoch.requested(0)
        while epoch.hungry:
            found = next(feed, None)
            if found is None:
                epoch.exhausted()
            else:
                epoch.supply(found)
        if epoch.begun:
            begin, found = epoch.begun.popleft()
            epoch.arrived(0, begin.lease.number, compute(begin, found))
