"""Assignments of work: a lease that the strategy lets begin becomes an `Assignment` message to its worker.

The message adds what the worker needs besides the lease: the plan for replicas, the learning rate, and its place in an
all-reduce group if the round has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from gearshift.engine.protocol.all_reduce import AllReduceGroups
from gearshift.engine.protocol.host import Accounts
from gearshift.engine.protocol.messages import Assignment, ComingRange, To
from gearshift.engine.protocol.replica_meetings import Meetings
from gearshift.engine.protocol.worker_sessions import WorkerSessions
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.events import Begin


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
        *,
        look_ahead: bool = False,
    ) -> None:
        """With `look_ahead` an assignment also names a range that will be leased later."""
        self._incarnation, self._accounts, self._sessions = incarnation, accounts, sessions
        self._groups, self._meetings, self._send, self._clock = groups, meetings, send, clock
        self._looks_ahead = look_ahead

    def assign(
        self,
        begin: Begin,
        coordinator: Coordinator,
        epoch: int,
        upcoming: Callable[[], Iterator[tuple[int, int]]],
    ) -> None:
        """`upcoming` returns the ranges of the next leases, in order."""
        session = self._sessions[begin.worker]
        rate = self._accounts.rate_after(begin.lease.count)
        head = self._incarnation, session.boot, session.request
        place = self._groups.place(begin, self._all_asking, coordinator, self._clock())
        ahead = self._ahead(upcoming()) if self._looks_ahead else None
        plan = self._meetings.plans.plan
        session.answer = Assignment(*head, begin, epoch, plan, rate, place, ahead)
        self._send(To("worker", begin.worker), session.answer)

    def _ahead(self, upcoming: Iterator[tuple[int, int]]) -> ComingRange | None:
        """The range of the lease that begins when every worker has begun one more: each range is named once."""
        coming = next(islice(upcoming, max(0, len(self._sessions) - 1), None), None)
        return None if coming is None else ComingRange(*coming)

    def _all_asking(self) -> dict[int, int] | None:
        """The boots of all workers; None if one of them cannot take part in a group now."""
        return None if self._meetings.under_way else self._sessions.all_asking()
