"""A shard as sync server: its part of the centre, or of the mean of all members; messages in, messages out.

The shard's dense weights are the centre (easgd), the global model (bmuf), or the result of the last meeting. The mean
is computed when every member has offered for the same meeting. The list of members comes as an order, so a worker that
was given up is not waited for; if it still offers, its offer changes nothing. A resent offer is answered again and
changes nothing: the answer is the current centre, or the mean that the offer was part of.

The relay of a machine offers for several workers at once. If the shard cannot take such an offer as a whole, because
one of the workers was given up or was answered already, it says so, and the relay sends the offers one by one.
"""

from __future__ import annotations

import torch

from gearshift.engine.protocol.joint_offers import (
    JointOffer,
    WaitingOffers,
    counted,
    mean,
    mean_state,
)
from gearshift.engine.protocol.messages import Out, To
from gearshift.engine.protocol.relay_messages import MachineOffer, MachineTarget
from gearshift.engine.protocol.replica_messages import (
    FIRST_GENERATION,
    Offer,
    OfferedValues,
    OfferKind,
    Target,
    choices_in,
)
from gearshift.optim.first_order import State
from gearshift.parameters.average import follow
from gearshift.parameters.replicas.arithmetic import GlobalStep, centre_step
from gearshift.parameters.server import Server
from gearshift.parameters.shard import Assemble

Result = tuple[torch.Tensor, State]


