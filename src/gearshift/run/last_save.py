"""The end of a run's training: saves the last step, and every file without which the run cannot end.

Failed writes are retried for `checkpoint.retry_for`, or until the user gives up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from gearshift.run.health import Health
from gearshift.run.retry import Retries
from gearshift.run.saver import failure_of
from gearshift.run.saving import Saving


class LastSave:
    def __init__(self, saving: Saving, retries: Retries, health: Health) -> None:
        self._saving, self.retries, self._health = saving, retries, health

    def begin(self) -> None:
        """Called after the last step: from now on a failed save is retried."""
        self._saving.saver.final = True
        if self._health.phase != "saving":
            self._health.enters("saving")

    def cancel(self) -> None:
        """A shard was lost before the last save: the run returns to the last checkpoint and trains again."""
        self._saving.saver.final = False
        self._health.enters("training")

    def save(self) -> None:
        """Returns when the last step is saved. Raises a `UserError` if the save was given up."""
        self.begin()
        self.retries.until_done(self._attempt)

    def _attempt(self) -> str | None:
        """The reason of the failure."""
        saver = self._saving.saver
        try:
            self._saving.save_now()
        except OSError as error:
            return saver.sentence(saver.checkpoints.path(self._saving.training.step), error)
        saver.wait()
        return saver.failure

    def persist(self, path: Path, write: Callable[[], object]) -> None:
        """Writes a file that the run needs to continue or end; it is retried like the last save."""
        self.retries.until_done(partial(failure_of, path, write), "The run cannot continue without it")
