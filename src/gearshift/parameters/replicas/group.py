"""The replicas of a run's trainers in one memory: forked from the server, stepped, brought together, folded back.

What is evaluated and saved is the centre (easgd), the global model (bmuf), or the mean; `show` puts it into the
server's dense buffer, which stands still between two calls of it. The rule at a switch, at the end of an epoch and
at a checkpoint (docs/adr/0014):

    fork      each replica begins as a copy of the server's weights and optimizer state
    fold      the server takes what an evaluation would see, and the mean of the replicas' optimizer states
    rechoose  from one replica strategy to another replicas and their states stay as they are

Knows no thread: whoever calls from several sees to it that `step` and `send`/`receive` of one replica may overlap, and
nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gearshift.errors import UserError
from gearshift.optim.first_order import DenseOptimizer, State, clip_norm
from gearshift.optim.hogwild import without_locks
from gearshift.optim.layout import bind
from gearshift.optim.variance_reduced import VarianceReduced
from gearshift.parameters.push import Push
from gearshift.parameters.replicas.arithmetic import GlobalStep, centre_step, mean_of
from gearshift.parameters.replicas.figures import Counts, both_ways, by_all_reduce
from gearshift.parameters.replicas.moments import FrozenAdam, local_rule, phases_before_weights
from gearshift.parameters.replicas.replica import DenseReplica
from gearshift.parameters.server import Server
from gearshift.sync.exchange import Choices


class Replicas:
    def __init__(self, server: Server, choices: Choices, counts: dict[int, Counts] | None = None) -> None:
        """`counts` go on from what was counted before."""
        self.server, self.choices = server, choices
        self.members: dict[int, DenseReplica] = {}
        self.counts = {} if counts is None else counts
        self.centre = server.flat.clone()
        self.global_step = GlobalStep(choices, server.flat)
        self._rule = rule_for(server, choices)
        self._workers: dict[int, set[int]] = {}  # by replica
        self._idle: set[int] = set()  # workers that have no more to do

    # ---- who is there ----

    def join(self, worker: int) -> None:
        """The first worker of a trainer brings a replica: what an evaluation sees now, with the mean state."""
        number = self.choices.replica_of(worker)
        self._workers.setdefault(number, set()).add(worker)
        if number not in self.members:
            state = self._mean_state() if self.members else self.server.optimizer_state
            flat = self.target() if self.members else self.server.flat
            self.members[number] = self._fork(number, flat, state)
            self._drop_the_left()

    def leave(self, worker: int) -> None:
        """With its last worker a replica goes, and with it what it had not exchanged; the last replica waits."""
        self._workers.get(self.choices.replica_of(worker), set()).discard(worker)
        self._idle.discard(worker)
        self._drop_the_left()

    def _drop_the_left(self) -> None:
        for number in [number for number in self.members if not self._workers.get(number)]:
            if len(self.members) > 1:
                del self.members[number]

    def of(self, worker: int) -> DenseReplica | None:
        return self.members.get(self.choices.replica_of(worker))

    def busy(self, worker: int) -> None:
        """It computes."""
        self._idle.discard(worker)
        replica = self.of(worker)
        if replica is not None:
            replica.finished = False

    def idle(self, worker: int) -> None:
        """There is nothing left for it to do; without any worker that has, its replica is finished."""
        self._idle.add(worker)
        number = self.choices.replica_of(worker)
        replica = self.members.get(number)
        if replica is not None:
            replica.finished = self._workers[number] <= self._idle

    # ---- training ----

    def step(self, worker: int, push: Push, *, lr_scale: float) -> Push:
        """Rows into the shared store, the dense gradient into the worker's replica; what is left to report."""
        replica = self.of(worker)
        assert replica is not None, "a worker has joined before it computes"
        self.server.push_rows(for_rows(push, self.choices), lr_scale=lr_scale)
        replica.step(local_gradient(self.server, push.dense, push.examples), lr_scale=lr_scale)
        self.server.move_buffers(push)
        return replace(push, rows=(), dense=push.dense[:0], buffer_changes={}, applied=True)

    # ---- exchanges ----

    @property
    def dense_bytes(self) -> int:
        return self.server.flat.numel() * self.server.flat.element_size()

    def meet_centre(self, sent: Tensor, weight: float) -> Tensor:
        """One trainer and the centre, which it moves unless it has finished; what the trainer merges with."""
        return centre_step(self.centre, sent, self.choices) if weight else self.centre.clone()

    def meet_all(self, snapshots: list[Tensor], weights: list[float]) -> Tensor:
        """All trainers with each other; what they merge with."""
        return self.global_step.step(mean_of(snapshots, weights))

    def send(self, replica: int) -> None:
        """Its exchange begins, and ends with `receive`: for who exchanges in virtual time."""
        if replica in self.members:
            self.members[replica].send()

    def receive(self, replicas: tuple[int, ...]) -> None:
        """The exchange of these ends: with the centre, or with each other."""
        members = [one for number in replicas if (one := self.members.get(number)) and one.sent is not None]
        sent = [one.sent for one in members if one.sent is not None]
        if self.choices.exchange == "centre":
            targets = [self.meet_centre(w, one.weight) for w, one in zip(sent, members, strict=True)]
        else:
            targets = [self.meet_all(sent, [one.weight for one in members])] * len(members) if members else []
        for one, target in zip(members, targets, strict=True):
            one.receive(target, self.moved)

    @property
    def moved(self) -> float:
        """Bytes over a trainer's link per exchange."""
        if self.choices.exchange == "centre":
            return both_ways(self.dense_bytes)
        factor = {"params": 1, "frozen_v": 2, "params_m_v": 3}[self.choices.snapshot]
        return factor * by_all_reduce(self.dense_bytes, len(self.members))

    @torch.no_grad()
    def meet(self, *, counts: bool = True) -> None:
        """In the training loop: nobody steps meanwhile. Moments first, then weights."""
        members = list(self.members.values())
        weights = [one.weight for one in members]
        for phase in phases_before_weights(self.choices, self._rule):
            mean = mean_of([phase.give(one.state) for one in members], weights)
            for one in members:
                phase.take(one.state, mean)
        for one in members:
            one.finish_step()
        snapshots = [one.flat.clone() for one in members]
        target = self.meet_all(snapshots, weights)
        for one, sent in zip(members, snapshots, strict=True):
            one.take(sent, target, self.moved, counts=counts)

    @torch.no_grad()
    def shift(self, change: Tensor) -> None:
        """The server's weights were moved by a gradient from before the switch; replicas follow."""
        for one in self.members.values():
            one.flat.add_(change)
        self.centre.add_(change)
        self.global_step.shift(change)

    # ---- what the outside sees ----

    def velocity(self) -> Tensor | None:
        """A copy of what block momentum has gathered; None for a strategy without it."""
        return self.global_step.velocity.clone() if self.choices.block_momentum else None

    def take_velocity(self, velocity: Tensor | None) -> None:
        """Of a run that was saved. Replicas begin at its global model, so the next step is counted from there."""
        if velocity is not None and self.choices.block_momentum:
            self.global_step.velocity.copy_(velocity)

    def target(self) -> Tensor:
        """What an evaluation sees: the centre, the global model, or the mean."""
        if self.choices.exchange == "centre":
            return self.centre
        if self.choices.block_momentum or not self.members:
            return self.global_step.position
        return mean_of([one.flat for one in self.members.values()])

    @torch.no_grad()
    def show(self) -> None:
        """Puts it, and the mean optimizer state, where it is evaluated and saved. k-step Adam merges for it."""
        if not self.members:
            return
        if self.choices.merge == "overwrite" and not self.choices.block_momentum:
            self.meet(counts=False)
        self.server.flat.copy_(self.target())
        for name, values in self._mean_state().items():
            self.server.optimizer_state[name].copy_(values)

    def fold(self) -> None:
        """The end: the server goes on from what was shown."""
        self.show()
        self.members.clear()

    def rechoose(self, choices: Choices) -> None:
        """Another replica strategy over the same replicas; its centre is what an evaluation saw before."""
        for one in self.members.values():
            one.finish_step()
        seen = self.target().clone()
        self.choices, self._rule = choices, rule_for(self.server, choices)
        self.centre, self.global_step = seen, GlobalStep(choices, seen)
        for number, one in list(self.members.items()):
            self.members[number] = self._fork(number, one.flat, one.state)

    # ---- within ----

    def _fork(self, number: int, flat: Tensor, state: State) -> DenseReplica:
        return fork(flat, state, self._rule, self.choices, self.counts.setdefault(number, Counts()))

    def _mean_state(self) -> State:
        return mean_state([one.state for one in self.members.values()], self.server.optimizer_state)


