"""A relay's offers of replicas to one shard: those of a machine's workers for the same meeting cross the link as one.

For a mean the relay sends the sum of its workers' values and their number; all of them get the same answer. With a
centre (easgd) the workers' offers move it one after the other: from c to (1-a)^n c + sum over i of a (1-a)^(n-i) w_i.
The relay sends that sum, the shard answers with c, and the relay repeats the moves to find what each worker gets.

The relay waits for all of its workers, but not long. If the shard cannot take several offers as one, they are sent one
by one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gearshift.engine.protocol.joint_offers import summed, total
from gearshift.engine.protocol.messages import Out, RelayAnswer, To
from gearshift.engine.protocol.relay_messages import MachineOffer, MachineTarget
from gearshift.engine.protocol.replica_messages import Offer, OfferedValues, OfferKind, Target, choices_in
from gearshift.engine.protocol.resend import ResendBackoff
from gearshift.parameters.replicas.arithmetic import centre_step
from gearshift.sync.exchange import Choices

HOLD = {OfferKind.CENTRE: 1}  # ticks for which the first offer waits for the others
HOLD_MEETING = 8  # the same for a meeting, in which all workers take part anyway


@dataclass(frozen=True)
class HeldOffer:
    offer: Offer
    choices: str

    @property
    def occasion(self) -> tuple[int, int, OfferKind]:
        """Offers of the same occasion may be sent as one."""
        return self.offer.occasion.generation, self.offer.occasion.meeting, self.offer.kind


@dataclass
class OffersInFlight:
    offers: tuple[HeldOffer, ...]  # by worker
    message: MachineOffer
    backoff: ResendBackoff = field(default_factory=ResendBackoff)


class RelayOffers:
    def __init__(self, relay: int, boot: int, shard: int) -> None:
        self._relay, self._boot, self._shard = relay, boot, shard
        self.out: Out = []
        self._number = 0  # of the last joint offer
        self._held: dict[int, HeldOffer] = {}  # by worker: the newest
        self._ticks = 0  # since the first of them came
        self._in_flight: dict[int, OffersInFlight] = {}  # by number

    def take(self, offer: Offer, choices: str, workers: Collection[int]) -> None:
        """`workers` are those of the machine that are alive."""
        one = HeldOffer(offer, choices)
        for number, sent in list(self._in_flight.items()):
            for other in sent.offers:
                if other.offer.worker == offer.worker:
                    if _stamp(other.offer) == _stamp(offer):
                        return  # sent, and not answered yet
                    if _stamp(other.offer) < _stamp(offer):
                        self._in_flight.pop(
                            number, None
                        )  # abandoned; the other offers in it are resent by their workers
        self._held[offer.worker] = one
        self._send_if_complete(workers)

    def tick(self, workers: Collection[int]) -> None:
        for number, sent in list(self._in_flight.items()):
            if not any(one.offer.worker in workers for one in sent.offers):
                del self._in_flight[number]
            elif sent.backoff.due():
                self.out.append((To("shard", self._shard), sent.message))
        self._ticks = self._ticks + 1 if self._held else 0
        if self._held:
            self._send_if_complete(workers)
        if self._held and self._ticks > max(
            HOLD.get(one.offer.kind, HOLD_MEETING) for one in self._held.values()
        ):
            self._send_all()

    def answered(self, target: MachineTarget) -> None:
        sent = self._in_flight.pop(target.number, None)
        if sent is None:
            return
        if target.split:
            if len(sent.offers) > 1:
                for one in sent.offers:
                    self._send((one,))
            return  # a single offer no longer counts; its worker will offer again
        targets = _targets(sent, target)
        for one, flat in zip(sent.offers, targets, strict=True):
            offer = one.offer
            answer = Target(target.incarnation, self._shard, offer.boot, offer.number, flat, target.state)
            self.out.append((To("worker", offer.worker), RelayAnswer(self._relay, self._shard, answer)))

    def _send_if_complete(self, workers: Collection[int]) -> None:
        together = {one.occasion for one in self._held.values()}
        if len(together) == 1 and self._held.keys() >= set(workers):
            self._send_all()

    def _send_all(self) -> None:
        """As few joint offers as possible."""
        held, self._held, self._ticks = self._held, {}, 0
        by_occasion: dict[tuple[int, int, OfferKind], list[HeldOffer]] = {}
        for worker in sorted(held):
            by_occasion.setdefault(held[worker].occasion, []).append(held[worker])
        for offers in by_occasion.values():
            self._send(tuple(offers))

    def _send(self, offers: tuple[HeldOffer, ...]) -> None:
        self._number += 1
        first = offers[0].offer
        members = tuple((one.offer.worker, one.offer.boot, one.offer.number) for one in offers)
        newest = max((one.offer.occasion for one in offers), key=lambda occasion: occasion.assembly)
        head = first.incarnation, self._relay, self._boot, self._number, first.kind, newest
        sent = OffersInFlight(offers, MachineOffer(*head, members, _joint(offers)))
        self._in_flight[self._number] = sent
        self.out.append((To("shard", self._shard), sent.message))


def _stamp(offer: Offer) -> tuple[int, int]:
    return offer.boot, offer.number


def _joint(offers: tuple[HeldOffer, ...]) -> OfferedValues | None:
    values = [one.offer.values for one in offers]
    if offers[0].offer.kind is not OfferKind.CENTRE:
        return summed(values, offers[0].offer.kind)
    moving = [value for value in values if value is not None and value.weight]
    if not moving:
        return None
    share, n = choices_in(offers[0].choices).elasticity, len(moving)
    parts = [value.flat * (share * (1 - share) ** (n - i)) for i, value in enumerate(moving, 1)]
    return OfferedValues(float(n), total(parts), {}, n)


def _targets(sent: OffersInFlight, target: MachineTarget) -> list[Tensor]:
    """What each of them merges with."""
    if not target.moved:
        return [target.flat for _ in sent.offers]
    choices, centre = choices_in(sent.offers[0].choices), target.flat.clone()
    return [_moved(centre, one.offer.values, choices) for one in sent.offers]


@torch.no_grad()
def _moved(centre: Tensor, values: OfferedValues | None, choices: Choices) -> Tensor:
    """Moves the centre as the shard would, for one worker."""
    if values is None or not values.weight:
        return centre.clone()
    return centre_step(centre, values.flat, choices)
