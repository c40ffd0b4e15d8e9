"""Requests to a live training, from any thread: users', planned ones, and those of `auto`.

A request that cannot be carried out is refused at once. The thread that drives the training carries out the others
between two steps.
"""

from __future__ import annotations

import queue
from typing import Any, Literal

from gearshift.cluster_model.injected_delay import Pacer
from gearshift.errors import UserError
from gearshift.sync.automatic import Automatic
from gearshift.sync.events import Action, Event
from gearshift.training.active_strategy import ActiveStrategy
from gearshift.training.plan import PlannedSwitch, check_whole
from gearshift.training.progress import Progress
from gearshift.training.requests import ResizeRequest, SwitchRequest

MOST_WORKERS = 1000


class RequestQueue:
    """Pending switches and resizes, in the order in which they were requested."""

    def __init__(
        self, active: ActiveStrategy, switches: tuple[PlannedSwitch, ...], pacer: Pacer | None
    ) -> None:
        self._active, self._switches, self._pacer = active, switches, pacer
        self.pending: queue.SimpleQueue[SwitchRequest | ResizeRequest] = queue.SimpleQueue()
        for planned in switches:  # an invalid one fails now rather than in the middle of the run
            active.check_same_batch(planned.settings)
            active.make(planned.strategy, planned.settings)

    def request_switch(self, name: str, settings: dict[str, Any], reason: str = "") -> SwitchRequest:
        """Requests a switch before the next lease.

        Workers keep the size of their batches unless `batch` is among the settings. A user's request for a strategy
        ends `auto`.
        """
        return self._request(name, settings, self._active.automatic_for(name, settings), "user", reason)

    def request_resize(self, workers: int) -> ResizeRequest:
        """Requests this number of workers from the next step on. The global batch does not change."""
        check_whole(workers=workers)
        if not 1 <= workers <= MOST_WORKERS:
            raise UserError(f"workers={workers}: it must be at least 1, at most {MOST_WORKERS:,} threads")
        if self._pacer is not None:
            raise UserError(
                "the number of workers cannot change in a run with injected slowness (cluster.inject)"
            )
        self._active.recut(workers)  # refused here if the global batch does not divide among them
        request = ResizeRequest(workers)
        self.pending.put(request)
        return request

    def request_planned_switch(self, progress: Progress, total: int) -> None:
        """Requests the next planned switch if it is due and no request is pending."""
        if progress.switched == len(self._switches) or not self.pending.empty():
            return
        planned = self._switches[progress.switched]
        share, days = progress.examples / total, len(progress.days.measures)
        if planned.at.reached(progress.examples, share, progress.seconds, days):
            automatic = self._active.automatic_for(planned.strategy, planned.settings)
            self._request(planned.strategy, planned.settings, automatic, "plan", "as planned")

    def observe(self, event: Event, actions: list[Action]) -> None:
        """`auto` sees every event, and may request a switch."""
        automatic = self._active.automatic
        proposal = automatic and automatic.observe(event, actions, self._active.strategy.name)
        if automatic is not None and proposal:
            self._request(proposal.strategy, proposal.settings, automatic, "auto", proposal.reason)

    def _request(
        self,
        name: str,
        settings: dict[str, Any],
        automatic: Automatic | None,
        by: Literal["user", "plan", "auto"],
        reason: str,
    ) -> SwitchRequest:
        active = self._active
        if name == "auto":
            name, settings = active.name if active.name in ("sync", "gba") else "sync", {}
        active.check_same_batch(settings)
        strategy = active.make(name, {"batch": active.strategy.batch, **settings})
        request = SwitchRequest(name, settings, strategy, automatic, by, reason)
        self.pending.put(request)
        return request
