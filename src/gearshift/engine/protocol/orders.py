"""The coordinator's orders to the shards: the same for all, numbered, and resent until each has carried them out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gearshift.engine.protocol.messages import Tell, To
from gearshift.parameters.shard import ApplyStep, Assemble, Drop, Order, TakeCut


class Orders:
    def __init__(self, incarnation: int, shards: int, send: Callable[[To, Tell], None]) -> None:
        self._incarnation, self._send = incarnation, send
        self._given = 0
        self.open: deque[Order] = deque()  # not carried out by all shards
        self._done = dict.fromkeys(range(shards), 0)  # the highest number carried out, by shard
        self._step = 0  # the order of the step in progress; 0: none

    def carry_out(self, what: ApplyStep | Drop | TakeCut | Assemble, open_from: int) -> bool:
        """Sends an order to all shards. It is never carried out at once: `done` reports the end of a step."""
        self._given += 1
        order = Order(self._given, what, open_from)
        self.open.append(order)
        if isinstance(what, ApplyStep):
            self._step = order.number
        for shard in self._done:
            self._send(To("shard", shard), Tell(self._incarnation, order))
        return False

    def resend(self) -> None:
        """Every open order, to the shards that have not carried it out."""
        for order in self.open:
            for shard, done in self._done.items():
                if order.number > done:
                    self._send(To("shard", shard), Tell(self._incarnation, order))

    def done(self, shard: int, number: int) -> bool:
        """A shard has carried out orders up to this number. Returns whether all have made the current step."""
        self._done[shard] = max(self._done[shard], number)
        by_all = min(self._done.values())
        while self.open and self.open[0].number <= by_all:
            self.open.popleft()
        if 0 < self._step <= by_all:
            self._step = 0
            return True
        return False
