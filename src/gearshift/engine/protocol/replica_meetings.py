"""The coordinator's side of replicas: who meets when, and what waits until all have met.

A *round* is a meeting in the training loop, when the strategy says so. A *show* brings to the shards what an evaluation
sees, with the mean optimizer state. It is asked for (`want`) before an evaluation, a checkpoint, the end of a pass, a
switch that concerns replicas, and for a worker that joins. Workers make no step from their answer to `Meet` to `Go`,
and tell the last one they made: when it is accounted for, rows, weights and accounts are of the same batches. One
meeting is under way at a time; a worker that is lost meanwhile is not waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gearshift.engine.protocol.messages import To
from gearshift.engine.protocol.replica_messages import ExchangePlan, Go, Meet, Met, choices_text
from gearshift.parameters.shard import Assemble
from gearshift.sync.replicated import choices_of
from gearshift.sync.strategy import Strategy

if TYPE_CHECKING:
    from gearshift.engine.protocol.coordinator import CoordinatorRole


@dataclass
class Meeting:
    number: int
    exchange: int | None  # the round's own number; None: it is a show
    waiting: set[int]  # workers that have not met
    leases: set[int] = field(default_factory=set)  # whose steps must be accounted for


class Meetings:
    """Of one incarnation."""

    def __init__(self, role: CoordinatorRole, strategy: Strategy) -> None:
        self._role = role
        self.plan = ExchangePlan()
        self.shown = False  # the shards have what an evaluation sees, and nobody steps
        self._choices = choices_of(strategy)
        self._wanted = False
        self._round: int | None = None  # that shall begin
        self._newcomers: dict[int, int] = {}  # boots of workers that wait for a show
        self._meeting: Meeting | None = None
        self._count = 0
        self._assembled = Assemble(0, 0, "")  # as the shards were told last
        if self._choices:
            self._replan(keep=False)
            self._assemble()

    @property
    def replicated(self) -> bool:
        return self._choices is not None

    @property
    def under_way(self) -> bool:
        """Whether workers are called together, and stand still once they have met."""
        return self._meeting is not None

    # ---- what others ask ----

    def want(self) -> None:
        """A show; `Accounts.shown` is called in it."""
        self._wanted = True

    def concerns(self, strategy: Strategy) -> bool:
        """Whether a change to this one needs a show first."""
        return choices_of(strategy) != self._choices and not self.shown

    def take_over(self, strategy: Strategy, *, keep: bool) -> None:
        """It decides from here on; `keep`: replicas stay as they are, else they are forked anew."""
        choices = choices_of(strategy)
        if choices == self._choices and (keep or choices is None):
            return
        assert self.shown, "what replicas have learned is shown before it is taken over"
        keep = keep and choices is not None and self._choices is not None
        self._choices, self._round = choices, None
        self._replan(keep=keep)

    def meet(self, number: int) -> bool:
        """For `Epoch`: a round is due."""
        self._round = number
        return False

    def admits(self, worker: int, boot: int) -> bool:
        """Whether a worker may join now; else it is let in when the replicas of the others are shown."""
        if self.shown or (self._meeting is None and not (self.replicated and self._role.members)):
            return True
        self._newcomers[worker] = max(boot, self._newcomers.get(worker, 0))
        return False

    def joined(self) -> None:
        if not self.shown:
            self._assemble()

    def lost(self, worker: int) -> None:
        if self._meeting is not None:
            self._meeting.waiting.discard(worker)
        if not self.shown:
            self._assemble()

    # ---- what is heard ----

    def met(self, met: Met) -> None:
        meeting = self._meeting
        if meeting is None or met.number != meeting.number:
            self._go(met.worker, met.boot, met.number)  # it has not heard that it is over
        elif met.worker in meeting.waiting:
            meeting.waiting.discard(met.worker)
            if met.lease is not None:
                meeting.leases.add(met.lease)

    def tick(self) -> None:
        """What was not answered is said again."""
        if self._meeting is not None:
            for worker in self._meeting.waiting:
                self._call(worker, self._meeting)

    def advance(self) -> bool:
        """One step further; False: somebody is waited for, or there is nothing to do."""
        meeting = self._meeting
        if meeting is None:
            return self._begin()
        if meeting.waiting:
            return False
        if meeting.exchange is not None:
            self._meeting = None
            self._role.the_epoch.exchanged(meeting.exchange)
            return True
        if not self.shown:
            return self._show(meeting)
        return self._end(meeting)

    # ---- within ----

    def _begin(self) -> bool:
        if self._round is None and not self._wanted and not self._newcomers:
            return False
        exchange, self._round = self._round, None
        if exchange is None:
            self._wanted = False
        self._count += 1
        self._meeting = Meeting(self._count, exchange, set(self._role.members))
        self._role.end_ring()
        for worker in self._meeting.waiting:
            self._call(worker, self._meeting)
        return True

    def _show(self, meeting: Meeting) -> bool:
        epoch, work = self._role.the_epoch, self._role.the_epoch.coordinator.work
        # A gradient that waits for others to form a step is at the servers, and stays there.
        if epoch.step < work.step or any(lease in work.flying for lease in meeting.leases):
            return False
        if any(isinstance(order.what, Assemble) for order in self._role.orders.open):
            return False  # a shard still takes offers of a worker that was given up
        self.shown = True
        self._role.shown()
        newcomers, self._newcomers = self._newcomers, {}
        for worker, boot in newcomers.items():
            self._role.worker_started(worker, boot)
        return True

    def _end(self, meeting: Meeting) -> bool:
        """What was decided meanwhile is carried out first: replicas are forked from that."""
        epoch = self._role.the_epoch
        if epoch.step < epoch.coordinator.work.step and not epoch.stopped:
            return False
        self.shown, self._meeting = False, None
        self._assemble()
        for worker, boot in self._role.members.items():
            self._go(worker, boot, meeting.number)
        return True

    def _replan(self, *, keep: bool) -> None:
        generation = self.plan.generation + 1
        if self._choices is None:
            self.plan = ExchangePlan(generation)
        else:
            lineage = self.plan.lineage if keep else generation
            self.plan = ExchangePlan(generation, lineage, choices_text(self._choices))

    def _assemble(self) -> None:
        """Tells the shards who is waited for, if it is news."""
        if self.replicated:
            last, members = self._assembled, tuple(sorted(self._role.members.items()))
            if (last.generation, last.members) != (self.plan.generation, members):
                self._assembled = Assemble(last.number + 1, self.plan.generation, self.plan.choices, members)
                self._role.carry_out(self._assembled, 0)

    def _call(self, worker: int, meeting: Meeting) -> None:
        boot = self._role.members[worker]
        show = meeting.exchange is None
        meet = Meet(self._role.incarnation, boot, meeting.number, self._assembled.number, show, self.plan)
        self._role.out.append((To("worker", worker), meet))

    def _go(self, worker: int, boot: int, number: int) -> None:
        self._role.out.append((To("worker", worker), Go(self._role.incarnation, boot, number, self.plan)))
