"""One worker in the caller's thread: begin, compute, report, in turn. No other thread, no copy of the parameters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gearshift.embedding.lookup import IndexedBatch
from gearshift.engine.epoch import Epoch, UnusableGradient
from gearshift.engine.lease_batches import LeaseBatches, supply_hungry
from gearshift.engine.strategy_failures import stuck
from gearshift.parameters.local_shards import LocalShards
from gearshift.parameters.push import LocalPush
from gearshift.sync.events import Begin

Compute = Callable[[Begin, IndexedBatch], LocalPush | UnusableGradient]


class InlineLoop:
    """Runs the leases of an epoch. The worker is number 0."""

    def __init__(self, compute: Compute, shards: LocalShards) -> None:
        self._compute, self._shards = compute, shards
        self._begun: deque[Begin] = deque()

    def begin(self, begin: Begin) -> None:
        self._begun.append(begin)

    def run(self, epoch: Epoch[LocalPush], batches: LeaseBatches, proceed: Callable[[], bool]) -> None:
        """Runs to the end of the data or until the host stops it; `proceed` may switch strategy, or end this loop."""
        epoch.joined(0)
        while proceed() and not epoch.done:
            epoch.requested(0)
            supply_hungry(epoch, batches)
            if not self._begun and not epoch.done:
                raise stuck(epoch.coordinator)
            if self._begun:
                begin = self._begun.popleft()
                lease = begin.lease.number
                push = self._compute(begin, batches.lease(begin.lease.first, begin.lease.count).indexed())
                if isinstance(push, UnusableGradient):
                    epoch.refused(0, lease, push.reason)
                    continue
                self._shards.push(lease, push)
                epoch.arrived(0, lease, push)
                self._shards.keep(lease)