class SyncServer:
    def __init__(self, server: Server, incarnation: int, shard: int) -> None:
        self.server, self.incarnation, self.shard = server, incarnation, shard
        self._out: Out = []
        self.generation = 0  # 0: workers have no replicas yet
        self._assembly = 0  # the number of the list of members
        self._members: dict[int, int] = {}  # boots, by worker
        self._offers = WaitingOffers()  # not answered
        self._answered: dict[int, tuple[int, int]] = {}  # boot and number of the newest, by worker
        self._results: dict[int, Result] = {}  # of the last meeting that a worker was part of, by worker
        self._early = WaitingOffers()  # of a generation whose order has not come yet

    def assemble(self, order: Assemble) -> None:
        """Sets the members from here on. A new generation starts from the shard's current weights."""
        if order.generation > self.generation:
            self.generation, self._choices = order.generation, choices_in(order.choices)
            self._begin_global_step()
            self._offers.clear()
            self._answered.clear()
        self._assembly, self._members = order.number, dict(order.members)
        early, self._early = self._early, WaitingOffers()
        for offer in early.all():
            self._take(offer)
        self._meet()

    def take(self, message: Offer | MachineOffer) -> None:
        self._take(JointOffer.of(message))

    def _take(self, offer: JointOffer) -> None:
        generation = offer.occasion.generation
        before = [self._answered.get(worker, (0, 0)) for worker, _, _ in offer.members]
        stamps = [(boot, number) for _, boot, number in offer.members]
        if generation > self.generation:
            self._early.keep(offer)
        elif generation < self.generation:
            pass  # the worker has not received the new plan yet
        elif offer.kind is OfferKind.FORK:
            self._answer(offer, self._flat(), {n: v.clone() for n, v in self.server.optimizer_state.items()})
        elif stamps == before:
            self._answer_again(offer)
        elif any(stamp <= known for stamp, known in zip(stamps, before, strict=True)):
            self._refuse(offer)
        elif offer.kind is not OfferKind.CENTRE:
            self._offers.keep(offer)
            self._meet()
        elif self._all_members(offer):
            self._answered |= dict(zip(offer.workers, stamps, strict=True))
            self._move_centre(offer)
        else:
            self._refuse(offer)

    def take_out(self) -> Out:
        """The messages to send."""
        out, self._out = self._out, []
        return out

    def _all_members(self, offer: JointOffer) -> bool:
        return all(self._members.get(worker) == boot for worker, boot, _ in offer.members)

    def _begin_global_step(self) -> None:
        """The first generation continues with the velocity of the checkpoint; later ones start without."""
        self._global, server = GlobalStep(self._choices, self.server.flat), self.server
        if not self._choices.block_momentum:
            server.block_velocity = None
            return
        if server.block_velocity is not None and self.generation == FIRST_GENERATION:
            self._global.velocity.copy_(server.block_velocity)
        server.block_velocity = self._global.velocity  # the same tensor, so that a cut contains it

    # ---- results of offers ----

    @property
    def _nothing(self) -> torch.Tensor:
        return self.server.flat[:0].clone()

    def _flat(self) -> torch.Tensor:
        with self.server.dense_lock:
            return self.server.flat.clone()

    @torch.no_grad()
    def _move_centre(self, offer: JointOffer) -> None:
        """By one worker, or by several one after the other: their relay then computes what each of them gets."""
        values, server = offer.values, self.server
        if values is None or not values.weight:
            self._answer(offer, self._flat(), {})
            return
        with server.dense_lock:
            if offer.relay is None:
                target = centre_step(server.flat, values.flat, self._choices)
            else:
                target = server.flat.clone()
                server.flat.mul_((1 - self._choices.elasticity) ** values.weight).add_(values.flat)
            follow(server)
        self._answer(offer, target, {}, moved=True)

    def _meet(self) -> None:
        """Computes the mean if every member has offered for the same meeting."""
        here = list[JointOffer]()
        for offer in self._offers.all():
            if self._all_members(offer):
                here.append(offer)
            elif offer.relay is not None and offer.occasion.assembly <= self._assembly:
                self._offers.drop(offer)
                self._refuse(offer)
        if not here or sum(len(one.members) for one in here) < len(self._members):
            return
        if len({(one.occasion.meeting, one.kind) for one in here}) > 1:
            return
        if max(one.occasion.assembly for one in here) > self._assembly:
            return  # there may be members that we do not know yet
        present = [one.values for one in here if one.values is not None]
        result = self._result(here[0].kind, present) if present else (self._nothing, {})
        for one in here:
            self._offers.drop(one)
            self._answered |= {worker: (boot, number) for worker, boot, number in one.members}
            self._results |= dict.fromkeys(one.workers, result)
            self._answer(one, *result)

    @torch.no_grad()
    def _result(self, kind: OfferKind, offers: list[OfferedValues]) -> Result:
        if kind is OfferKind.MOMENTS:
            return self._nothing, mean_state(counted(offers), offers[0].state)
        with self.server.dense_lock:
            if kind is OfferKind.MEAN:
                target = self._global.step(mean(counted(offers)))
                self.server.flat.copy_(self._global.position)
                follow(self.server)
                return target.clone(), {}
            if all(len(one.flat) for one in offers):
                self.server.flat.copy_(mean(offers))
            for name, values in mean_state(offers, self.server.optimizer_state).items():
                self.server.optimizer_state[name].copy_(values)
            follow(self.server)
        return self._nothing, {}

    # ---- answers ----

    def _answer_again(self, offer: JointOffer) -> None:
        if offer.kind is OfferKind.CENTRE:
            self._answer(offer, self._flat(), {})
            return
        results = [self._results[worker] for worker in offer.workers]
        if all(one is results[0] for one in results):
            self._answer(offer, *results[0])
        else:
            self._refuse(offer)

    def _answer(self, offer: JointOffer, flat: torch.Tensor, state: State, *, moved: bool = False) -> None:
        if offer.relay is not None:
            self._answer_relay(offer.relay, flat, state, moved=moved)
            return
        ((worker, boot, number),) = offer.members
        target = Target(self.incarnation, self.shard, boot, number, flat, state)
        self._out.append((To("worker", worker), target))

    def _refuse(self, offer: JointOffer) -> None:
        """A worker's own offer that is late, or of one that was given up, needs no answer."""
        if offer.relay is not None:
            self._answer_relay(offer.relay, self._nothing, {}, split=True)

    def _answer_relay(
        self,
        to: tuple[int, int, int],
        flat: torch.Tensor,
        state: State,
        *,
        split: bool = False,
        moved: bool = False,
    ) -> None:
        relay, boot, number = to
        target = MachineTarget(self.incarnation, self.shard, boot, number, split, moved, flat, state)
        self._out.append((To("relay", relay), target))
