"""Passes over the data: which examples are supplied next, when a pass ends, and whether another one follows.

Holds the epoch of the current pass and the position in the data. A snapshot records both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from gearshift.engine.protocol.host import Accounts
from gearshift.engine.protocol.messages import Over, To
from gearshift.engine.protocol.pass_epochs import PassEpochs
from gearshift.engine.protocol.replica_meetings import Meetings
from gearshift.engine.protocol.snapshot_cuts import SnapshotCuts
from gearshift.engine.protocol.worker_sessions import WorkerSessions
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.registry import make_strategy
from gearshift.sync.strategy import Strategy


class DataPasses:
    """The passes of one incarnation."""

    def __init__(
        self,
        facts: dict[str, Any],
        strategy: Strategy,
        examples: int,
        epochs: PassEpochs,
        accounts: Accounts,
        cuts: SnapshotCuts,
        meetings: Meetings,
        sessions: WorkerSessions,
        send: Callable[[To, Over], None],
    ) -> None:
        """Starts from the `facts` of a snapshot; the data has `examples` examples."""
        self._examples, self._epochs, self._accounts = examples, epochs, accounts
        self._cuts, self._meetings, self._sessions, self._send = cuts, meetings, sessions, send
        self.over = False  # the last pass has ended, or the run was stopped
        self.number: int = facts.get("epoch", 0)
        self.position: int = facts["position"]
        self._open(Coordinator(strategy, make_strategy, step=facts["step"]))
        for first, count in facts["leased"]:
            self.epoch.supply(first, count)
        for first, count in facts["unbegun"]:
            self.epoch.supply(first, count, strategy.batch)

    def feed(self) -> None:
        """Supplies a global batch of examples at a time to waiting workers; dismisses all workers at the end."""
        while not self.over:
            self._supply()
            if not self.epoch.done:
                return
            if not self._meetings.settled:
                self._meetings.request_show()
                return
            next_lease = self.epoch.coordinator.work.supply.next_number
            if not self.epoch.stopped and self._accounts.passed(next_lease):
                self._next_pass()
            else:
                self.over = True
        for worker, boot in self._sessions.members.items():
            self._send(To("worker", worker), Over(boot))

    def take_cut(self) -> None:
        """Takes a cut of the step that all shards have just applied, unless a cut is still being written."""
        if self._cuts.current is None:
            self._cuts.take(self.epoch.step, self._facts())

    def shown(self) -> None:
        """The shards have the result of the replicas: pending evaluations, cuts and stops are carried out."""
        if self._watcher.shown():
            self.epoch.stopped = True
        self.feed()

    def stop(self) -> None:
        """Stops the run here. No step may be in progress."""
        self.epoch.stopped = self.over = True

    def _open(self, coordinator: Coordinator) -> None:
        self.epoch, self._watcher = self._epochs.open(coordinator, self.number, self.take_cut, self._upcoming)

    def _supply(self) -> None:
        epoch = self.epoch
        while epoch.coordinator.hungry:
            strategy = epoch.coordinator.strategy
            count = min(strategy.global_batch, self._examples - self.position)
            if count:
                first, self.position = self.position, self.position + count
                epoch.supply(first, count, strategy.batch)
            else:
                epoch.exhausted()

    def _upcoming(self) -> Iterator[tuple[int, int]]:
        """(first, count) of the next leases of this pass, as far as strategy and workers stay as they are."""
        strategy, at = self.epoch.coordinator.strategy, self.position
        yield from self.epoch.coordinator.work.supply.upcoming()
        while at < self._examples:
            end = min(at + strategy.global_batch, self._examples)
            yield from ((first, min(strategy.batch, end - first)) for first in range(at, end, strategy.batch))
            at = end

    def _next_pass(self) -> None:
        """Starts the next pass with all present workers. Requests for work that are pending stay pending."""
        old, step = self.epoch.coordinator, self.epoch.step
        self.number, self.position = self.number + 1, 0
        first_lease = old.work.supply.next_number
        self._open(Coordinator(old.strategy, make_strategy, step=step, first_lease=first_lease))
        self._meetings.take_over(old.strategy, keep=False)
        for worker, session in self._sessions.items():
            self.epoch.joined(worker)
            if session.request and session.answer is None:
                self.epoch.requested(worker)

    def _facts(self) -> dict[str, Any]:
        strategy = self.epoch.coordinator.strategy
        return {
            "step": self.epoch.step,
            "epoch": self.number,
            "position": self.position,
            "leased": self.epoch.leases.leased_ranges(),
            "unbegun": self.epoch.leases.unbegun_ranges(),
            "strategy": strategy.name,
            "settings": asdict(strategy),
            "book": self._accounts.facts(),
        }
