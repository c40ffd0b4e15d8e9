"""One worker in the caller's own thread: begin, compute, report, in turn. No thread, no copy of the parameters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gearshift.embedding.lookup import IndexedBatch
from gearshift.engine.epoch import Epoch, UnusableGradient
from gearshift.engine.lease_batches import LeaseBatches
from gearshift.parameters.local_shards import LocalShards
from gearshift.parameters.push import Push
from gearshift.sync.messages import Begin

Compute = Callable[[Begin, IndexedBatch], Push | UnusableGradient]


def run(
    epoch: Epoch[Push],
    shards: LocalShards,
    batches: LeaseBatches,
    compute: Compute,
    go_on: Callable[[], bool],
) -> None:
    """To the end of the data, or until the host says stop; `go_on` may switch the strategy, or end this engine."""
    begun: deque[Begin] = deque()
    epoch.tell = begun.append
    epoch.joined(0)
    while go_on() and not epoch.done:
        epoch.requested(0)
        while epoch.hungry:
            found = next(batches, None)
            if found is None:
                epoch.exhausted()
            else:
                epoch.supply(found.batch.first, len(found.batch))
        if not begun and not epoch.done:
            raise epoch.stuck()
        if begun:
            begin = begun.popleft()
            lease, push = begin.lease.number, compute(begin, batches[begin.lease.first])
            if isinstance(push, UnusableGradient):
                epoch.refused(0, lease, push.reason)
                continue
            shards.push(lease, push)
            epoch.arrived(0, lease, push)
            shards.keep(lease)
