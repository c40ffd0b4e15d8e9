"""A running incarnation, from the time when all shards have loaded: its parts, and the routing of messages to them."""

from __future__ import annotations

from typing import Any

from gearshift.engine.protocol.data_passes import DataPasses
from gearshift.engine.protocol.host import Accounts
from gearshift.engine.protocol.meeting_course import MeetingCourse
from gearshift.engine.protocol.messages import Alive, Done, Report, Saved
from gearshift.engine.protocol.orders import Orders
from gearshift.engine.protocol.replica_meetings import Meetings
from gearshift.engine.protocol.replica_messages import Met
from gearshift.engine.protocol.snapshot_cuts import SnapshotCuts
from gearshift.engine.protocol.worker_leases import WorkerLeases
from gearshift.engine.protocol.worker_sessions import Session
from gearshift.sync.registry import make_strategy


class Incarnation:
    def __init__(
        self,
        orders: Orders,
        cuts: SnapshotCuts,
        meetings: Meetings,
        passes: DataPasses,
        leases: WorkerLeases,
        accounts: Accounts,
    ) -> None:
        self.orders, self.cuts, self.meetings = orders, cuts, meetings
        self.passes, self.leases, self._accounts = passes, leases, accounts
        self._course = MeetingCourse(meetings, leases, passes, orders)

    def take_from_shard(self, message: Done | Saved) -> None:
        match message:
            case Done(shard=shard, number=number):
                if self.orders.done(shard, number):
                    self.passes.epoch.carried_out()
            case Saved(shard=shard, name=name, error=error):
                self.cuts.part_saved(shard, name, error)

    def take_from_worker(self, session: Session, message: Alive | Report | Met) -> None:
        match message:
            case Report() if not self.passes.over:  # later gradients belong to the run that resumes this one
                self.leases.report(session, message)
            case Met(worker=worker, boot=boot, counts=counts):
                self._accounts.counted(worker, boot, counts)
                self.meetings.met(message)

    def advance(self) -> bool:
        """Does one thing that has become possible. False: there is nothing more to do now."""
        self.passes.feed()
        return self._course.advance()

    def tick(self, patience: float) -> None:
        """Time has passed: unanswered messages are resent, and workers that were silent too long are declared lost."""
        self.resend()
        self.meetings.call()
        if not self.passes.over:  # at the end workers leave
            self.leases.give_up_silent(patience)

    def resend(self) -> None:
        """Resends what shards have not answered."""
        self.orders.resend()
        self.cuts.resend()

    def switch(self, strategy: str, settings: dict[str, Any], reason: str) -> None:
        """Another strategy decides from here on. Leases and gradients in flight are kept."""
        self.leases.break_group()  # its gradients count together, which only sync promises
        self.meetings.take_over(make_strategy(strategy, settings), keep=True)
        self.passes.epoch.switch(strategy, settings, reason)
        self.passes.feed()

    def stop(self) -> None:
        """Stops here while no worker is active: there will be no step after which the run could stop."""
        if not self.passes.epoch.at_rest:
            return
        if self.meetings.settled:
            self.passes.stop()
        else:
            self.meetings.request_show()
