"""A worker's attendance at meetings of all workers: the current meeting, its phases, and whether it waits for `Go`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gearshift.engine.protocol.replica_messages import Meet, OfferKind


class MeetingAttendance:
    """The attendance of one boot. Meetings are numbered from 1; 0 means none."""

    def __init__(self) -> None:
        self.number = 0  # the current meeting
        self.met = 0  # the last meeting that this worker has completed
        self.frozen = 0  # the show after which no step is made until `Go`
        self.assembly = 0  # the list of members in the meeting
        self.absent = False  # this worker had no replica when the meeting began
        self.is_show = False
        self._phases: deque[OfferKind] = deque()  # phases still to come

    @property
    def stands_still(self) -> bool:
        """Whether no step may be made."""
        return bool(self.number or self.frozen)

    def enter(self, meet: Meet) -> None:
        self.number, self.assembly, self.is_show = meet.number, meet.assembly, meet.show
        self.frozen = meet.number if meet.show else 0

    def begin(self, phases: Iterable[OfferKind], *, absent: bool) -> None:
        self._phases, self.absent = deque(phases), absent

    def next_phase(self) -> OfferKind | None:
        """None: no phase is left, and the worker has completed the meeting."""
        if self._phases:
            return self._phases.popleft()
        self.met, self.number = self.number, 0
        return None

    def release(self, number: int) -> bool:
        """The show with this number has ended. Returns whether the worker continues."""
        if not self.frozen or number < self.frozen:
            return False
        self.frozen = 0
        return True
