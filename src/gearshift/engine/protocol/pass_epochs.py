"""The `Epoch` of each pass over the data: its steps are orders to the shards, and the accounts are updated after each.

After a step a snapshot may be due. If workers keep replicas, snapshots and stops wait until these are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from gearshift.engine.epoch import Epoch
from gearshift.engine.protocol.assignments import Assignments
from gearshift.engine.protocol.host import Accounts
from gearshift.engine.protocol.orders import Orders
from gearshift.engine.protocol.replica_meetings import Meetings
from gearshift.sync.coordinator import Coordinator
from gearshift.training.engine import Log


class StepWatcher:
    """Updates the accounts after each step, and takes a snapshot if one is due."""

    def __init__(
        self, accounts: Accounts, meetings: Meetings, cut_every: int, take_cut: Callable[[], None]
    ) -> None:
        """A snapshot is taken every `cut_every` steps, 0: never."""
        self._accounts, self._meetings, self._cut_every = accounts, meetings, cut_every
        self._take_cut = take_cut
        self.rate, self.ended, self.horizons = accounts.rate, accounts.ended, accounts.horizons
        self.duplicated = accounts.duplicated
        self._steps = 0
        self._cut_due = self._stop = False

    def stepped(self) -> bool:
        self._steps += 1
        proceed = self._accounts.stepped()
        self._cut_due |= bool(self._cut_every) and self._steps % self._cut_every == 0
        if not self._meetings.settled:
            self._stop |= not proceed
            if self._cut_due or self._stop:
                self._meetings.request_show()
            return True  # a run that stopped here could not be saved
        self._take_cut_if_due()
        return proceed

    def meet(self, number: int) -> bool:
        """Called by `Epoch` when a round is due. The round lasts until `Epoch.exchanged` is called."""
        self._meetings.request_round(number)
        return False

    def shown(self) -> bool:
        """Replicas are shown: pending evaluations and snapshots are carried out. Returns whether the run stops here."""
        self._accounts.shown()
        self._take_cut_if_due()
        return self._stop

    def _take_cut_if_due(self) -> None:
        if self._cut_due:
            self._cut_due = False
            self._take_cut()


@dataclass(frozen=True)
class PassEpochs:
    """Opens the epoch of each pass of one incarnation."""

    orders: Orders
    accounts: Accounts
    meetings: Meetings
    assignments: Assignments
    cut_every: int
    log: Log | None
    clock: Callable[[], float]

    def open(
        self,
        coordinator: Coordinator,
        number: int,
        take_cut: Callable[[], None],
        upcoming: Callable[[], Iterator[tuple[int, int]]],
    ) -> tuple[Epoch[Any], StepWatcher]:
        watcher = StepWatcher(self.accounts, self.meetings, self.cut_every, take_cut)
        begin = partial(self.assignments.assign, coordinator=coordinator, epoch=number, upcoming=upcoming)
        return Epoch(coordinator, self.orders, watcher, begin, self.log, now=self.clock), watcher
