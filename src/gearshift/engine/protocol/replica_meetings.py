"""The coordinator's side of replicas: which meeting of all workers is requested or in progress, and which workers have
attended.

A *round* is a meeting in the training loop, called by the strategy. A *show* brings the weights that an evaluation uses
to the shards, with the mean optimizer state. It is requested (`request_show`) before an evaluation, a checkpoint, the
end of a pass, a switch that concerns replicas, and for a worker that joins. Workers make no step between their answer
to `Meet` and `Go`, and report the last one they made: when it is accounted for, rows, weights and accounts cover the
same batches. One meeting is in progress at a time; a lost worker is not waited for. The purpose of a
meeting is carried out in `meeting_course.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gearshift.engine.protocol.messages import To
from gearshift.engine.protocol.replica_messages import Go, Meet, Met
from gearshift.engine.protocol.replica_plans import ReplicaPlans
from gearshift.engine.protocol.worker_sessions import WorkerSessions
from gearshift.sync.strategy import Strategy


@dataclass
class Meeting:
    number: int
    exchange: int | None  # the number of the round; None: it is a show
    waiting: set[int]  # workers that have not met
    leases: set[int] = field(default_factory=set)  # workers whose steps must be accounted for


class Meetings:
    """The meetings of one incarnation."""

    def __init__(
        self,
        incarnation: int,
        plans: ReplicaPlans,
        sessions: WorkerSessions,
        send: Callable[[To, Meet | Go], None],
    ) -> None:
        self._incarnation, self.plans, self._sessions, self._send = incarnation, plans, sessions, send
        self.shown = False  # the shards have the weights to evaluate, and no worker steps
        self.current: Meeting | None = None
        self._wanted = False
        self._round: int | None = None  # the requested round
        self._newcomers: dict[int, int] = {}  # boots of workers that wait for a show
        self._count = 0

    @property
    def settled(self) -> bool:
        """Whether the shards have everything that was learned, so that it can be evaluated and saved."""
        return self.shown or not self.plans.replicated

    @property
    def under_way(self) -> bool:
        """Whether a meeting is in progress, in which workers stop once they have met."""
        return self.current is not None

    # ---- requests ----

    def request_show(self) -> None:
        """Requests a show, during which `Accounts.shown` is called."""
        self._wanted = True

    def concerns(self, strategy: Strategy) -> bool:
        """Whether a change to this strategy needs a show first."""
        return self.plans.differs(strategy) and not self.shown

    def take_over(self, strategy: Strategy, *, keep: bool) -> None:
        """This strategy decides from here on; `keep`: replicas stay as they are, else they are forked again."""
        if not self.plans.differs(strategy) and (keep or not self.plans.replicated):
            return
        assert self.shown, "replicas must be shown before another strategy takes over"
        self._round = None
        self.plans.change(strategy, keep=keep)

    def request_round(self, number: int) -> None:
        self._round = number

    # ---- workers ----

    def admits(self, worker: int, boot: int) -> bool:
        """Whether a worker may join now; else it joins when the replicas of the others are shown."""
        if self.shown or (self.current is None and not (self.plans.replicated and self._sessions.members)):
            return True
        self._newcomers[worker] = max(boot, self._newcomers.get(worker, 0))
        return False

    def take_newcomers(self) -> dict[int, int]:
        """The boots of the workers that wait to join; they are no longer listed afterwards."""
        newcomers, self._newcomers = self._newcomers, {}
        return newcomers

    def joined(self) -> None:
        if not self.shown:
            self.plans.assemble()

    def lost(self, worker: int) -> None:
        if self.current is not None:
            self.current.waiting.discard(worker)
        if not self.shown:
            self.plans.assemble()

    def met(self, met: Met) -> None:
        meeting = self.current
        if meeting is None or met.number != meeting.number:
            self._send_go(met.worker, met.boot, met.number)  # it has not received the end of the meeting
        elif met.worker in meeting.waiting:
            meeting.waiting.discard(met.worker)
            if met.lease is not None:
                meeting.leases.add(met.lease)

    # ---- the course of a meeting ----

    def open(self) -> bool:
        """Opens the next meeting, if one is requested; `call` then calls the workers."""
        if self._round is None and not self._wanted and not self._newcomers:
            return False
        exchange, self._round = self._round, None
        if exchange is None:
            self._wanted = False
        self._count += 1
        self.current = Meeting(self._count, exchange, set(self._sessions.members))
        return True

    def call(self) -> None:
        """Sends `Meet` to the workers that have not attended yet; called at every tick."""
        if (meeting := self.current) is not None:
            for worker in meeting.waiting:
                boot, show = self._sessions[worker].boot, meeting.exchange is None
                head = self._incarnation, boot, meeting.number, self.plans.assembly
                self._send(To("worker", worker), Meet(*head, show, self.plans.plan))

    def close_round(self) -> None:
        self.current = None

    def close_show(self) -> None:
        """Lets the workers continue, under the current plan."""
        assert self.current is not None
        number, self.current, self.shown = self.current.number, None, False
        self.plans.assemble()
        for worker, boot in self._sessions.members.items():
            self._send_go(worker, boot, number)

    def _send_go(self, worker: int, boot: int, number: int) -> None:
        self._send(To("worker", worker), Go(self._incarnation, boot, number, self.plans.plan))
