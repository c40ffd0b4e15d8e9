"""A worker's replica and its exchanges with the shards: message in, messages out, no thread.

A worker hears messages while it computes, so its exchanges go on beside the training without a thread of their own:
what the shards answer is merged into the replica when it comes. One exchange is under way at a time, and one request
for a fork. A meeting of all is a sequence of them, in which no step is made; after one whose result is shown (to be
evaluated, saved, or taken over by another strategy) the worker stays still until it hears `Go`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gearshift.engine.protocol.messages import COORDINATOR, Out, To
from gearshift.engine.protocol.replica_messages import (
    ExchangePlan,
    Go,
    Meet,
    Met,
    Offer,
    OfferKind,
    Target,
    choices_in,
)
from gearshift.engine.protocol.resend import ResendBackoff
from gearshift.optim.first_order import State
from gearshift.parameters.push import Push
from gearshift.parameters.replicas.figures import Counts
from gearshift.parameters.replicas.group import for_rows, fork, local_gradient, rule_for
from gearshift.parameters.replicas.moments import phases_before_weights
from gearshift.parameters.replicas.replica import DenseReplica
from gearshift.parameters.server import Server
from gearshift.parameters.shard import ShardLayout
from gearshift.sync.exchange import Background, Choices, EverySeconds, EverySteps

REST = 0.02  # seconds at least between two exchanges in the background: they must leave time for training
IDLE_TICKS = 2  # for which it has asked for work in vain, after which a worker counts as finished


@dataclass
class ExchangeInFlight:
    """An exchange under way."""

    kind: OfferKind
    number: int
    meeting: int
    offers: dict[int, Offer]  # by shard, until it has answered
    answers: dict[int, Target] = field(default_factory=dict)
    backoff: ResendBackoff = field(default_factory=ResendBackoff)

    def take(self, target: Target) -> bool:
        """Whether that was the last answer."""
        if self.offers.pop(target.shard, None) is None:
            return False
        self.answers[target.shard] = target
        return not self.offers


class Exchanger:
    def __init__(self, worker: int, server: Server, layout: ShardLayout, clock: Callable[[], float]) -> None:
        """`server` is the whole one of this process: optimizer and layers are the run's, its values are not."""
        self.worker, self._server, self._layout, self._clock = worker, server, layout, clock
        self._out: Out = []
        self.restart(0)

    def restart(self, boot: int) -> None:
        """The worker starts anew, and knows nothing of what it did."""
        self.boot, self.incarnation = boot, 0
        self.plan = ExchangePlan()
        self.replica: DenseReplica | None = None
        self.counts = Counts()
        self.due: float | None = None  # when `wake` shall be called
        self.lease: int | None = None  # the last whose step was made, or whose gradient was given
        self._number = 0  # of the last offer
        self._forking: ExchangeInFlight | None = None
        self._in_flight: ExchangeInFlight | None = None
        self._meeting, self._met, self._frozen = 0, 0, 0  # numbers of meetings, 0: none
        self._assembly = 0  # of the meeting
        self._show = False  # is what it is for
        self._phases: deque[OfferKind] = deque()  # of the meeting, still to come
        self._absent = False  # it had no replica when the meeting began
        self._exchanged_at = 0.0
        self._moved = 0  # bytes of the meeting's moments, which count with its weights
        self._idle = 0  # ticks without work

    # ---- what the worker asks ----

    @property
    def replicated(self) -> bool:
        return bool(self.plan.choices)

    @property
    def ready(self) -> bool:
        """Whether there is something to compute on."""
        return not self.replicated or self.replica is not None

    @property
    def may_step(self) -> bool:
        return self.ready and not self._meeting and not self._frozen

    @property
    def in_the_way(self) -> bool:
        """Whether an exchange in the training loop is under way."""
        return self._in_flight is not None and not self._background

    @property
    def _background(self) -> bool:
        return self.replica is not None and isinstance(self.replica.choices.trigger, Background)

    def busy(self, plan: ExchangePlan) -> None:
        """There is work to do, under this plan."""
        self._idle = 0
        if self.replica is not None:
            self.replica.finished = False
        if not self._frozen:
            self._adopt(plan)

    def step(self, parts: Sequence[Push], rate: float) -> list[Push]:
        """Of one gradient, by shard: the dense part into the replica; what is left for the shards."""
        assert self.replica is not None
        dense = torch.cat([part.dense for part in parts])
        self.replica.step(local_gradient(self._server, dense, parts[0].examples), lr_scale=rate)
        if self._exchange_is_due(self.replica):
            self._exchanged_at = self._clock()
            self._exchange(OfferKind.CENTRE)
        return [for_rows(replace(part, dense=part.dense[:0]), self.replica.choices) for part in parts]

    def _exchange_is_due(self, replica: DenseReplica) -> bool:
        """In the training loop with the centre; where all meet, the coordinator says when."""
        choices, trigger = replica.choices, replica.choices.trigger
        if choices.exchange != "centre":
            return False
        if isinstance(trigger, EverySteps):
            return replica.steps % trigger.steps == 0
        return isinstance(trigger, EverySeconds) and self._clock() - self._exchanged_at >= trigger.seconds

    # ---- what it hears ----

    def handle(self, message: Target | Meet | Go) -> None:
        match message:
            case Target(number=number) if self._forking is not None and number == self._forking.number:
                if self._forking.take(message):
                    self._fork(self._forking)
            case Target(number=number) if self._in_flight is not None and number == self._in_flight.number:
                if self._in_flight.take(message):
                    self._take(self._in_flight)
            case Meet():
                self._meet(message)
            case Go(_, _, number, plan) if self._frozen and number >= self._frozen:
                self._frozen = 0
                self._adopt(plan)
                self._go_on()
            case _:
                pass  # late

    def tick(self, *, asking: bool) -> None:
        """Time has passed: what was not answered is said again. `asking`: the worker has nothing to do."""
        self._idle = self._idle + 1 if asking else 0
        if self.replica is not None and self._idle >= IDLE_TICKS:
            self.replica.finished = True
        for exchange in (self._forking, self._in_flight):
            if exchange is not None and exchange.backoff.due():
                self._send(exchange)
        if self._frozen and self._frozen == self._met:
            self._say_met(self._met)

    def wake(self) -> None:
        """When `due`: the next exchange in the background."""
        if self.due is not None and self._clock() >= self.due:
            self.due = None
            if self._background and self._in_flight is None and not self._meeting and not self._frozen:
                assert self.replica is not None
                centre = self.replica.choices.exchange == "centre"
                self._exchange(OfferKind.CENTRE if centre else OfferKind.MEAN)

    def said(self) -> Out:
        """What is to be sent."""
        out, self._out = self._out, []
        return out

    # ---- plans and forks ----

    def _adopt(self, plan: ExchangePlan) -> None:
        if plan.generation <= self.plan.generation:
            return
        before, self.plan = self.plan, plan
        self._in_flight = self._forking = self.due = None
        if self.replica is not None:
            self.replica.sent = None
            self.replica.finish_step()
        if not plan.choices or before.lineage != plan.lineage:
            self.replica = None
        if not plan.choices:
            return
        choices = choices_in(plan.choices)
        if self.replica is not None:  # another strategy over the same replica
            self.replica = self._forked(self.replica.flat, self.replica.state, choices)
        self._go_on()

    def _forked(self, flat: Tensor, state: State, choices: Choices) -> DenseReplica:
        return fork(flat, state, rule_for(self._server, choices), choices, self.counts)

    def _fork(self, exchange: ExchangeInFlight) -> None:
        self._forking = None
        flat, state = self._joined(exchange.answers)
        self.replica = self._forked(flat, state, choices_in(self.plan.choices))
        self._exchanged_at = self._clock()
        self._go_on()

    def _go_on(self) -> None:
        """With whatever a worker does beside its training."""
        if not self.replicated or self._meeting or self._frozen:
            return
        if self.replica is None and self._forking is None:
            self._forking = self._offer(OfferKind.FORK, None, 0.0, self._nothing, {})
        elif self._background and self._in_flight is None and self.due is None:
            self.due = self._clock()

    # ---- exchanges ----

    @property
    def _nothing(self) -> Tensor:
        return self._server.flat[:0].clone()

    def _exchange(self, kind: OfferKind) -> None:
        """Of one's own accord: it ends when all shards have answered."""
        assert self.replica is not None
        self._in_flight = self._offer(kind, self.replica, self.replica.weight, self.replica.send(), {})

    def _offer(
        self, kind: OfferKind, replica: DenseReplica | None, weight: float, flat: Tensor, state: State
    ) -> ExchangeInFlight:
        """To every shard its part."""
        self._number += 1
        generation, meeting = self.plan.generation, self._meeting
        assembly = self._assembly if meeting else 0
        head = self.incarnation, self.worker, self.boot, self._number, generation, meeting, assembly, kind
        present = replica is not None
        offers = {
            shard: Offer(*head, present, weight, flat[own] if len(flat) else flat, _part(state, own))
            for shard, own in enumerate(self._layout.dense)
        }
        exchange = ExchangeInFlight(kind, self._number, meeting, offers)
        self._send(exchange)
        return exchange

    def _send(self, exchange: ExchangeInFlight) -> None:
        for shard, offer in exchange.offers.items():
            self._out.append((To("shard", shard), offer))

    def _take(self, exchange: ExchangeInFlight) -> None:
        """All shards have answered."""
        self._in_flight = None
        # To one without a replica the shards may have answered differently: another was lost meanwhile.
        if self.replica is not None and not (exchange.meeting and self._absent):
            self._merge(self.replica, exchange, *self._joined(exchange.answers))
        if self._meeting:
            self._next_phase()
        elif self.replica is not None and isinstance(trigger := self.replica.choices.trigger, Background):
            self.due = self._clock() + max(REST, trigger.pause)

    def _merge(self, replica: DenseReplica, exchange: ExchangeInFlight, flat: Tensor, state: State) -> None:
        if exchange.kind is OfferKind.MOMENTS:
            for phase in phases_before_weights(replica.choices, replica.rule):
                phase.take(replica.state, state[phase.name])
                self._moved += 2 * state[phase.name].nbytes
        elif exchange.kind is not OfferKind.SHOW:
            assert replica.sent is not None
            sent, replica.sent = replica.sent, None
            moved, self._moved = self._moved + 2 * sent.nbytes, 0
            replica.take(sent, flat, moved, counts=not (exchange.meeting and self._show))

    def _joined(self, answers: dict[int, Target]) -> tuple[Tensor, State]:
        """What the shards sent, as one."""
        parts = [answers[shard] for shard in range(self._layout.shards)]
        state = {
            name: torch.cat([part.state[name] for part in parts]) if values.dim() else values.clone()
            for name, values in parts[0].state.items()
        }
        return torch.cat([part.flat for part in parts]), state

    # ---- meetings ----

    def _meet(self, meet: Meet) -> None:
        if meet.number <= self._met:
            self._say_met(meet.number)
        elif meet.number != self._meeting:
            self._meeting, self._assembly, self._show = meet.number, meet.assembly, meet.show
            self._frozen = meet.number if meet.show else 0
            self._adopt(meet.plan)
            self._absent, self._forking, self.due = self.replica is None, None, None
            self._phases = deque(self._phases_of(meet))
            self._abandon_mean()
            if self._in_flight is None:
                self._next_phase()

    def _abandon_mean(self) -> None:
        """In the background: others were called to the meeting before they came to it, and will not come any more."""
        if (
            self._in_flight is not None
            and self._in_flight.kind is OfferKind.MEAN
            and self.replica is not None
        ):
            self._in_flight = self.replica.sent = None

    def _phases_of(self, meet: Meet) -> list[OfferKind]:
        """Moments first, then weights, then what is shown."""
        if not meet.plan.choices:
            return []
        choices = choices_in(meet.plan.choices)
        merges = not meet.show or (choices.merge == "overwrite" and not choices.block_momentum)
        moments = merges and phases_before_weights(choices, rule_for(self._server, choices))
        return [OfferKind.MOMENTS] * bool(moments) + [OfferKind.MEAN] * merges + [OfferKind.SHOW] * meet.show

    def _next_phase(self) -> None:
        if not self._phases:
            self._met, self._meeting = self._meeting, 0
            self._say_met(self._met)
            self._go_on()
            return
        kind, replica = self._phases.popleft(), self.replica
        if replica is None or self._absent:
            self._in_flight = self._offer(kind, None, 0.0, self._nothing, {})
            return
        flat, state = self._given(kind, replica)
        self._in_flight = self._offer(kind, replica, replica.weight, flat, state)

    def _given(self, kind: OfferKind, replica: DenseReplica) -> tuple[Tensor, State]:
        """To a phase of a meeting."""
        choices = replica.choices
        if kind is OfferKind.MOMENTS:
            phases = phases_before_weights(choices, replica.rule)
            return self._nothing, {phase.name: phase.give(replica.state).clone() for phase in phases}
        replica.finish_step()
        if kind is OfferKind.MEAN:
            return replica.send(), {}
        state = {name: replica.state[name].clone() for name in self._server.optimizer_state}
        on_shards = choices.exchange == "centre" or choices.block_momentum or choices.merge == "overwrite"
        return self._nothing if on_shards else replica.flat.clone(), state

    def _say_met(self, number: int) -> None:
        counts = replace(self.counts)
        self._out.append(
            (COORDINATOR, Met(self.incarnation, self.worker, self.boot, number, self.lease, counts))
        )


def _part(state: State, own: slice) -> State:
    """A shard's; what is one number is everybody's."""
    return {name: values[own] if values.dim() else values for name, values in state.items()}
