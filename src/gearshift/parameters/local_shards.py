"""The shards of one process: workers push to them and wait for versions, and one thread issues orders.

A single shard executes its orders in the issuing thread. With several, each has a thread: they apply the same steps
in the same order but at different times, and a worker that needs step k waits until the last shard has applied it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import torch
from torch import Tensor

from gearshift.parameters.push import AppliedPush, LocalPush
from gearshift.parameters.server import Server
from gearshift.parameters.shard import ApplyStep, Drop, Order, Shard, ShardLayout, shard_server
from gearshift.sync.events import Begin


class LocalShards:
    def __init__(self, whole: Server, layout: ShardLayout) -> None:
        self.whole, self.layout = whole, layout
        self.shards = [Shard(shard_server(whole, layout, i)) for i in range(layout.shards)]
        whole.split_into = tuple(shard.server for shard in self.shards if shard.server is not whole)
        self._moved = threading.Condition()  # notified when a shard has executed an order
        self._given = 0
        self._failed: BaseException | None = None
        self._closed = False
        self.moved: Callable[[Tensor], None] | None = (
            None  # receives the change of the dense values by a gradient
        )
        several = layout.shards > 1
        self._orders = [queue.SimpleQueue[Order | None]() for _ in self.shards if several]
        self._threads = [
            threading.Thread(target=self._serve, args=(i,), name=f"gearshift-shard-{i}", daemon=True)
            for i in range(len(self._orders))
        ]
        for thread in self._threads:
            thread.start()

    # ---- from workers' threads ----

    def wait_for(self, version: int) -> int:
        """Wait until every shard has applied step `version`. Returns the oldest step that a pull may now see."""
        with self._moved:
            self._moved.wait_for(lambda: self._closed or self._oldest() >= version)
            return self._oldest()

    def extrapolate(self, begin: Begin) -> Tensor | None:
        """The dense values that this work pulls; None: the stored ones."""
        if not begin.extrapolation.steps:
            return None
        parts = [shard.extrapolate(begin.version, begin.extrapolation) for shard in self.shards]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def push(self, lease: int, push: LocalPush) -> None:
        """The gradient waits on every shard, unless its lease has ended."""
        parts = self.layout.split_any(push) if self._threads else [push]
        for shard, part in zip(self.shards, parts, strict=True):
            shard.take(lease, part)

    # ---- from the thread that issues orders ----

    def keep(self, lease: int) -> None:
        """Copy a waiting gradient before the worker overwrites its buffers. Split gradients are already copies."""
        if not self._threads:
            self.shards[0].keep(lease)

    def carry_out(self, what: ApplyStep | Drop, open_from: int) -> bool:
        """Execute an order on all shards. Returns when the last has finished."""
        before = self.whole.flat.clone() if self.moved is not None and self._has_gradient(what) else None
        self._given += 1
        order = Order(self._given, what, open_from)
        if not self._threads:
            self._execute(self.shards[0], order)
        for orders in self._orders:
            orders.put(order)
        with self._moved:
            self._moved.wait_for(
                lambda: self._failed is not None or all(shard.done == self._given for shard in self.shards)
            )
        if self._failed is not None:
            raise self._failed
        self.whole.step = self.shards[0].step
        if before is not None and self.moved is not None:
            self.moved(self.whole.flat - before)
        return True

    def _has_gradient(self, what: ApplyStep | Drop) -> bool:
        """Whether the servers make this step. Otherwise the workers have made it, on their replicas."""
        waiting = self.shards[0].waiting
        return isinstance(what, ApplyStep) and any(
            lease in waiting and not isinstance(waiting[lease], AppliedPush) for lease, _ in what.parts
        )

    def close(self) -> None:
        """Stop the threads: no more orders will come. Repeated calls have no effect."""
        for orders in self._orders:
            orders.put(None)
        for thread in self._threads:
            thread.join()
        with self._moved:
            self._closed = True
            self._moved.notify_all()

    def _oldest(self) -> int:
        return min(shard.step for shard in self.shards)

    def _serve(self, i: int) -> None:
        while (order := self._orders[i].get()) is not None:
            try:
                self._execute(self.shards[i], order)
            except BaseException as error:
                self._failed = error
                with self._moved:
                    self._moved.notify_all()

    def _execute(self, shard: Shard, order: Order) -> None:
        shard.receive(order)
        with self._moved:
            self._moved.notify_all()
