"""A worker's link to the relay of its machine: whether there is one, and whether it is alive."""

from __future__ import annotations

from collections.abc import Callable

from gearshift.engine.protocol.messages import Give, Message, Pull, RelayRequest, To
from gearshift.engine.protocol.replica_messages import Offer

MISSED = 3  # ticks without a heartbeat, after which the other side is considered gone


class RelayLink:
    def __init__(self, relay_of: Callable[[], int | None]) -> None:
        """`relay_of` returns the number of this machine's relay, once it is known."""
        self._relay_of = relay_of
        self._number: int | None = None
        self._silent = MISSED + 1  # ticks

    @property
    def to(self) -> To | None:
        """Where requests go; None: to the shards."""
        return None if self._number is None or self._silent > MISSED else To("relay", self._number)

    def routed(
        self, worker: int, to: To, message: Pull | Give | Offer, choices: str = ""
    ) -> tuple[To, Message]:
        """A message to a shard, by way of the relay if there is one; `choices` are those of an offer's replicas."""
        relay = self.to
        return (to, message) if relay is None else (relay, RelayRequest(worker, to.number, choices, message))

    def heard(self, relay: int) -> None:
        if relay == self._number:
            self._silent = 0

    def tick(self) -> To | None:
        """Returns the relay to which a heartbeat is due."""
        number = self._relay_of()
        if number != self._number:
            self._number, self._silent = number, MISSED + 1
        self._silent += 1
        return None if number is None else To("relay", number)
