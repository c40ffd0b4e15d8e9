"""The replicas of a run's trainers in one process: forked from the server, updated, merged, folded back.

The evaluated and saved weights are the centre (easgd), the global model (bmuf), or the mean. `show` copies them into
the server's dense buffer, which does not change between two calls. The rules at a switch, at the end of an epoch and at
a checkpoint (docs/adr/0014):

    fork      each replica starts as a copy of the server's weights and optimizer state
    fold      the server takes the evaluated weights, and the mean of the replicas' optimizer states
    rechoose  from one replica strategy to another, replicas and their states stay unchanged

This class does not create threads. With several threads, `step` and `send`/`receive` of one replica may overlap;
callers must serialise everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gearshift.errors import UserError
from gearshift.optim.first_order import DenseOptimizer, State, clip_norm
from gearshift.optim.hogwild import without_locks
from gearshift.optim.layout import bind
from gearshift.optim.variance_reduced import VarianceReduced
from gearshift.parameters.average import follow
from gearshift.parameters.push import AppliedPush, Push, ReplicaRowsPush
from gearshift.parameters.replicas.arithmetic import mean_of
from gearshift.parameters.replicas.common_model import CommonModel
from gearshift.parameters.replicas.figures import Counts, both_ways, by_all_reduce
from gearshift.parameters.replicas.moments import FrozenAdam, local_rule, phases_before_weights
from gearshift.parameters.replicas.replica import DenseReplica
from gearshift.parameters.server import Server
from gearshift.sync.exchange import Choices


class Replicas:
    def __init__(self, server: Server, choices: Choices, counts: dict[int, Counts] | None = None) -> None:
        """`counts` continues earlier counts."""
        self.server, self.choices = server, choices
        self.members: dict[int, DenseReplica] = {}
        self.counts = {} if counts is None else counts
        self.common = CommonModel(choices, server.flat)
        self._rule = rule_for(server, choices)
        self._workers: dict[int, set[int]] = {}  # by replica
        self._idle: set[int] = set()  # workers without work

    # ---- members ----

    def join(self, worker: int) -> None:
        """The first worker of a trainer adds a replica with the evaluated weights and the mean state."""
        number = self.choices.replica_of(worker)
        self._workers.setdefault(number, set()).add(worker)
        if number not in self.members:
            state = self._mean_state() if self.members else self.server.optimizer_state
            flat = self.target() if self.members else self.server.flat
            counts = self.counts.setdefault(number, Counts())
            self.members[number] = fork(flat, state, self._rule, self.choices, counts)
            self._drop_the_left()

    def leave(self, worker: int) -> None:
        """A replica is removed with its last worker, and its unexchanged updates are lost. The last replica stays."""
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
        """The worker has work again."""
        self._idle.discard(worker)
        replica = self.of(worker)
        if replica is not None:
            replica.finished = False

    def idle(self, worker: int) -> None:
        """The worker has no work left. If none of a replica's workers has work, the replica is finished."""
        self._idle.add(worker)
        number = self.choices.replica_of(worker)
        replica = self.members.get(number)
        if replica is not None:
            replica.finished = self._workers[number] <= self._idle

    # ---- training ----

    def step(self, worker: int, push: Push, *, lr_scale: float) -> AppliedPush:
        """Applies rows to the store and the dense gradient to the worker's replica. Returns what is left to report."""
        replica = self.of(worker)
        assert replica is not None, "a worker must join before it computes"
        rows = for_rows(push, self.choices)
        self.server.push_rows(rows, lr_scale=lr_scale)
        replica.step(local_gradient(self.server, push.dense, push.examples), lr_scale=lr_scale)
        self.server.move_buffers(rows)
        return AppliedPush(push.examples, push.loss, push.probabilities_BT)

    # ---- exchanges ----

    def send(self, replica: int) -> None:
        """Begin an exchange, which ends with `receive`. For exchanges in virtual time."""
        if replica in self.members:
            self.members[replica].send()

    def receive(self, replicas: tuple[int, ...]) -> None:
        """End the exchange of these replicas, with the centre or with each other."""
        members = [one for number in replicas if (one := self.members.get(number)) and one.sent is not None]
        sent = [one.sent for one in members if one.sent is not None]
        if self.choices.exchange == "centre":
            targets = [self.common.meet_centre(w, one.weight) for w, one in zip(sent, members, strict=True)]
        else:
            weights = [one.weight for one in members]
            targets = [self.common.meet_all(sent, weights)] * len(members) if members else []
        for one, target in zip(members, targets, strict=True):
            one.receive(target, self.moved)
        self.exchanged()

    def exchanged(self) -> None:
        """The centre or the global model has changed, and the average of the weights follows. From any thread."""
        with self.server.dense_lock:
            follow(self.server, self.common.values)

    @property
    def moved(self) -> float:
        """Bytes over a trainer's link per exchange."""
        dense_bytes = self.server.flat.numel() * self.server.flat.element_size()
        if self.choices.exchange == "centre":
            return both_ways(dense_bytes)
        factor = {"params": 1, "frozen_v": 2, "params_m_v": 3}[self.choices.snapshot]
        return factor * by_all_reduce(dense_bytes, len(self.members))

    @torch.no_grad()
    def meet(self, *, counts: bool = True) -> None:
        """An exchange in the training loop, during which no worker makes a step. Moments first, then weights."""
        members = list(self.members.values())
        weights = [one.weight for one in members]
        for phase in phases_before_weights(self.choices, self._rule):
            mean = mean_of([phase.give(one.state) for one in members], weights)
            for one in members:
                phase.take(one.state, mean)
        for one in members:
            one.finish_step()
        snapshots = [one.flat.clone() for one in members]
        target = self.common.meet_all(snapshots, weights)
        for one, sent in zip(members, snapshots, strict=True):
            one.take(sent, target, self.moved, counts=counts)
        self.exchanged()

    @torch.no_grad()
    def shift(self, change: Tensor) -> None:
        """Apply to all replicas a change of the server's weights by a gradient from before the switch."""
        for one in self.members.values():
            one.flat.add_(change)
        self.common.shift(change)

    # ---- evaluation and checkpoints ----

    def target(self) -> Tensor:
        """The weights that an evaluation uses."""
        return self.common.seen(self.members.values())

    @torch.no_grad()
    def show(self) -> None:
        """Copy the evaluated weights and the mean optimizer state to the server. k-step Adam merges for this."""
        if not self.members:
            return
        if self.choices.merge == "overwrite" and not self.choices.block_momentum:
            self.meet(counts=False)
        self.server.flat.copy_(self.target())
        for name, values in self._mean_state().items():
            self.server.optimizer_state[name].copy_(values)
        with self.server.dense_lock:
            follow(self.server)

    def fold(self) -> None:
        """End the replicas: the server continues from the weights that `show` gives."""
        self.show()
        self.members.clear()

    def rechoose(self, choices: Choices) -> None:
        """Switch to another replica strategy with the same replicas. Its centre is the evaluated weights."""
        for one in self.members.values():
            one.finish_step()
        seen = self.target().clone()
        self.choices, self._rule = choices, rule_for(self.server, choices)
        self.common = CommonModel(choices, seen)
        for number, one in list(self.members.items()):
            self.members[number] = fork(one.flat, one.state, self._rule, self.choices, self.counts[number])

    # ---- internal ----

    def _mean_state(self) -> State:
        return mean_state([one.state for one in self.members.values()], self.server.optimizer_state)


