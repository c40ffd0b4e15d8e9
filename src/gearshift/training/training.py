"""Training: runs a learner over the data according to a plan. An engine runs the workers, epoch by epoch.

This file composes the parts of training, each with one job; the loop that uses them is in `epoch_host.py`. All state
that a resumed run needs is in `Progress`, in the learners and in torch's random state; with one worker, or under sync,
a resumed run continues bit for bit. Nothing here writes a file or prints: events go to an `Observer`.
"""

from __future__ import annotations

from typing import TypeVar

from gearshift.cluster_model.injected_delay import Pacer
from gearshift.data.dataset import Dataset
from gearshift.errors import UserError
from gearshift.sync.strategy import Strategy
from gearshift.training.active_strategy import ActiveStrategy
from gearshift.training.baseline import Baseline
from gearshift.training.engine import Engine, Observer
from gearshift.training.learner import Learner
from gearshift.training.learning_rates import LearningRates
from gearshift.training.lease_accounts import LeaseAccounts
from gearshift.training.plan import Plan
from gearshift.training.progress import Progress
from gearshift.training.replica_state import ReplicaState
from gearshift.training.request_queue import RequestQueue
from gearshift.training.row_expiry import RowExpiry
from gearshift.training.timing import Moment
from gearshift.training.validation import Validation

AnyObserver = TypeVar("AnyObserver", bound=Observer)


class Training:
    """Trains `learner`, and optionally a baseline, on `train` according to `plan`."""

    def __init__(
        self,
        plan: Plan,
        learner: Learner,
        train: Dataset,
        valid: Dataset | None = None,
        *,
        baseline: Learner | None = None,
        pacer: Pacer | None = None,
        total: int | None = None,
        shared_memory: bool = True,
    ) -> None:
        """`pacer` slows the workers down on purpose; `total` is the number of examples in all epochs (None: estimated).

        `shared_memory`: all workers are threads of one process.
        """
        self.plan, self.learner, self.train, self.valid, self.pacer = plan, learner, train, valid, pacer
        self.total = plan.epochs * max(1, train.estimate()) if total is None else total
        self.progress = progress = Progress()
        self.active_strategy = ActiveStrategy(plan, learner.server, shared_memory=shared_memory)
        self.requests = RequestQueue(self.active_strategy, plan.strategy.switches, pacer)
        self.accounts = LeaseAccounts(plan, progress, train, learner.server.optimizer)
        self.validation = Validation(plan.evaluation, progress, valid)
        self.rates = LearningRates(plan.schedule, progress, self.total)
        self.replicas = ReplicaState(progress)
        self.baseline = Baseline(baseline, learner)
        self.expiry = RowExpiry(learner.schema, progress, self.baseline)
        for planned in plan.strategy.switches:
            if planned.at.day is not None and train.schema.time is None:
                raise UserError(
                    f"a switch at day {planned.at.day} needs data.time: the log has no days without it"
                )

    @property
    def step(self) -> int:
        return self.learner.server.step

    @property
    def strategy(self) -> Strategy:
        """The strategy in force now."""
        return self.active_strategy.strategy

    @property
    def workers(self) -> int:
        """The number of workers that the run should have now."""
        return self.active_strategy.workers

    @property
    def moment(self) -> Moment:
        return Moment(self.step, self.progress.seconds, self.progress.examples / self.total)

    @property
    def has_next_epoch(self) -> bool:
        return self.progress.epoch < self.plan.epochs and not self.validation.out_of_patience

    def run(self, engine: Engine[AnyObserver], observer: AnyObserver) -> None:
        """Trains from the current `progress` to the end, or until the observer asks to stop."""
        if not engine.run(self, observer):
            return
        for planned in self.plan.strategy.switches[self.progress.switched :]:
            observer.notify(
                f"the switch to {planned.strategy} at {planned.at} was not reached before the end"
            )
