"""A shard as sync server: its part of the centre, or of the mean of all members; messages in, messages out.

The shard's dense weights are the centre (easgd), the global model (bmuf), or the result of the last meeting. The mean
is computed when every member has offered for the same meeting. The list of members comes as an order, so a lost worker
is not waited for; if it still sends an offer, the offer changes nothing. A resent offer is answered again and changes
nothing: the answer is the current centre, or the mean that the offer was part of.
"""

from __future__ import annotations

import torch

from gearshift.engine.protocol.messages import Out, To
from gearshift.engine.protocol.replica_messages import (
    FIRST_GENERATION,
    Offer,
    OfferedValues,
    OfferKind,
    Target,
    choices_in,
)
from gearshift.optim.first_order import State
from gearshift.parameters.replicas.arithmetic import GlobalStep, centre_step, mean_of
from gearshift.parameters.replicas.group import mean_state
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
        self._offers: dict[int, Offer] = {}  # the newest unanswered offer, by worker
        self._answered: dict[int, tuple[int, int]] = {}  # boot and number of the newest offer, by worker
        self._results: dict[
            int, Result
        ] = {}  # the result of the last meeting that a worker took part in, by worker
        self._early: dict[
            int, Offer
        ] = {}  # offers of a generation whose order has not arrived yet, by worker

    def assemble(self, order: Assemble) -> None:
        """Sets the members from here on. A new generation starts from the shard's current weights."""
        if order.generation > self.generation:
            self.generation, self._choices = order.generation, choices_in(order.choices)
            self._begin_global_step()
            self._offers.clear()
            self._answered.clear()
        self._assembly, self._members = order.number, dict(order.members)
        early, self._early = self._early, {}
        for offer in early.values():
            self.take(offer)
        self._meet()

    def take(self, offer: Offer) -> None:
        worker, stamp = offer.worker, (offer.boot, offer.number)
        answered = self._answered.get(worker, (0, 0))
        generation = offer.occasion.generation
        if generation > self.generation:
            self._keep_newest(self._early, offer)
        elif generation < self.generation:
            pass  # the worker has not received the new plan yet
        elif offer.kind is OfferKind.FORK:
            self._answer(offer, self._flat(), {n: v.clone() for n, v in self.server.optimizer_state.items()})
        elif stamp == answered:
            self._answer(
                offer, *((self._flat(), {}) if offer.kind is OfferKind.CENTRE else self._results[worker])
            )
        elif stamp > answered and offer.kind is OfferKind.CENTRE:
            if self._members.get(worker) == offer.boot:
                self._answered[worker] = stamp
                self._answer(offer, self._centre(offer), {})
        elif stamp > answered:
            self._keep_newest(self._offers, offer)
            self._meet()

    def take_out(self) -> Out:
        """The messages to send."""
        out, self._out = self._out, []
        return out

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

    def _centre(self, offer: Offer) -> torch.Tensor:
        if offer.values is None or not offer.values.weight:
            return self._flat()
        with self.server.dense_lock:
            return centre_step(self.server.flat, offer.values.flat, self._choices)

    def _meet(self) -> None:
        """Computes the mean if every member has offered for the same meeting."""
        offers = [self._offers.get(worker) for worker in sorted(self._members)]
        here = [one for one in offers if one is not None and one.boot == self._members[one.worker]]
        if not here or len(here) < len(offers) or len({(one.occasion.meeting, one.kind) for one in here}) > 1:
            return
        if max(one.occasion.assembly for one in here) > self._assembly:
            return  # there may be members that we do not know yet
        present = [one.values for one in here if one.values is not None]
        result = self._result(here[0].kind, present) if present else (self._nothing, {})
        for one in here:
            del self._offers[one.worker]
            self._answered[one.worker] = one.boot, one.number
            self._results[one.worker] = result
            self._answer(one, *result)

    @torch.no_grad()
    def _result(self, kind: OfferKind, offers: list[OfferedValues]) -> Result:
        weights = [one.weight for one in offers]
        if kind is OfferKind.MOMENTS:
            names = offers[0].state
            return self._nothing, {n: mean_of([one.state[n] for one in offers], weights) for n in names}
        with self.server.dense_lock:
            if kind is OfferKind.MEAN:
                target = self._global.step(mean_of([one.flat for one in offers], weights))
                self.server.flat.copy_(self._global.position)
                return target.clone(), {}
            if all(len(one.flat) for one in offers):
                self.server.flat.copy_(mean_of([one.flat for one in offers]))
            states = [one.state for one in offers]
            for name, values in mean_state(states, self.server.optimizer_state).items():
                self.server.optimizer_state[name].copy_(values)
        return self._nothing, {}

    def _answer(self, offer: Offer, flat: torch.Tensor, state: State) -> None:
        target = Target(self.incarnation, self.shard, offer.boot, offer.number, flat, state)
        self._out.append((To("worker", offer.worker), target))

    @staticmethod
    def _keep_newest(kept: dict[int, Offer], offer: Offer) -> None:
        before = kept.get(offer.worker, offer)
        if _order(offer) >= _order(before):
            kept[offer.worker] = offer


def _order(offer: Offer) -> tuple[int, int, int]:
    """A sort key: of two offers of a worker, the newer one has the higher key."""
    return offer.occasion.generation, offer.boot, offer.number
