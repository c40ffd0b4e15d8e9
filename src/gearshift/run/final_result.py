"""The outcome of a run: the best parameters, the final metrics, report.json and the `Result`."""

from __future__ import annotations

from typing import Any

from gearshift.data.dataset import Dataset
from gearshift.embedding.tier_figures import TierSummary
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.run import folder as run_folder
from gearshift.run.health import Health
from gearshift.run.last_save import LastSave
from gearshift.run.log import Messages
from gearshift.run.report import report
from gearshift.run.result import Result
from gearshift.run.saving import Saving
from gearshift.run.wall_time import WallTime
from gearshift.training.evaluation import Evaluation, evaluate


class FinalResult:
    def __init__(
        self,
        saving: Saving,
        last_save: LastSave,
        health: Health,
        wall: WallTime,
        messages: Messages,
        engine: str,
        test: Dataset | None = None,
    ) -> None:
        """`engine` is the name of the engine that runs the workers."""
        self._saving, self._last_save, self._training = saving, last_save, saving.training
        self._health, self._wall, self._messages, self._test = health, wall, messages, test
        self._engine = engine
        self.last_evaluation: Evaluation | None = None
        self.data_warning: str | None = None  # about how the validation data were cut
        self._tier: TierSummary | None = None

    def note_tier(self) -> None:
        """The training has ended: keeps the figures of its tiers, before other rows are loaded for evaluations."""
        if self._tier is None:
            self._tier = self._training.learner.tier

    @property
    def needs_parameters(self) -> bool:
        """Whether the parameters are needed again after the training has finished."""
        no_measure = self.last_evaluation is None and self._training.valid is not None
        return self._test is not None or no_measure

    def of_stopped(self) -> Result:
        """The result of a stopped run, without another evaluation: it may be resumed, or about to be killed."""
        return self._result(self._figures() | self._health.totals())

    def of_finished(self) -> Result:
        """Makes the remaining evaluations and writes the report."""
        training, steps = self._training, self._training.step
        self._health.enters("evaluating")
        self._take_best()
        if self.last_evaluation is None and training.valid is not None:  # resumed after the last epoch
            self.last_evaluation = evaluate(training.learner, training.valid)
        baseline_learner = training.baseline.learner
        baseline = baseline_learner and training.valid and evaluate(baseline_learner, training.valid)
        test = evaluate(training.learner, self._test) if self._test else None
        figures = self._figures(steps, test, baseline or None) | self._health.totals()
        path = self._saving.folder / run_folder.REPORT
        self._last_save.persist(path, lambda: run_folder.write_json(path, figures))
        for sentence in figures["warnings"]:
            if sentence != self.data_warning:
                self._messages.append(f"Warning: {sentence}")
        return self._result(figures)

    def _figures(
        self, steps: int | None = None, test: Evaluation | None = None, baseline: Evaluation | None = None
    ) -> dict[str, Any]:
        """`steps` is the number of steps made, if the parameters were reset to those of an earlier step."""
        steps = self._training.step if steps is None else steps
        seconds = self._wall.seconds(self._saving.folder)
        return report(
            self._training,
            steps,
            self.last_evaluation,
            test,
            baseline,
            engine=self._engine,
            seconds=seconds,
            data_warning=self.data_warning,
            tier=self._tier,
        )

    def _result(self, figures: dict[str, Any]) -> Result:
        return Result(self._training.learner, self._saving.facts(), self._saving.folder, figures)

    def _take_best(self) -> None:
        """With `keep_best`, restores the parameters that scored best on the validation data."""
        training, saver, best = self._training, self._saving.saver, self._training.progress.best_step
        if not training.plan.keep_best or training.valid is None or best == training.step:
            return
        if not saver.has(best):
            self._messages.append(f"step {best:,} scored best but is not saved; the last step is kept")
            return
        training.learner.restore(Checkpoint.open(saver.checkpoints.path(best)))
        self.last_evaluation = evaluate(training.learner, training.valid)
