"""The loop of one worker: batches in, steps applied, measured and evaluated, until the data end.

Progressive measures count every example once, before it trains. Everything that a resumed run needs to go on
bit for bit is in `Progress`, in the learners and in torch's random state. The loop writes no file and prints
nothing: it tells its `Observer`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal, Protocol

from gearshift.cadence import Every, Moment
from gearshift.data.batch import Batch
from gearshift.data.dataset import Dataset
from gearshift.data.prefetch import prefetched
from gearshift.embedding.lookup import Found
from gearshift.errors import UserError
from gearshift.evaluate import Evaluation, evaluate
from gearshift.learner import Learner
from gearshift.metrics import Measures, Slices
from gearshift.optim.schedule import Schedule
from gearshift.worker import Push

DAY = 86_400  # seconds


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when the validation measure has not improved for `patience` evaluations."""

    patience: int = 2


@dataclass(frozen=True)
class Plateau:
    """Multiply both learning rates by `factor` after `patience` evaluations without improvement."""

    factor: float = 0.1
    patience: int = 1


@dataclass(frozen=True)
class Plan:
    """What to do and when."""

    batch: int = 4096
    epochs: int = 1
    seed: int = 1
    shuffle: bool = False
    schedule: Schedule = field(default_factory=Schedule)
    eval_every: Every | None = None
    best: Literal["auc", "logloss"] = "auc"  # the measure by which evaluations are compared
    keep_best: bool = False  # end with the parameters of the best evaluation, not with the last ones
    early_stopping: EarlyStopping | None = None
    plateau: Plateau | None = None

    def __post_init__(self) -> None:
        if self.best not in ("auc", "logloss"):
            raise UserError(f"best={self.best!r}: evaluations are compared by auc or logloss")
        for name in ("batch", "epochs"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)}: at least 1")


@dataclass
class Progress:
    """Where the run stands."""

    epoch: int = 0
    position: int = 0  # examples of this epoch that were trained
    examples: int = 0
    seconds: float = 0.0  # of training and of waiting for data, without evaluations and checkpoints
    loss: float = 0.0  # mean of the last step
    rate_factor: float = 1.0  # what plateaus have left of the learning rates
    best: float | None = None
    best_step: int = 0
    without_gain: int = 0  # evaluations since the best
    evaluations: int = 0
    evaluated_step: int = -1  # of the last evaluation
    measures: Measures = field(default_factory=Measures)
    days: Slices = field(default_factory=Slices)  # the same, by UTC day (days since 1970)


class Observer(Protocol):
    def stepped(self, before: Moment) -> bool:
        """After every step, with the moment before it; False asks the loop to stop here."""

    def evaluated(self, evaluation: Evaluation, is_best: bool) -> None: ...


class Training:
    """Drives `learner`, and a baseline beside it, over `train` as `plan` says."""

    def __init__(
        self,
        plan: Plan,
        learner: Learner,
        train: Dataset,
        valid: Dataset | None = None,
        baseline: Learner | None = None,
    ) -> None:
        self.plan, self.learner, self.baseline = plan, learner, baseline
        self.train, self.valid = train, valid
        self.progress = Progress()
        self.total = plan.epochs * max(1, train.estimate())

    @property
    def step(self) -> int:
        return self.learner.server.step

    @property
    def moment(self) -> Moment:
        return Moment(self.step, self.progress.seconds, self.progress.examples / self.total)

    def run(self, observer: Observer) -> None:
        """From where `progress` stands to the end, or until the observer says stop."""
        while self.progress.epoch < self.plan.epochs and not self._out_of_patience():
            if not self._run_epoch(observer):
                return
            self.progress.epoch, self.progress.position = self.progress.epoch + 1, 0
            self._evaluate(observer)

    def _run_epoch(self, observer: Observer) -> bool:
        """False if the run ends within this epoch."""
        progress, every = self.progress, self.plan.eval_every
        with closing(self._found(progress.epoch, progress.position)) as batches:
            mark = time.perf_counter()
            for found in batches:
                before = self.moment
                self._step(found)
                progress.seconds += time.perf_counter() - mark
                if every and progress.examples < self.total and every.due(before, self.moment):
                    self._evaluate(observer)
                if not observer.stepped(before) or self._out_of_patience():
                    return False
                mark = time.perf_counter()
        return True

    def _out_of_patience(self) -> bool:
        stopping = self.plan.early_stopping
        return stopping is not None and self.progress.without_gain >= stopping.patience

    def _found(self, epoch: int, start: int) -> Generator[Found]:
        """Deduplicated batches, read and found ahead of the training step."""
        shuffle = (self.plan.seed, epoch) if self.plan.shuffle else None

        def find() -> Generator[Found]:
            with closing(self.train.batches(self.plan.batch, start=start, shuffle=shuffle)) as batches:
                for batch in batches:
                    yield self.learner.find(batch)

        return prefetched(find(), depth=2)

    def _step(self, found: Found) -> None:
        progress, batch = self.progress, found.batch
        share = min(1.0, (progress.examples + len(batch)) / self.total)  # at the end of this step
        scale = self.plan.schedule.factor(share) * progress.rate_factor
        try:
            push = self.learner.step(found, lr_scale=scale)
        except FloatingPointError as error:
            raise self._non_finite(str(error), batch.first, len(batch)) from None
        if self.baseline and progress.epoch == 0:
            self._step_baseline(found, scale)
        if progress.epoch == 0:  # later the model has seen them
            self._measure(batch, push)
        progress.position += len(batch)
        progress.examples += len(batch)
        progress.loss = push.loss / max(push.examples, 1e-12)

    def _measure(self, batch: Batch, push: Push) -> None:
        labels, probabilities = batch.labels_BT[:, 0], push.probabilities_BT[:, 0]
        self.progress.measures.update(labels, probabilities, batch.weights_B)
        if batch.times_B is not None:
            self.progress.days.update(batch.times_B // DAY, labels, probabilities, batch.weights_B)

    def _step_baseline(self, found: Found, scale: float) -> None:
        assert self.baseline is not None
        if not self.baseline.worker.finds_like(self.learner.worker):
            found = self.baseline.find(found.batch)
        try:
            self.baseline.step(found, lr_scale=scale)
        except FloatingPointError:
            self.baseline = None  # a yardstick that broke is no reason to stop

    def _non_finite(self, what: str, first: int, count: int) -> UserError:
        where = (
            self.train.locate(first, count)
            if not self.plan.shuffle
            else f"examples {first:,} and after, shuffled"
        )
        return UserError(
            f"{what} at step {self.step + 1} ({where}). "
            f"Look at the numbers there, or lower optimizer.dense.lr or set optimizer.clip_norm=1"
        )

    def _evaluate(self, observer: Observer) -> None:
        progress = self.progress
        if self.valid is None or progress.evaluated_step == self.step:
            return
        evaluation = evaluate(self.learner, self.valid)
        value = float(getattr(evaluation.measures, self.plan.best))
        gain = self._is_better(value)
        progress.evaluations += 1
        progress.evaluated_step = self.step
        if gain:
            progress.best, progress.best_step, progress.without_gain = value, self.step, 0
        else:
            progress.without_gain += 1
            plateau = self.plan.plateau
            if plateau and progress.without_gain % plateau.patience == 0:
                progress.rate_factor *= plateau.factor
        observer.evaluated(evaluation, gain)

    def _is_better(self, value: float) -> bool:
        best = self.progress.best
        if best is None or math.isnan(best) or math.isnan(value):  # undefined: the newest is as good as any
            return True
        return value > best if self.plan.best == "auc" else value < best
