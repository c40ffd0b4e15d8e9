"""What every engine's host does between two steps: measure time, evaluate, switch and resize on request."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gearshift.sync.strategy import Strategy
from gearshift.training.ended import BatchMeasures, Ended
from gearshift.training.engine import Observer
from gearshift.training.requests import ResizeRequest, SwitchRequest

if TYPE_CHECKING:
    from gearshift.training.training import Training

NOT_FINITE = "not finite"  # why a gradient is refused


class EpochHost(ABC):
    """What every engine's host does between two steps."""

    def __init__(self, training: Training, observer: Observer) -> None:
        self.training, self.observer = training, observer
        self.before = training.moment
        self.mark = time.perf_counter()
        self._evaluation_due = False

    # What the engine tells

    def rate(self, examples: int) -> float:
        return self.training.rate(examples)

    def stepped(self) -> bool:
        training, progress, every = self.training, self.training.progress, self.training.plan.eval_every
        self._tick()
        training.open_work = self._position  # for a checkpoint of this step, if one is taken
        if every and progress.examples < training.total and every.due(self.before, training.moment):
            self._evaluation_due = True
        self._evaluate_if_due()
        training.ask_planned_switch()
        if training.automatic is not None:
            for sentence in training.automatic.new_outcomes():
                self.observer.tell(sentence)
        go_on = self.observer.stepped(self.before) and not training.out_of_patience()
        if not go_on:
            training.note_position()  # for the last checkpoint, which is taken when the engine has ended
        training.open_work = None
        self.mark, self.before = time.perf_counter(), training.moment
        return go_on

    def _evaluate_if_due(self) -> None:
        if self._evaluation_due and self.training.settle():
            self._evaluation_due = False
            self.training.evaluate(self.observer)

    def _tick(self) -> None:
        now = time.perf_counter()
        self.training.progress.seconds += now - self.mark
        self.mark = now

    def _account(self, leases: Sequence[Ended[BatchMeasures]]) -> None:
        for ended in leases:
            if ended.part.reason.startswith(NOT_FINITE):
                self.observer.tell(self.training.bad_batch(ended))
        self.training.account(leases)
        if sentence := self.training.count_plain(leases):
            self.observer.tell(sentence)

    # What others ask

    def handle_requests(self) -> None:
        while not self.training.requests.empty():
            request = self.training.requests.get()
            request.carry_out(self)

    def resize(self, request: ResizeRequest) -> None:
        training = self.training
        strategy = request.strategy_after(training)
        before, training.workers = training.workers, request.workers
        self._resize(request.workers)
        said = "1 worker" if request.workers == 1 else f"{request.workers} workers"
        if strategy.batch != training.strategy.batch:
            self._switch(training.strategy_name, strategy, f"{said} instead of {before}")
            training.strategy = strategy
        self.observer.tell(
            f"{said} instead of {before}; the global batch stays {strategy.global_batch:,}, cut into {strategy.batch:,}"
        )
        request.answered.set()

    def switch(self, request: SwitchRequest) -> None:
        training = self.training
        if request.by == "auto" and training.automatic is not request.automatic:
            return  # somebody was faster, and knows better
        request.strategy = request.strategy_after(training)
        before, adopted = training.strategy.name, self._under_way()
        self._switch(request.name, request.strategy, request.reason)
        training.take(request)
        self.observer.switched(request.answer(before, training.step, adopted))

    # What engines differ in

    @abstractmethod
    def _position(self) -> tuple[int, list[list[int]]]:
        """The first example that nobody has begun, and the ranges before it that have not ended."""

    @abstractmethod
    def _under_way(self) -> int:
        """Leases in flight or waiting."""

    @abstractmethod
    def _switch(self, name: str, strategy: Strategy, reason: str) -> None: ...

    @abstractmethod
    def _resize(self, workers: int) -> None: ...
