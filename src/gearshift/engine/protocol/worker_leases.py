"""Workers and their leases: joining, reports, and the leases of workers that leave or are lost.

A report ends a lease and asks for the next one. The gradients of an all-reduce group count together: the reports of its
members are held until all have come, and if one member is lost, all of them ask again and their leases are reissued.
"""

from __future__ import annotations

from collections.abc import Callable

from gearshift.engine.protocol.all_reduce import AllReduceGroups, HeldReport
from gearshift.engine.protocol.data_passes import DataPasses
from gearshift.engine.protocol.messages import (
    GroupBroken,
    LeaseDone,
    LeaseRefused,
    Over,
    Rejoin,
    Report,
    To,
    ToWorker,
    Welcome,
)
from gearshift.engine.protocol.replica_meetings import Meetings
from gearshift.engine.protocol.worker_sessions import Session, WorkerSessions


class WorkerLeases:
    """The leases of one incarnation."""

    def __init__(
        self,
        incarnation: int,
        passes: DataPasses,
        sessions: WorkerSessions,
        groups: AllReduceGroups,
        meetings: Meetings,
        send: Callable[[To, ToWorker], None],
        notify: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._incarnation, self._passes, self._sessions = incarnation, passes, sessions
        self._groups, self._meetings = groups, meetings
        self._send, self._notify, self._clock = send, notify, clock

    # ---- joining ----

    def join(self, worker: int, boot: int) -> None:
        """The worker has started, or its welcome was lost."""
        session = self._sessions.get(worker)
        if session is not None and boot < session.boot:
            return
        if worker >= self._sessions.limit or (self._passes.over and session is None):
            self._send(To("worker", worker), Over(boot))
            return
        if self._sessions.is_given_up(worker, boot):
            self._send(To("worker", worker), Rejoin(boot))
            return
        if session is not None and boot > session.boot:
            self._notify(f"worker {worker} restarted; its unfinished batches are computed again")
        if session is None or boot > session.boot:
            if not self._meetings.admits(worker, boot):
                if session is not None:
                    self._lose(worker, f"worker {worker} restarted")
                return
            self._open_session(worker, boot)
        self._sessions[worker].heard = self._clock()
        self._send(To("worker", worker), Welcome(self._incarnation, boot))

    def _open_session(self, worker: int, boot: int) -> None:
        held = self._break_group_of(worker)
        self._sessions.open(worker, boot, self._clock())
        self._passes.epoch.joined(worker)
        self._meetings.joined()
        self._ask_again(held)

    # ---- reports ----

    def report(self, session: Session, report: Report) -> None:
        if report.request < session.request:
            return
        if report.request == session.request:
            if session.answer is not None:
                self._send(To("worker", report.worker), session.answer)
            return
        session.request, session.answer = report.request, None
        worker, epoch = report.worker, self._passes.epoch
        match report.outcome:
            case LeaseDone(group=group) as done if group:
                self._hold_for_group(HeldReport(worker, report.boot, done))
                return
            case GroupBroken(group, reason) if self._groups.expects(worker, group):
                held = self._groups.failed(reason)
                self._ask(worker)
                self._ask_again(held)
                return
            case LeaseDone() | LeaseRefused() as outcome if epoch.leases.held_by(outcome.lease) not in (
                None,
                worker,
            ):
                pass  # the lease was reissued to another worker, which will report it
            case LeaseDone(lease, version, seconds, content):
                epoch.arrived(worker, lease, content, seconds, version)
            case LeaseRefused(lease, reason):
                epoch.refused(worker, lease, reason)
        self._ask(worker)

    def _hold_for_group(self, report: HeldReport) -> None:
        """The gradients of an all-reduce group count together; those of a broken group are computed again."""
        if not self._groups.expects(report.worker, report.done.group, report.done.lease):
            self._ask(report.worker)
        elif whole := self._groups.hold(report):
            for worker, done in [(one.worker, one.done) for one in whole]:
                self._passes.epoch.arrived(worker, done.lease, done.content, done.seconds, done.version)
            for one in whole:
                self._ask(one.worker)

    def _ask(self, worker: int) -> None:
        """Requests more work for the worker, unless it must leave."""
        if self._sessions.must_leave(worker):
            self._leave(worker)
            return
        epoch = self._passes.epoch
        if epoch.coordinator.work.flights_of[worker]:
            epoch.joined(worker)  # it has no record of a lease that it did not report
        epoch.requested(worker)

    # ---- all-reduce groups ----

    def break_group(self) -> None:
        """Breaks the group before a meeting: a worker that has met no longer contributes to the sum."""
        self._ask_again(self._groups.undo())

    def _break_group_of(self, worker: int) -> list[HeldReport]:
        """Breaks the worker's group before its lease is reissued. Returns the held reports, to be requested again."""
        return self._groups.undo() if self._groups.has(worker) else []

    def _ask_again(self, held: list[HeldReport]) -> None:
        for report in held:
            session = self._sessions.get(report.worker)
            if session is not None and session.boot == report.boot:
                self._ask(report.worker)

    # ---- leaving ----

    def give_up_silent(self, patience: float) -> None:
        """Declares workers lost that have been silent for longer than this."""
        for worker, session in self._sessions.items():
            if self._clock() - session.heard > patience and self._sessions.is_open(worker, session):
                reason = f"worker {worker} was silent for {patience:g} s"
                self._notify(f"{reason}; its examples go to the others")
                self._sessions.give_up(worker)
                self._sessions.note_silent(worker)
                self._lose(worker, reason)

    def dismiss_surplus(self) -> None:
        """Dismisses the workers above the limit; busy ones leave after their batch."""
        for worker, session in self._sessions.items():
            idle = session.answer is None and self._sessions.is_open(worker, session)
            if worker >= self._sessions.limit and idle:
                self._leave(worker)

    def dismiss(self, worker: int) -> None:
        """The worker finishes its batch and leaves. A later worker may use its number."""
        if (session := self._sessions.get(worker)) is not None:
            if session.answer is None:
                self._leave(worker)
            else:
                session.dismissed = True

    def _leave(self, worker: int) -> None:
        boot = self._sessions[worker].boot
        self._sessions.give_up(worker)
        self._lose(worker, f"worker {worker} left")
        self._send(To("worker", worker), Over(boot))

    def _lose(self, worker: int, reason: str) -> None:
        held = self._break_group_of(worker)
        self._sessions.close(worker)
        self._passes.epoch.lost(worker, reason)
        self._meetings.lost(worker)
        self._ask_again(held)
