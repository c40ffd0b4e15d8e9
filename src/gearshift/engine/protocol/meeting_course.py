"""The stages of a meeting of all workers: it begins, all workers meet, its purpose is carried out, and it ends.

A show waits until every step of the workers is accounted for. Then evaluations, snapshots and switches are carried out,
new workers join, and the workers continue.
"""

from __future__ import annotations

from gearshift.engine.protocol.data_passes import DataPasses
from gearshift.engine.protocol.orders import Orders
from gearshift.engine.protocol.replica_meetings import Meeting, Meetings
from gearshift.engine.protocol.worker_leases import WorkerLeases
from gearshift.parameters.shard import Assemble


class MeetingCourse:
    """Drives the meetings of one incarnation."""

    def __init__(self, meetings: Meetings, leases: WorkerLeases, passes: DataPasses, orders: Orders) -> None:
        self._meetings, self._leases, self._passes, self._orders = meetings, leases, passes, orders

    def advance(self) -> bool:
        """Advances the meeting by one stage. False: a worker is awaited, or there is nothing to do."""
        meeting = self._meetings.current
        if meeting is None:
            return self._begin()
        if meeting.waiting:
            return False
        if meeting.exchange is not None:
            self._meetings.close_round()
            self._passes.epoch.exchanged(meeting.exchange)
            return True
        return self._end() if self._meetings.shown else self._show(meeting)

    def _begin(self) -> bool:
        if not self._meetings.open():
            return False
        self._leases.break_group()
        self._meetings.call()
        return True

    def _show(self, meeting: Meeting) -> bool:
        epoch, work = self._passes.epoch, self._passes.epoch.coordinator.work
        # Gradients that wait for others to form a step stay on the shards.
        if epoch.step < work.step or any(lease in work.flying for lease in meeting.leases):
            return False
        if any(isinstance(order.what, Assemble) for order in self._orders.open):
            return False  # a shard may still accept offers of a lost worker
        self._meetings.shown = True
        self._passes.shown()
        for worker, boot in self._meetings.take_newcomers().items():
            self._leases.join(worker, boot)
        return True

    def _end(self) -> bool:
        """Ends the meeting, after the actions decided so far are carried out: replicas are forked from their result."""
        epoch = self._passes.epoch
        if epoch.step < epoch.coordinator.work.step and not epoch.stopped:
            return False
        self._meetings.close_show()
        return True