def for_rows(push: Push, choices: Choices) -> Push:
    """Its rows count as its share of a global batch: a row is moved as far as in a gradient strategy, in more steps.

    The optimizer state of rows, which all strategies share, then means the same before and after a switch.
    """
    return replace(push, examples=push.examples / choices.share)


def local_gradient(server: Server, dense: Tensor, examples: float) -> Tensor:
    """What a replica steps on: the mean over the examples of its batch."""
    gradient = dense * (1.0 / max(examples, 1e-12))  # rounds as the server does
    if server.max_norm is not None:
        clip_norm(gradient, server.max_norm)
    return gradient


def fork(flat: Tensor, state: State, rule: DenseOptimizer, choices: Choices, counts: Counts) -> DenseReplica:
    """A replica that begins as a copy of these."""
    own = {name: values.clone() for name, values in state.items() if name != "shared"}
    if isinstance(rule, FrozenAdam):
        own["shared"] = rule.denominator(own["square"], own)
    return DenseReplica(flat.clone(), own, rule, choices, counts)


def mean_state(states: Sequence[State], names: Iterable[str]) -> State:
    """Of optimizer states; counts of steps are rounded."""
    return {name: _mean([state[name] for state in states]) for name in names}


def _mean(values: list[Tensor]) -> Tensor:
    if values[0].is_floating_point():
        return mean_of(values)
    return torch.stack(values).double().mean(0).round().to(values[0].dtype)


def rule_for(server: Server, choices: Choices) -> DenseOptimizer:
    """How a replica steps: the run's own optimizer, or its form for k-step Adam or for threads without locks."""
    optimizer = bind(server.optimizer, server.layers)
    if isinstance(optimizer, VarianceReduced):
        raise UserError(
            "a replica steps on one gradient at a time, and optimizer.dense vr_* needs several of a step; use adam"
        )
    k_step = choices.exchange == "mean" and choices.merge == "overwrite" and choices.snapshot != "params"
    if k_step:
        optimizer = local_rule(optimizer, choices.snapshot)
    if choices.workers_per_replica > 1 and not isinstance(optimizer, FrozenAdam):
        optimizer = without_locks(optimizer)
    return optimizer
