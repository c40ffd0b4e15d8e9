"""Assignments of work: a lease that the strategy lets begin becomes an `Assignment` message to its worker.

The message adds what the worker needs besides the lease: the plan for replicas, the learning rate, and its place in an
all-reduce group if the round has one.
"""

from __future__ import annotations

from collections.abc import Callable

from gearshift.engine.protocol.all_reduce import AllReduceGroups
from gearshift.engine.protocol.host import Accounts
from gearshift.engine.protocol.messages import Assignment, To
from gearshift.engine.protocol.replica_meetings import Meetings
from gearshift.engine.protocol.worker_sessions import WorkerSessions
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.messages import Begin


class Assignments:
    """The assignments of one incarnation."""

    def __init__(
        self,
        incarnation: int,
        accounts: Accounts,
        sessions: WorkerSessions,
        groups: AllReduceGroups,
        meetings: Meetings,
        send: Callable[[To, Assignment], None],
        clock: Callable[[], float],
    ) -> None:
        self._incarnation, self._accounts, self._sessions = incarnation, accounts, sessions
        self._groups, self._meetings, self._send, self._clock = groups, meetings, send, clock

    def assign(self, begin: Begin, coordinator: Coordinator, epoch: int) -> None:
        session = self._sessions[begin.worker]
        rate = self._accounts.rate_after(begin.lease.count)
        head = self._incarnation, session.boot, session.request
        place = self._groups.place(begin, self._all_asking, coordinator, self._clock())
        session.answer = Assignment(*head, begin, epoch, self._meetings.plans.plan, rate, place)
        self._send(To("worker", begin.worker), session.answer)

    def _all_asking(self) -> dict[int, int] | None:
        """The boots of all workers; None if one of them cannot take part in a group now."""
        return None if self._meetings.under_way else self._sessions.all_asking()
