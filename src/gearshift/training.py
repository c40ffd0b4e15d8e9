"""Training: an engine runs workers over the data, epoch by epoch; steps are measured and evaluated, until the end.

Progressive measures count every example once, before it trains. Everything that a resumed run needs to go on
(with one worker, or in sync, bit for bit) is in `Progress`, in the learners and in torch's random state. Nothing here
writes a file or prints: it tells its `Observer`.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import torch

from gearshift.cadence import Every, Moment
from gearshift.data.batch import Batch
from gearshift.data.dataset import Dataset
from gearshift.data.prefetch import prefetched
from gearshift.embedding.lookup import Found
from gearshift.engine import inline
from gearshift.engine.epoch import Ended, Epoch, Log
from gearshift.engine.feed import Feed
from gearshift.engine.threads import ThreadsEngine
from gearshift.errors import UserError
from gearshift.evaluate import Evaluation, evaluate
from gearshift.learner import Learner, Replica
from gearshift.metrics import Measures, Slices
from gearshift.optim.schedule import Schedule
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.messages import Begin
from gearshift.sync.registry import check, local_batch, make_strategy
from gearshift.sync.strategy import Strategy
from gearshift.worker import Push

DAY = 86_400  # seconds
PATIENCE = 300.0  # seconds without an answer after which a worker is given up


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

    batch: int = 4096  # the global batch: examples of a step
    workers: int = 1
    strategy: str = "sync"
    strategy_settings: dict[str, Any] = field(default_factory=dict)
    local_batch: int | None = (
        None  # examples a worker takes at a time; None: the global batch over the workers
    )
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
        for name in ("batch", "epochs", "workers"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)}: at least 1")


@dataclass
class Progress:
    """Where the run stands."""

    epoch: int = 0
    position: int = 0  # the first example of this epoch that nobody has begun
    open: list[list[int]] = field(default_factory=list)  # (first, count) begun before it and not ended
    examples: int = 0  # applied or discarded
    applied: int = 0  # leases that formed steps
    discarded: dict[str, int] = field(default_factory=dict)  # leases that did not, by reason
    lost_by_worker: dict[str, int] = field(default_factory=dict)  # examples discarded, by worker
    staleness: dict[str, int] = field(default_factory=dict)  # leases by steps applied since their pull
    lag: dict[str, int] = field(default_factory=dict)  # leases by steps behind schedule
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
class _SwitchAsked:
    strategy: Strategy
    settings: dict[str, Any]
    reason: str
    at: float
    answered: threading.Event = field(default_factory=threading.Event)
    switch: Switch | None = None


class Observer(Protocol):
    def began(self) -> None:
        """An epoch starts, where `step`, `strategy` and `progress` say."""

    def stepped(self, before: Moment) -> bool:
        """After every step, with the moment before it; False asks the loop to stop here."""

    def evaluated(self, evaluation: Evaluation, is_best: bool) -> None: ...

    def switched(self, switch: Switch) -> None: ...

    def tell(self, sentence: str) -> None:
        """Something the user should know."""


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
        self.strategy = self.make(plan.strategy, plan.strategy_settings)
        self.progress = Progress()
        self.total = plan.epochs * max(1, train.estimate())
        self.log: Log | None = None  # where events and actions are written
        self._asked: queue.SimpleQueue[_SwitchAsked] = queue.SimpleQueue()

    @property
    def step(self) -> int:
        return self.learner.server.step

    @property
    def moment(self) -> Moment:
        return Moment(self.step, self.progress.seconds, self.progress.examples / self.total)

    def make(self, name: str, settings: dict[str, Any]) -> Strategy:
        """A strategy for this run's global batch and workers; `batch` may be among the settings."""
        check(name, settings)
        plan, own = self.plan, dict(settings)
        own.setdefault("global_batch", plan.batch)
        if "batch" not in own:
            backups = int(own.get("backups", 1)) if name == "backup_workers" else 0
            own["batch"] = local_batch(
                name, own["global_batch"], plan.workers, backups=backups, batch=plan.local_batch
            )
        return make_strategy(name, own)

    def ask_switch(self, name: str, settings: dict[str, Any], reason: str = "") -> _SwitchAsked:
        """From any thread: the run changes over before its next lease. What cannot be is refused here."""
        asked = _SwitchAsked(self.make(name, settings), settings, reason, time.monotonic())
        self._asked.put(asked)
        return asked

    def run(self, observer: Observer) -> None:
        """From where `progress` stands to the end, or until the observer says stop."""
        while self.progress.epoch < self.plan.epochs and not self.out_of_patience():
            if not _EpochRun(self, observer).run():
                return
            self.progress.epoch, self.progress.position, self.progress.open = self.progress.epoch + 1, 0, []
            self.evaluate(observer)

    def out_of_patience(self) -> bool:
        stopping = self.plan.early_stopping
        return stopping is not None and self.progress.without_gain >= stopping.patience

    def found(self, epoch: int, start: int, size: int) -> Generator[Found]:
        """Deduplicated batches, read and found ahead of the training step."""
        shuffle = (self.plan.seed, epoch) if self.plan.shuffle else None

        def find() -> Generator[Found]:
            with closing(self.train.batches(size, start=start, shuffle=shuffle)) as batches:
                for batch in batches:
                    yield self.learner.find(batch)

        return prefetched(find(), depth=max(2, self.plan.workers))

    def account(self, leases: Sequence[Ended]) -> None:
        """Measures what ended, each example once, and steps the baseline on it."""
        progress = self.progress
        for ended in leases:
            part, count = ended.part, len(ended.found.batch)
            progress.examples += count
            if progress.epoch == 0:  # later the model has seen them
                self._step_baseline(ended.found)
                self._measure(ended.found.batch, ended.push)
            if part.weight > 0:
                progress.applied += 1
                add_to(progress.staleness, part.staleness)
                add_to(progress.lag, part.lag)
            else:
                add_to(progress.discarded, _kind(part.reason))
                add_to(progress.lost_by_worker, ended.worker, count)
        examples = sum(ended.push.examples for ended in leases)
        progress.loss = sum(ended.push.loss for ended in leases) / max(examples, 1e-12)

    def rate(self, examples: int) -> float:
        """What learning rates are multiplied with in a step that ends `examples` later."""
        share = min(1.0, (self.progress.examples + examples) / self.total)
        self._scale = self.plan.schedule.factor(share) * self.progress.rate_factor
        return self._scale

    def _measure(self, batch: Batch, push: Push) -> None:
        labels, probabilities = batch.labels_BT[:, 0], push.probabilities_BT[:, 0]
        self.progress.measures.update(labels, probabilities, batch.weights_B)
        if batch.times_B is not None:
            self.progress.days.update(batch.times_B // DAY, labels, probabilities, batch.weights_B)

    def _step_baseline(self, found: Found) -> None:
        if self.baseline is None:
            return
        if not self.baseline.worker.finds_like(self.learner.worker):
            found = self.baseline.find(found.batch)
        try:
            self.baseline.step(found, lr_scale=self._scale)
        except FloatingPointError:
            self.baseline = None  # a yardstick that broke is no reason to stop

    def non_finite(self, what: str, first: int, count: int) -> UserError:
        where = (
            self.train.locate(first, count)
            if not self.plan.shuffle
            else f"examples {first:,} and after, shuffled"
        )
        return UserError(
            f"{what} at step {self.step + 1} ({where}). "
            f"Look at the numbers there, or lower optimizer.dense.lr or set optimizer.clip_norm=1"
        )

    def evaluate(self, observer: Observer) -> None:
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


class _EpochRun:
    """One epoch under way: the host of its engine."""

    def __init__(self, training: Training, observer: Observer) -> None:
        self.training, self.observer = training, observer
        progress, learner = training.progress, training.learner
        observer.began()
        coordinator = Coordinator(training.strategy, make_strategy, step=learner.server.step)
        self.epoch = Epoch(coordinator, learner.server, self, training.log)
        self.feed = Feed(
            lambda start, size: training.found(progress.epoch, start, size),
            position=progress.position,
            batch=training.strategy.batch,
            ranges=[(first, count) for first, count in progress.open],
        )
        self.before = training.moment
        self.mark = time.perf_counter()

    def run(self) -> bool:
        """False if the run ends within this epoch."""
        workers = self.training.plan.workers
        with closing(self.feed):
            if workers == 1:
                inline.run(self.epoch, self.feed, self._compute, self._switch_if_asked)
            else:
                self._engine(workers).run(self.epoch, self.feed, self._switch_if_asked)
        self._tick()
        return not self.epoch.stopped

    def _engine(self, workers: int) -> ThreadsEngine:
        threads_each = max(1, torch.get_num_threads() // workers)
        replicas = [self.training.learner.replica(threads_each) for _ in range(workers)]

        def compute(worker: int, begin: Begin, found: Found) -> Push:
            return self._guarded(worker, replicas[worker], begin, found)

        tell = self.observer.tell
        return ThreadsEngine(workers, compute, threads_each=threads_each, patience=PATIENCE, tell=tell)

    def _compute(self, begin: Begin, found: Found) -> Push:
        return self._guarded(0, self.training.learner, begin, found)

    def _guarded(self, worker: int, on: Learner | Replica, begin: Begin, found: Found) -> Push:
        draw = 1_000_003 * self.training.progress.epoch + begin.lease.first
        try:
            return on.compute(found, draw)
        except FloatingPointError as error:
            raise self.training.non_finite(str(error), begin.lease.first, begin.lease.count) from None

    # What the engine tells

    def rate(self, examples: int) -> float:
        self.before = self.training.moment
        return self.training.rate(examples)

    def ended(self, leases: Sequence[Ended]) -> None:
        self.training.account(leases)

    def stepped(self) -> bool:
        training, progress, every = self.training, self.training.progress, self.training.plan.eval_every
        self._tick()
        progress.position = self.epoch.next_unbegun(self.feed.position)
        progress.open = [list(r) for r in self.epoch.open_ranges()]
        if every and progress.examples < training.total and every.due(self.before, training.moment):
            training.evaluate(self.observer)
        go_on = self.observer.stepped(self.before) and not training.out_of_patience()
        self.mark = time.perf_counter()
        return go_on

    def _tick(self) -> None:
        now = time.perf_counter()
        self.training.progress.seconds += now - self.mark
        self.mark = now

    def _switch_if_asked(self) -> None:
        training = self.training
        while not training._asked.empty():
            asked = training._asked.get()
            before, work = training.strategy.name, self.epoch.coordinator.work
            adopted = len(work.flying) + len(work.waiting)
            self.epoch.switch(asked.strategy.name, asdict(asked.strategy), asked.reason)  # type: ignore[call-overload]
            training.strategy = asked.strategy
            self.feed.resize(asked.strategy.batch)
            asked.switch = Switch(
                asked.strategy.name,
                before,
                self.training.step,
                time.monotonic() - asked.at,
                adopted,
                0,
                asked.reason,
            )
            asked.answered.set()
            self.observer.switched(asked.switch)


def add_to(counts: dict[str, int], key: object, amount: int = 1) -> None:
    counts[str(key)] = counts.get(str(key), 0) + amount


def _kind(reason: str) -> str:
    """`too late: 7 steps behind ...` counts as `too late`."""
    return reason.split(":")[0]
