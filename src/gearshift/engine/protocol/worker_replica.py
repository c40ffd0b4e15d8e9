"""A worker's replica of the dense weights and the plan that it follows: forked, stepped, offered and merged.

It has no messages and no clock. There is no replica if the plan has none, or before the first fork has arrived.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gearshift.engine.protocol.replica_messages import (
    ExchangePlan,
    Meet,
    OfferedValues,
    OfferKind,
    choices_in,
)
from gearshift.optim.first_order import State
from gearshift.parameters.push import Push, ReplicaRowsPush, ShardPush
from gearshift.parameters.replicas.figures import Counts
from gearshift.parameters.replicas.group import for_rows, fork, local_gradient, rule_for
from gearshift.parameters.replicas.moments import phases_before_weights
from gearshift.parameters.replicas.replica import DenseReplica
from gearshift.parameters.server import Server
from gearshift.sync.exchange import Background, Choices, EverySeconds, EverySteps

IDLE_TICKS = 2  # after this many ticks without work a worker counts as finished


class WorkerReplica:
    """The replica of one boot."""

    def __init__(self, server: Server) -> None:
        """`server` is the unsharded server of this process: it has the optimizer and layers, but not the values."""
        self._server = server
        self.plan = ExchangePlan()
        self.replica: DenseReplica | None = None
        self.counts = Counts()
        self._idle = 0  # ticks without work
        self._moved = 0  # bytes of a meeting's moments, counted together with its weights
        self._exchanged_at = 0.0  # in the training loop

    @property
    def replicated(self) -> bool:
        return bool(self.plan.choices)

    @property
    def ready(self) -> bool:
        """Whether there are weights to compute gradients on."""
        return not self.replicated or self.replica is not None

    @property
    def background(self) -> Background | None:
        """The settings of background exchanges, if the plan has them."""
        trigger = None if self.replica is None else self.replica.choices.trigger
        return trigger if isinstance(trigger, Background) else None

    # ---- plan and fork ----

    def adopt(self, plan: ExchangePlan) -> bool:
        """Adopts this plan if it is newer. Returns whether it was."""
        if plan.generation <= self.plan.generation:
            return False
        before, self.plan = self.plan, plan
        if self.replica is not None:
            self.replica.sent = None
            self.replica.finish_step()
        if not plan.choices or before.lineage != plan.lineage:
            self.replica = None
        if self.replica is not None:  # another strategy on the same replica
            self._fork(self.replica.flat, self.replica.state)
        return True

    def fork(self, flat: Tensor, state: State, now: float) -> None:
        """Starts the replica as a copy of these weights."""
        self._fork(flat, state)
        self._exchanged_at = now

    def _fork(self, flat: Tensor, state: State) -> None:
        choices = choices_in(self.plan.choices)
        self.replica = fork(flat, state, rule_for(self._server, choices), choices, self.counts)

    # ---- training ----

    def note_idle(self, *, asking: bool) -> None:
        """Called at each tick with whether the worker waits for work. A replica without work is finished."""
        self._idle = self._idle + 1 if asking else 0
        if self.replica is not None and self._idle >= IDLE_TICKS:
            self.replica.finished = True

    def note_busy(self) -> None:
        self._idle = 0
        if self.replica is not None:
            self.replica.finished = False

    def step(self, parts: Sequence[ShardPush], rate: float) -> list[ReplicaRowsPush]:
        """Applies the dense part of a gradient, given by shard, to the replica. Returns what is left for the shards."""
        assert self.replica is not None
        gradients = [part for part in parts if isinstance(part, Push)]
        assert len(gradients) == len(parts), "a replica steps on the gradient of its own worker"
        dense = torch.cat([part.dense for part in gradients])
        self.replica.step(local_gradient(self._server, dense, gradients[0].examples), lr_scale=rate)
        return [for_rows(part, self.replica.choices) for part in gradients]

    # ---- exchanges ----

    def take_due(self, now: float) -> bool:
        """After a step: whether an exchange with the centre is due in the training loop. If so, it begins now.

        Meetings of all workers are called by the coordinator.
        """
        replica = self.replica
        if replica is None or replica.choices.exchange != "centre":
            return False
        trigger = replica.choices.trigger
        if isinstance(trigger, EverySteps):
            due = replica.steps % trigger.steps == 0
        else:
            due = isinstance(trigger, EverySeconds) and now - self._exchanged_at >= trigger.seconds
        if due:
            self._exchanged_at = now
        return due

    def phases_of(self, meet: Meet) -> list[OfferKind]:
        """The phases of a meeting: moments first, then weights, then the shown weights."""
        if not meet.plan.choices:
            return []
        choices = choices_in(meet.plan.choices)
        merges = not meet.show or (choices.merge == "overwrite" and not choices.block_momentum)
        moments = merges and phases_before_weights(choices, rule_for(self._server, choices))
        return [OfferKind.MOMENTS] * bool(moments) + [OfferKind.MEAN] * merges + [OfferKind.SHOW] * meet.show

    def weights(self) -> OfferedValues:
        """The weights to offer to the centre, or for a mean."""
        assert self.replica is not None
        return OfferedValues(self.replica.weight, self.replica.send())

    def offered_to(self, kind: OfferKind) -> OfferedValues:
        """The values to offer in this phase of a meeting."""
        replica = self.replica
        assert replica is not None
        if kind is OfferKind.MOMENTS:
            phases = phases_before_weights(replica.choices, replica.rule)
            moments = {phase.name: phase.give(replica.state).clone() for phase in phases}
            return OfferedValues(replica.weight, self._nothing, moments)
        replica.finish_step()
        if kind is OfferKind.MEAN:
            return self.weights()
        state = {name: replica.state[name].clone() for name in self._server.optimizer_state}
        flat = self._nothing if _shards_have_weights(replica.choices) else replica.flat.clone()
        return OfferedValues(replica.weight, flat, state)

    def merge(self, kind: OfferKind, flat: Tensor, state: State, *, counts: bool) -> None:
        """Merges the shards' answer to an offer of this kind; `counts`: whether it counts as an exchange."""
        replica = self.replica
        assert replica is not None
        if kind is OfferKind.MOMENTS:
            for phase in phases_before_weights(replica.choices, replica.rule):
                phase.take(replica.state, state[phase.name])
                self._moved += 2 * state[phase.name].nbytes
        elif kind is not OfferKind.SHOW:
            assert replica.sent is not None
            sent, replica.sent = replica.sent, None
            moved, self._moved = self._moved + 2 * sent.nbytes, 0
            replica.take(sent, flat, moved, counts=counts)

    @property
    def _nothing(self) -> Tensor:
        return self._server.flat[:0].clone()


def _shards_have_weights(choices: Choices) -> bool:
    """Whether the shards already have the weights that a show needs."""
    return choices.exchange == "centre" or choices.block_momentum or choices.merge == "overwrite"
