"""The coordinator's orders to the shards: the same for all, numbered, said again until each has carried them out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gearshift.engine.protocol.messages import Tell, To
from gearshift.parameters.shard import ApplyStep, Assemble, Drop, Order, TakeCut


class Orders:
    def __init__(self, incarnation: int, shards: int, say: Callable[[To, Tell], None]) -> None:
        self._incarnation, self._say = incarnation, say
        self._given = 0
        self.open: deque[Order] = deque()  # not carried out by all
        self._done = dict.fromkeys(range(shards), 0)  # carried out, by shard
        self._step = 0  # the number of the step under way, 0: none

    def give(self, what: ApplyStep | Drop | TakeCut | Assemble, open_from: int) -> None:
        self._given += 1
        order = Order(self._given, what, open_from)
        self.open.append(order)
        if isinstance(what, ApplyStep):
            self._step = order.number
        for shard in self._done:
            self._say(To("shard", shard), Tell(self._incarnation, order))

    def again(self) -> None:
        for order in self.open:
            for shard, done in self._done.items():
                if order.number > done:
                    self._say(To("shard", shard), Tell(self._incarnation, order))

    def done(self, shard: int, number: int) -> bool:
        """Up to this number, by this shard. Whether all have now made the step that was under way."""
        self._done[shard] = max(self._done[shard], number)
        by_all = min(self._done.values())
        while self.open and self.open[0].number <= by_all:
            self.open.popleft()
        if 0 < self._step <= by_all:
            self._step = 0
            return True
        return False
