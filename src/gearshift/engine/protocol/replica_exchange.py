"""A worker's exchanges of its replica with the shards: messages in, messages out, no thread.

A worker handles messages while it computes, so exchanges run in the background of the training without a thread:
answers of the shards are merged into the replica when they arrive. At most one exchange and one request for a fork are
in flight. A meeting of all workers is a sequence of exchanges during which no step is made. After a show (a meeting
whose result is evaluated, saved, or taken over by another strategy) the worker waits for `Go`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gearshift.engine.protocol.meeting_attendance import MeetingAttendance
from gearshift.engine.protocol.messages import COORDINATOR, Out
from gearshift.engine.protocol.replica_messages import (
    ExchangePlan,
    Go,
    Meet,
    Met,
    Occasion,
    OfferedValues,
    OfferKind,
    Target,
)
from gearshift.engine.protocol.replica_offers import ExchangeInFlight, ReplicaOffers
from gearshift.engine.protocol.worker_replica import WorkerReplica
from gearshift.parameters.push import ReplicaRowsPush, ShardPush
from gearshift.parameters.server import Server
from gearshift.parameters.shard import ShardLayout

REST = 0.02  # minimum seconds between two background exchanges: they must leave time for training


class Exchanger:
    def __init__(self, worker: int, server: Server, layout: ShardLayout, clock: Callable[[], float]) -> None:
        """`server` is the unsharded server of this process: it has the optimizer and layers, but not the values."""
        self.worker, self._server, self._layout, self._clock = worker, server, layout, clock
        self._out: Out = []
        self.restart(0)

    def restart(self, boot: int) -> None:
        """Forgets everything: the worker starts again with a new boot."""
        self.boot, self.incarnation = boot, 0
        self.held = WorkerReplica(self._server)
        self.attendance = MeetingAttendance()
        self._offers = ReplicaOffers(
            self.worker, boot, self._layout, lambda to, offer: self._out.append((to, offer))
        )
        self.due: float | None = None  # when to call `wake`
        self.lease: int | None = None  # the last lease whose step was made, or whose gradient was sent

    # ---- called by the worker ----

    @property
    def may_step(self) -> bool:
        return self.held.ready and not self.attendance.stands_still

    @property
    def in_the_way(self) -> bool:
        """Whether an exchange in the training loop is in progress."""
        return self._offers.exchange is not None and self.held.background is None

    def busy(self, plan: ExchangePlan) -> None:
        """Work has been assigned, under this plan."""
        self.held.note_busy()
        if not self.attendance.frozen:
            self._adopt(plan)

    def step(self, parts: Sequence[ShardPush], rate: float) -> list[ReplicaRowsPush]:
        """Applies the dense part of a gradient, given by shard, to the replica. Returns what is left for the shards."""
        for_shards = self.held.step(parts, rate)
        if self.held.take_due(self._clock()):
            self._offer(OfferKind.CENTRE, self.held.weights())
        return for_shards

    # ---- messages and time ----

    def handle(self, message: Target | Meet | Go) -> None:
        match message:
            case Target():
                if (forking := self._offers.take_fork(message)) is not None:
                    self._fork(forking)
                elif (exchange := self._offers.take(message)) is not None:
                    self._merge(exchange)
            case Meet():
                self._meet(message)
            case Go(_, _, number, plan) if self.attendance.release(number):
                self._adopt(plan)
                self._continue()
            case _:
                pass  # late

    def tick(self, *, asking: bool) -> None:
        """Time has passed: unanswered messages are resent. `asking`: the worker waits for work."""
        self.held.note_idle(asking=asking)
        self._offers.resend()
        if self.attendance.frozen and self.attendance.frozen == self.attendance.met:
            self._send_met(self.attendance.met)

    def resend_soon(self) -> None:
        """What is unanswered goes another way from now on."""
        self._offers.resend_soon()

    def wake(self) -> None:
        """Called when `due`: starts the next background exchange."""
        if self.due is not None and self._clock() >= self.due:
            self.due = None
            idle = self._offers.exchange is None and not self.attendance.stands_still
            if self.held.replica is not None and self.held.background is not None and idle:
                centre = self.held.replica.choices.exchange == "centre"
                self._offer(OfferKind.CENTRE if centre else OfferKind.MEAN, self.held.weights())

    def take_out(self) -> Out:
        """The messages to send."""
        out, self._out = self._out, []
        return out

    # ---- plans and forks ----

    def _adopt(self, plan: ExchangePlan) -> None:
        if self.held.adopt(plan):
            self._offers.forget()
            self.due = None
            self._continue()

    def _fork(self, forking: ExchangeInFlight) -> None:
        self.held.fork(*forking.joined(), self._clock())
        self._continue()

    def _continue(self) -> None:
        """Starts the next background activity, if one is due."""
        if not self.held.replicated or self.attendance.stands_still:
            return
        if self.held.replica is None and self._offers.forking is None:
            self._offers.ask_fork(self.incarnation, Occasion(self.held.plan.generation))
        elif self.held.background is not None and self._offers.exchange is None and self.due is None:
            self.due = self._clock()

    # ---- exchanges ----

    def _offer(self, kind: OfferKind, values: OfferedValues | None) -> None:
        """Begins an exchange, which ends when all shards have answered."""
        meeting = self.attendance.number
        assembly = self.attendance.assembly if meeting else 0
        occasion = Occasion(self.held.plan.generation, meeting, assembly)
        self._offers.begin(self.incarnation, kind, occasion, values)

    def _merge(self, exchange: ExchangeInFlight) -> None:
        """Ends an exchange: all shards have answered."""
        attendance = self.attendance
        # The shards may have answered a worker without a replica differently, if another worker was lost.
        if self.held.replica is not None and not (exchange.meeting and attendance.absent):
            counts = not (exchange.meeting and attendance.is_show)
            self.held.merge(exchange.kind, *exchange.joined(), counts=counts)
        if attendance.number:
            self._next_phase()
        elif (background := self.held.background) is not None:
            self.due = self._clock() + max(REST, background.pause)

    # ---- meetings ----

    def _meet(self, meet: Meet) -> None:
        attendance = self.attendance
        if meet.number <= attendance.met:
            self._send_met(meet.number)
        elif meet.number != attendance.number:
            attendance.enter(meet)
            self._adopt(meet.plan)
            self._offers.forking = self.due = None
            attendance.begin(self.held.phases_of(meet), absent=self.held.replica is None)
            # A background mean: other workers were called to the meeting before they offered, and will not offer now.
            if self.held.replica is not None and self._offers.abandon(OfferKind.MEAN):
                self.held.replica.sent = None
            if self._offers.exchange is None:
                self._next_phase()

    def _next_phase(self) -> None:
        kind = self.attendance.next_phase()
        if kind is None:
            self._send_met(self.attendance.met)
            self._continue()
            return
        takes_part = self.held.replica is not None and not self.attendance.absent
        self._offer(kind, self.held.offered_to(kind) if takes_part else None)

    def _send_met(self, number: int) -> None:
        counts = replace(self.held.counts)
        met = Met(self.incarnation, self.worker, self.boot, number, self.lease, counts)
        self._out.append((COORDINATOR, met))