def for_rows(push: Push, choices: Choices) -> ReplicaRowsPush:
    """Its rows count as its share of a global batch: a row moves as far as under a gradient strategy, but in more
    steps.

    The optimizer state of rows, which all strategies share, then has the same meaning before and after a switch.
    """
    return ReplicaRowsPush(push.rows, push.examples / choices.share, push.buffer_changes)


def local_gradient(server: Server, dense: Tensor, examples: float) -> Tensor:
    """The gradient of a replica's step: the mean over the examples of its batch."""
    gradient = dense * (1.0 / max(examples, 1e-12))  # same rounding as on the server
    if server.dense_policy.clip_norm is not None:
        clip_norm(gradient, server.dense_policy.clip_norm)
    return gradient


def fork(flat: Tensor, state: State, rule: DenseOptimizer, choices: Choices, counts: Counts) -> DenseReplica:
    """A replica that starts as a copy of these values."""
    copied = {name: values.clone() for name, values in state.items() if name != "shared"}
    if isinstance(rule, FrozenAdam):
        copied["shared"] = rule.denominator(copied["square"], copied)
    return DenseReplica(flat.clone(), copied, rule, choices, counts)


def mean_state(states: Sequence[State], names: Iterable[str]) -> State:
    """The mean of optimizer states; step counts are rounded."""
    return {name: _mean([state[name] for state in states]) for name in names}


def _mean(values: list[Tensor]) -> Tensor:
    if values[0].is_floating_point():
        return mean_of(values)
    return torch.stack(values).double().mean(0).round().to(values[0].dtype)


def rule_for(server: Server, choices: Choices) -> DenseOptimizer:
    """The rule of a replica: the run's optimizer, or its variant for k-step Adam or for threads without locks."""
    optimizer = bind(server.optimizer, server.layers)
    if isinstance(optimizer, VarianceReduced):
        raise UserError(
            "a replica makes each step from one gradient, but optimizer.dense vr_* needs several gradients per step; "
            "use adam"
        )
    k_step = choices.exchange == "mean" and choices.merge == "overwrite" and choices.snapshot != "params"
    if k_step:
        optimizer = local_rule(optimizer, choices.snapshot)
    if choices.workers_per_replica > 1 and not isinstance(optimizer, FrozenAdam):
        optimizer = without_locks(optimizer)
    return optimizer
