"""Offers of replicas as a shard keeps them: of one worker, or of several workers of a machine as one sum.

The mean over all replicas is the sum of the sums, divided by the number of replicas in them. So it makes no difference,
up to rounding, which workers were summed on their machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gearshift.engine.protocol.relay_messages import MachineOffer, Member
from gearshift.engine.protocol.replica_messages import Occasion, Offer, OfferedValues, OfferKind
from gearshift.optim.first_order import State


@dataclass(frozen=True)
class JointOffer:
    members: tuple[Member, ...]  # by worker
    kind: OfferKind
    occasion: Occasion
    values: OfferedValues | None
    relay: tuple[int, int, int] | None  # relay, boot and number, for the answer; None: the worker itself

    @classmethod
    def of(cls, offer: Offer | MachineOffer) -> JointOffer:
        if isinstance(offer, Offer):
            members: tuple[Member, ...] = ((offer.worker, offer.boot, offer.number),)
            return cls(members, offer.kind, offer.occasion, offer.values, None)
        relay = offer.relay, offer.boot, offer.number
        return cls(offer.members, offer.kind, offer.occasion, offer.values, relay)

    @property
    def workers(self) -> tuple[int, ...]:
        return tuple(worker for worker, _, _ in self.members)


class WaitingOffers:
    """The offers that wait for a meeting: the newest of each worker. A machine's sum replaces a worker's own copy."""

    def __init__(self) -> None:
        self._by_worker: dict[int, JointOffer] = {}

    def all(self) -> list[JointOffer]:
        """Each offer once, in the order of its first worker."""
        by_worker = sorted(self._by_worker.items())
        return [offer for worker, offer in by_worker if offer.workers[0] == worker]

    def keep(self, offer: JointOffer) -> None:
        others = {id(one): one for worker in offer.workers if (one := self._by_worker.get(worker))}.values()
        if any(_is_newer(one, offer) for one in others):
            return
        for one in others:
            self.drop(one)
        self._by_worker |= dict.fromkeys(offer.workers, offer)

    def drop(self, offer: JointOffer) -> None:
        for worker in offer.workers:
            del self._by_worker[worker]

    def clear(self) -> None:
        self._by_worker.clear()


def _is_newer(kept: JointOffer, offer: JointOffer) -> bool:
    """Whether `kept` stays: it has a later plan, a later offer of a worker, or all of these offers and more."""
    stamps = {worker: (boot, number) for worker, boot, number in kept.members}
    if kept.occasion.generation != offer.occasion.generation:
        return kept.occasion.generation > offer.occasion.generation
    if any(stamps.get(worker, (0, 0)) > (boot, number) for worker, boot, number in offer.members):
        return True
    return len(kept.members) > len(offer.members) and set(offer.members) <= set(kept.members)


def summed(offers: Sequence[OfferedValues | None], kind: OfferKind) -> OfferedValues | None:
    """Several offers as one. In a mean, offers without weight count only if none has any."""
    present = [one for one in offers if one is not None]
    if not present:
        return None
    weight = sum(one.weight for one in present)
    chosen = counted(present) if kind in (OfferKind.MEAN, OfferKind.MOMENTS) else present
    state = {name: total([one.state[name] for one in chosen]) for name in chosen[0].state}
    with_weights = all(len(one.flat) for one in chosen)
    flat = total([one.flat for one in chosen]) if with_weights else chosen[0].flat[:0].clone()
    return OfferedValues(weight, flat, state, sum(one.replicas for one in chosen))


def counted(offers: Sequence[OfferedValues]) -> list[OfferedValues]:
    """Those that count in a mean: those with a positive weight, or all if there are none."""
    return [one for one in offers if one.weight > 0] or list(offers)


@torch.no_grad()
def total(values: Sequence[Tensor]) -> Tensor:
    """Summed in the given order."""
    result = values[0].clone()
    for other in values[1:]:
        result.add_(other)
    return result


def mean(offers: Sequence[OfferedValues]) -> Tensor:
    """Of the weights of all their replicas."""
    return total([one.flat for one in offers]).div_(sum(one.replicas for one in offers))


def mean_state(offers: Sequence[OfferedValues], names: Iterable[str]) -> State:
    """Of optimizer states; step counts are rounded."""
    replicas, state = sum(one.replicas for one in offers), dict[str, Tensor]()
    for name in names:
        values = total([one.state[name] for one in offers])
        floating = values.is_floating_point()
        state[name] = (
            values.div_(replicas) if floating else (values.double() / replicas).round().to(values.dtype)
        )
    return state
