"""Requests to a live training, from any thread: another strategy, or another number of workers.

A request waits in a queue. The thread that drives the training carries it out between two steps and answers it.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gearshift.errors import UserError
from gearshift.sync.automatic import Automatic
from gearshift.sync.strategy import Strategy

if TYPE_CHECKING:
    from gearshift.training.active_strategy import ActiveStrategy
    from gearshift.training.epoch_host import EpochHost


@dataclass(frozen=True)
class Switch:
    """A change of strategy in a live run."""

    strategy: str
    before: str
    step: int  # the last step of the old strategy
    seconds: float  # time from the request until the new strategy was in force
    adopted: int  # leases in flight or waiting that the new strategy took over
    discarded: int = 0
    reason: str = ""


@dataclass
class SwitchRequest:
    """A pending switch. Only the thread that drives the training carries it out."""

    name: str  # the name of the strategy: `gba`, or `module:Class`
    settings: dict[str, Any]  # the settings as requested
    strategy: Strategy
    automatic: Automatic | None  # proposes further switches if the request was for `auto`
    by: Literal["user", "plan", "auto"]
    reason: str
    at: float = field(default_factory=time.monotonic)
    answered: threading.Event = field(default_factory=threading.Event)
    switch: Switch | None = None

    def strategy_after(self, active: ActiveStrategy) -> Strategy:
        """The strategy once this is carried out, with the batch size that the workers have at that time."""
        batch = active.strategy.batch
        if "batch" not in self.settings and batch != self.strategy.batch:
            with suppress(UserError):  # then the strategy is used as requested, which was checked before
                return active.make(self.name, {**self.settings, "batch": batch})
        return self.strategy

    def carry_out(self, run: EpochHost) -> None:
        run.switch(self)

    def answer(self, before: str, step: int, adopted: int) -> Switch:
        seconds = time.monotonic() - self.at
        self.switch = Switch(self.strategy.name, before, step, seconds, adopted, 0, self.reason)
        self.answered.set()
        return self.switch


@dataclass
class ResizeRequest:
    """A pending change of the number of workers. Only the thread that drives the training carries it out."""

    workers: int
    answered: threading.Event = field(default_factory=threading.Event)

    def strategy_after(self, active: ActiveStrategy) -> Strategy:
        """The strategy once this is carried out: the same, with the global batch divided among the new workers."""
        with suppress(UserError):  # it was checked against the strategy in force at the time of the request
            return active.recut(self.workers)
        return active.strategy

    def carry_out(self, run: EpochHost) -> None:
        run.resize(self)
