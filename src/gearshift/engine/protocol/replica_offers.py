"""A worker's offers to the shards: each shard gets its part, unanswered parts are resent, and answers are combined.

An exchange and a request for a fork may be in flight at the same time, one of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gearshift.engine.protocol.messages import To
from gearshift.engine.protocol.replica_messages import Occasion, Offer, OfferedValues, OfferKind, Target
from gearshift.engine.protocol.resend import ResendBackoff
from gearshift.optim.first_order import State
from gearshift.parameters.shard import ShardLayout


@dataclass
class ExchangeInFlight:
    kind: OfferKind
    number: int
    meeting: int  # 0: none
    offers: dict[int, Offer]  # by shard, until it has answered
    answers: dict[int, Target] = field(default_factory=dict)
    backoff: ResendBackoff = field(default_factory=ResendBackoff)

    def take(self, target: Target) -> bool:
        """Records an answer. Returns True if it was the last one that was missing."""
        if self.offers.pop(target.shard, None) is None:
            return False
        self.answers[target.shard] = target
        return not self.offers

    def joined(self) -> tuple[Tensor, State]:
        """The answers of all shards, concatenated."""
        parts = [self.answers[shard] for shard in sorted(self.answers)]
        state = {
            name: torch.cat([part.state[name] for part in parts]) if values.dim() else values.clone()
            for name, values in parts[0].state.items()
        }
        return torch.cat([part.flat for part in parts]), state


class ReplicaOffers:
    """The offers of one boot."""

    def __init__(
        self, worker: int, boot: int, layout: ShardLayout, send: Callable[[To, Offer], None]
    ) -> None:
        self._worker, self._boot, self._layout, self._send = worker, boot, layout, send
        self._number = 0  # number of the last offer
        self.forking: ExchangeInFlight | None = None
        self.exchange: ExchangeInFlight | None = None

    def ask_fork(self, incarnation: int, occasion: Occasion) -> None:
        """Requests the weights and optimizer state that the replica starts with."""
        self.forking = self._offer(incarnation, OfferKind.FORK, occasion, None)

    def begin(
        self, incarnation: int, kind: OfferKind, occasion: Occasion, offered: OfferedValues | None
    ) -> None:
        """Starts an exchange, which ends when all shards have answered. It has no values if there is no replica yet."""
        self.exchange = self._offer(incarnation, kind, occasion, offered)

    def forget(self) -> None:
        """Drops everything in flight; late answers will be ignored."""
        self.forking = self.exchange = None

    def abandon(self, kind: OfferKind) -> bool:
        """Drops the exchange in flight if it is of this kind. Returns whether it was."""
        if self.exchange is None or self.exchange.kind is not kind:
            return False
        self.exchange = None
        return True

    def resend(self) -> None:
        """Called at each tick: resends what is due."""
        for exchange in (self.forking, self.exchange):
            if exchange is not None and exchange.backoff.due():
                self._send_open(exchange)

    def resend_soon(self) -> None:
        for exchange in (self.forking, self.exchange):
            if exchange is not None:
                exchange.backoff.restart()

    def take_fork(self, target: Target) -> ExchangeInFlight | None:
        """Processes an answer to the request for a fork. Returns the request if this was the last answer."""
        forking = self.forking
        if forking is None or target.number != forking.number or not forking.take(target):
            return None
        self.forking = None
        return forking

    def take(self, target: Target) -> ExchangeInFlight | None:
        """Processes an answer to the exchange. Returns the exchange if this was the last answer."""
        exchange = self.exchange
        if exchange is None or target.number != exchange.number or not exchange.take(target):
            return None
        self.exchange = None
        return exchange

    def _offer(
        self, incarnation: int, kind: OfferKind, occasion: Occasion, offered: OfferedValues | None
    ) -> ExchangeInFlight:
        self._number += 1
        head = incarnation, self._worker, self._boot, self._number, kind, occasion
        offers = {
            shard: Offer(*head, None if offered is None else _part(offered, columns))
            for shard, columns in enumerate(self._layout.dense)
        }
        exchange = ExchangeInFlight(kind, self._number, occasion.meeting, offers)
        self._send_open(exchange)
        return exchange

    def _send_open(self, exchange: ExchangeInFlight) -> None:
        for shard, offer in exchange.offers.items():
            self._send(To("shard", shard), offer)


def _part(offered: OfferedValues, columns: slice) -> OfferedValues:
    """A shard's part of the offer. State that is a single number goes to every shard."""
    flat = offered.flat[columns] if len(offered.flat) else offered.flat
    state = {name: values[columns] if values.dim() else values for name, values in offered.state.items()}
    return OfferedValues(offered.weight, flat, state)
