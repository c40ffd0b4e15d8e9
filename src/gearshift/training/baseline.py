"""A simple model that is trained next to the main model, on the same examples, for comparison."""

from __future__ import annotations

from gearshift.embedding.horizons import Horizons
from gearshift.embedding.lookup import IndexedBatch
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.training.learner import Learner


class Baseline:
    """`learner` is None if there is no baseline or it has diverged, which does not stop the run."""

    def __init__(self, learner: Learner | None, model: Learner) -> None:
        self.learner = learner
        self._same_ids = learner is not None and learner.worker.indexes_like(model.worker)

    def beside(self, model: Learner) -> list[Learner]:
        """The learners that are trained."""
        return [model] if self.learner is None else [model, self.learner]

    def step(self, indexed: IndexedBatch, *, lr_scale: float) -> None:
        if self.learner is None:
            return
        if not self._same_ids:
            indexed = self.learner.find(indexed.batch)
        try:
            self.learner.step(indexed, lr_scale=lr_scale)
        except FloatingPointError:
            self.learner = None

    @property
    def steps(self) -> int:
        return 0 if self.learner is None else self.learner.server.step

    def move_horizons(self, horizons: Horizons) -> None:
        if self.learner is not None:
            self.learner.server.move_horizons(horizons)

    def restore(self, checkpoint: Checkpoint) -> bool:
        """Returns False if there is a baseline but the checkpoint has none; the baseline is then dropped."""
        if self.learner is None:
            return True
        if checkpoint.has("baseline-dense"):
            self.learner.restore(checkpoint)
            return True
        self.learner = None
        return False
