"""The shards of one process: workers push into them and wait for versions, one thread gives orders.

A single shard carries out its orders where they are given. Several have a thread each: they apply the same steps in
the same order but not at the same moment, and a worker that wants step k waits until the last has applied it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from torch import Tensor

from gearshift.parameters.push import Push
from gearshift.parameters.server import Server
from gearshift.parameters.shard import ApplyStep, Drop, Order, Shard, ShardLayout, shard_server


class LocalShards:
    def __init__(self, whole: Server, layout: ShardLayout) -> None:
        self.whole, self.layout = whole, layout
        self.shards = [Shard(shard_server(whole, layout, i)) for i in range(layout.shards)]
        whole.split_into = tuple(shard.server for shard in self.shards if shard.server is not whole)
        self._moved = threading.Condition()  # a shard has carried out an order
        self._given = 0
        self._failed: BaseException | None = None
        self._closed = False
        self.moved: Callable[[Tensor], None] | None = (
            None  # told by how much a gradient moved the dense values
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
        """Until every shard has applied step `version`; the oldest step that a pull may now see."""
        with self._moved:
            self._moved.wait_for(lambda: self._closed or self._oldest() >= version)
            return self._oldest()

    def push(self, lease: int, push: Push) -> None:
        """The gradient waits on every shard, unless its lease has ended."""
        parts = self.layout.split(push) if self._threads else [push]
        for shard, part in zip(self.shards, parts, strict=True):
            shard.take(lease, part)

    # ---- from the thread that gives orders ----

    def keep(self, lease: int) -> None:
        """The worker goes on and will overwrite its buffers. What was split has memory of its own."""
        if not self._threads:
            self.shards[0].keep(lease)

    def carry_out(self, what: ApplyStep | Drop, open_from: int) -> bool:
        """On all shards; returns when the last has done it."""
        before = self.whole.flat.clone() if self.moved is not None and self._has_gradient(what) else None
        self._given += 1
        order = Order(self._given, what, open_from)
        if not self._threads:
            self._tell(self.shards[0], order)
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
        """Whether the servers make this step; else the workers have, on replicas of their own."""
        waiting = self.shards[0].waiting
        return isinstance(what, ApplyStep) and any(
            lease in waiting and not waiting[lease].applied for lease, _ in what.parts
        )

    def close(self) -> None:
        """No order comes any more, and nobody waits for one; the same again changes nothing."""
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
                self._tell(self.shards[i], order)
            except BaseException as error:
                self._failed = error
                with self._moved:
                    self._moved.notify_all()

    def _tell(self, shard: Shard, order: Order) -> None:
        shard.tell(order)
        with self._moved:
            self._moved.notify_all()
