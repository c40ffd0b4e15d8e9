"""What is asked of a live training, from any thread: another strategy, another number of workers.

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
    from gearshift.training.epoch_host import EpochHost
    from gearshift.training.training import Training


@dataclass(frozen=True)
class Switch:
    """A change of strategy in a live run."""

    strategy: str
    before: str
    step: int  # the last step of the old strategy
    seconds: float  # from the request to the first moment under the new one
    adopted: int  # leases in flight or waiting that the new strategy took over
    discarded: int = 0
    reason: str = ""


@dataclass
class SwitchRequest:
    """A switch on its way to the run's own thread, which alone carries it out."""

    name: str  # by which the strategy is made: `gba`, or `module:Class`
    settings: dict[str, Any]  # as asked
    strategy: Strategy
    automatic: Automatic | None  # who decides from then on, if nobody else
    by: Literal["user", "plan", "auto"]
    reason: str
    at: float = field(default_factory=time.monotonic)
    answered: threading.Event = field(default_factory=threading.Event)
    switch: Switch | None = None

    def strategy_after(self, training: Training) -> Strategy:
        """The strategy that decides once this is carried out: with batches of the size that workers have by then."""
        batch = training.strategy.batch
        if "batch" not in self.settings and batch != self.strategy.batch:
            with suppress(UserError):  # as it was asked, it fits
                return training.make(self.name, {**self.settings, "batch": batch})
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
    """Another number of workers, on its way to the run's own thread."""

    workers: int
    answered: threading.Event = field(default_factory=threading.Event)

    def strategy_after(self, training: Training) -> Strategy:
        """The strategy that decides once this is carried out: the same, with the global batch cut for so many."""
        with suppress(UserError):  # it fitted the strategy of when it was asked
            return training.recut(self.workers)
        return training.strategy

    def carry_out(self, run: EpochHost) -> None:
        run.resize(self)
