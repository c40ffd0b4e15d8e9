"""Decides when a run saves: on request, at the interval of `checkpoint.every`, and after the best evaluation so far.

Called from the run's thread, between two steps; only `request` may be called from any thread. The saver writes the
checkpoints.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gearshift.run.checkpoint_content import checkpoint_arrays, checkpoint_facts
from gearshift.run.checkpoint_policy import CheckpointPolicy
from gearshift.run.saver import Saver
from gearshift.run.wall_time import WallTime
from gearshift.training.timing import Moment
from gearshift.training.training import Training


class Saving:
    def __init__(
        self, training: Training, policy: CheckpointPolicy, saver: Saver, wall: WallTime, clock: float
    ) -> None:
        """`clock` is the time of the last save, from which `checkpoint.every` counts."""
        self.training, self.saver = training, saver
        self._every, self._wall, self._clock = policy.every, wall, clock
        self._requested = threading.Event()

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.saver.checkpoints.folder.parent

    def request(self) -> None:
        """Requests a checkpoint after this step. May be called from any thread."""
        self._requested.set()

    def request_after_step(self, before: Moment) -> None:
        """Requests a checkpoint if `checkpoint.every` counts steps or shares, and one has become due since `before`."""
        every = self._every
        if every and every.seconds is None and every.due(before, self.training.moment):
            self._requested.set()

    def request_in_time(self) -> None:
        """Requests a checkpoint if `checkpoint.every` is a time that has passed; time spent recovering counts too."""
        every = self._every
        if every and every.seconds is not None and time.monotonic() - self._clock >= every.seconds:
            self._clock = time.monotonic()
            self._requested.set()

    def save_if_requested(self, ready_to_save: Callable[[], bool]) -> None:
        """Saves as soon as the state is ready to be saved."""
        if self._requested.is_set() and ready_to_save():
            self._requested.clear()
            self.save(best=False)

    def save_now(self) -> None:
        """Saves the current step. It counts as the best if evaluations do not choose one."""
        self.save(best=not self.training.plan.keep_best or self.training.valid is None)

    def save(self, *, best: bool) -> None:
        training = self.training
        if self.saver.has(training.step):
            if best:
                self.saver.link("best", self.saver.checkpoints.path(training.step))
            return
        baseline_learner = training.baseline.learner
        learners = (training.learner, *((baseline_learner,) if baseline_learner else ()))
        arrays = checkpoint_arrays(training)
        self.saver.save(training.step, self.facts(), arrays, learners, best=best)

    def facts(self) -> dict[str, Any]:
        """The content of a checkpoint at this moment, besides the arrays."""
        return checkpoint_facts(self.training, self._wall.facts(self.folder))
