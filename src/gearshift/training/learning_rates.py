"""The factor of all learning rates: the schedule at this point of the run, times the reductions at plateaus."""

from __future__ import annotations

from gearshift.optim.schedule import Schedule
from gearshift.training.progress import Progress


class LearningRates:
    """`last` is the factor of the last step."""

    def __init__(self, schedule: Schedule, progress: Progress, total: int) -> None:
        self._schedule, self._progress, self._total = schedule, progress, total
        self.last = 1.0

    def of_step(self, examples: int) -> float:
        """The factor of a step that ends `examples` after the current position."""
        self.last = self.after(examples)
        return self.last

    def after(self, examples: int) -> float:
        """The same, for a step that a worker makes on its replica. May be called from any thread."""
        share = min(1.0, (self._progress.examples + examples) / self._total)
        return self._schedule.factor(share) * self._progress.rate_factor
