"""Evaluations on the validation data during training: the best evaluation, patience, and plateaus."""

from __future__ import annotations

import math

from gearshift.data.dataset import Dataset
from gearshift.training.engine import Observer
from gearshift.training.evaluation import evaluate
from gearshift.training.learner import Learner
from gearshift.training.progress import Progress
from gearshift.training.train_settings import EvaluationSettings


class Validation:
    """Records the best evaluation in `progress`, counts those without gain, and lowers the rates at plateaus."""

    def __init__(self, settings: EvaluationSettings, progress: Progress, valid: Dataset | None) -> None:
        self._settings, self._progress, self._valid = settings, progress, valid

    def is_due(self, step: int) -> bool:
        """Whether there is validation data, and the model has not been evaluated at this step yet."""
        return self._valid is not None and self._progress.evaluated_step != step

    def evaluate(self, learner: Learner, observer: Observer) -> None:
        """Evaluates the learner, which must hold the parameters of its current step."""
        assert self._valid is not None
        progress, step = self._progress, learner.server.step
        evaluation = evaluate(learner, self._valid)
        value = float(getattr(evaluation.measures, self._settings.best or "auc"))
        gain = self._is_better(value)
        progress.evaluations += 1
        progress.evaluated_step = step
        if gain:
            progress.best, progress.best_step, progress.without_gain = value, step, 0
        else:
            progress.without_gain += 1
            plateau = self._settings.plateau
            if plateau and progress.without_gain % plateau.patience == 0:
                progress.rate_factor *= plateau.factor
        observer.evaluated(evaluation, gain)

    @property
    def out_of_patience(self) -> bool:
        stopping = self._settings.early_stopping
        return stopping is not None and self._progress.without_gain >= stopping.patience

    def _is_better(self, value: float) -> bool:
        best = self._progress.best
        if best is None or math.isnan(best) or math.isnan(value):  # undefined: the newest counts as the best
            return True
        return value < best if self._settings.best == "logloss" else value > best
