"""The training loop that all engines share: between steps it measures time, evaluates, switches and resizes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gearshift.embedding.horizons import Horizons
from gearshift.sync.events import Action, Event
from gearshift.sync.strategy import Strategy
from gearshift.training.ended import BatchMeasures, Ended
from gearshift.training.engine import Observer
from gearshift.training.requests import ResizeRequest, SwitchRequest
from gearshift.training.timing import Moment

if TYPE_CHECKING:
    from gearshift.training.training import Training


class TrainingClock:
    """Counts the seconds of training, without evaluations and checkpoints, in `progress`."""

    def __init__(self, training: Training) -> None:
        self._training, self._mark = training, time.perf_counter()

    def count(self) -> None:
        """The time since the last call was training."""
        now = time.perf_counter()
        self._training.progress.seconds += now - self._mark
        self._mark = now

    def restart(self) -> None:
        """The time since the last call was something else."""
        self._mark = time.perf_counter()


class Evaluations:
    """Evaluates between two steps, as often as the plan says."""

    def __init__(self, training: Training, observer: Observer, refresh: Callable[[], None]) -> None:
        self._training, self._observer, self._refresh = training, observer, refresh
        self._due = False

    def note_step(self, before: Moment) -> None:
        training, every = self._training, self._training.plan.evaluation.every
        if every and training.progress.examples < training.total and every.due(before, training.moment):
            self._due = True

    def carry_out_if_due(self, ready: Callable[[], bool]) -> None:
        """If the learner is not ready yet, the evaluation is still due after the next step."""
        if self._due and ready():
            self._due = False
            self.carry_out()

    def carry_out(self) -> None:
        training = self._training
        if training.validation.is_due(training.step):
            self._refresh()
            training.validation.evaluate(training.learner, self._observer)


class EpochHost(ABC):
    """The host of one training's epochs. Engines override what they do differently."""

    def __init__(self, training: Training, observer: Observer) -> None:
        self.training, self.observer = training, observer
        self.before = training.moment
        self.clock = TrainingClock(training)
        self.evaluations = Evaluations(training, observer, self._refresh)

    # Called by the engine

    def rate(self, examples: int) -> float:
        return self.training.rates.of_step(examples)

    def horizons(self, step: int) -> Horizons | None:
        for sentence in self.training.expiry.remarks():
            self.observer.notify(sentence)
        return self.training.expiry.at_step(step)

    def observe(self, event: Event, actions: list[Action]) -> None:
        self.observer.happened(event, actions)
        self.training.requests.observe(event, actions)

    def duplicated(self, examples: int) -> None:
        self.training.progress.duplicated += examples

    def stepped(self) -> bool:
        training, progress = self.training, self.training.progress
        self.clock.count()
        self.evaluations.note_step(self.before)
        self.evaluations.carry_out_if_due(self._ready_to_save)
        training.requests.request_planned_switch(progress, training.total)
        if (automatic := training.active_strategy.automatic) is not None:
            for sentence in automatic.new_outcomes():
                self.observer.notify(sentence)
        wanted = self.observer.stepped(self.before, self._ready_to_save)
        proceed = wanted and not training.validation.out_of_patience
        if not proceed:
            self.note_position()  # for the last checkpoint, which is taken when the engine has ended
        self.clock.restart()
        self.before = training.moment
        return proceed

    def end_epoch(self) -> bool:
        """Called when all data has been processed. Returns whether another epoch follows."""
        self.training.progress.begin_next_epoch()
        self.training.replicas.begin_without_velocity()
        self.evaluations.carry_out()
        return self.training.has_next_epoch

    def _account(self, leases: Sequence[Ended[BatchMeasures]]) -> None:
        self.training.expiry.note(leases)
        for sentence in self.training.accounts.count(leases, self.training.step):
            self.observer.notify(sentence)

    def _ready_to_save(self) -> bool:
        """Whether the learner holds the state to save. If so, `progress` has been updated with the open leases."""
        if not self._settle():
            return False
        self.note_position()
        return True

    def note_position(self) -> None:
        """Updates `progress` with the open leases. This takes time, and only a checkpoint needs it."""
        self.training.progress.position, self.training.progress.open = self._position()

    # Requests from other threads

    def handle_requests(self) -> None:
        pending = self.training.requests.pending
        while not pending.empty():
            pending.get().carry_out(self)

    def resize(self, request: ResizeRequest) -> None:
        active = self.training.active_strategy
        strategy = request.strategy_after(active)
        before, active.workers = active.workers, request.workers
        self._resize(request.workers)
        workers = "1 worker" if request.workers == 1 else f"{request.workers} workers"
        if strategy.batch != active.strategy.batch:
            self._switch(active.name, strategy, f"{workers} instead of {before}")
            active.strategy = strategy
        self.observer.notify(
            f"{workers} instead of {before}; the global batch stays {strategy.global_batch:,}, cut into "
            f"{strategy.batch:,}"
        )
        request.answered.set()

    def switch(self, request: SwitchRequest) -> None:
        training, active = self.training, self.training.active_strategy
        if request.by == "auto" and active.automatic is not request.automatic:
            return  # a user's or planned switch has ended `auto` in the meantime
        request.strategy = request.strategy_after(active)
        before = active.strategy.name
        adopted = self._switch(request.name, request.strategy, request.reason)
        active.take(request)
        training.progress.switched += request.by == "plan"
        self.observer.switched(request.answer(before, training.step, adopted))

    # Implemented by each engine

    @abstractmethod
    def _position(self) -> tuple[int, list[list[int]]]:
        """The first example that is not leased yet, and the ranges before it whose leases are still open."""

    @abstractmethod
    def _settle(self) -> bool:
        """Copies the result of the replicas to the learner. False: not possible yet, try after the next step."""

    @abstractmethod
    def _refresh(self) -> None:
        """Copies the parameters of this step to the learner; called before an evaluation."""

    @abstractmethod
    def _switch(self, name: str, strategy: Strategy, reason: str) -> int:
        """Switches and returns how many leases, in flight or waiting, the new strategy takes over."""

    @abstractmethod
    def _resize(self, workers: int) -> None: ...
