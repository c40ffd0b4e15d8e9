"""The replicas of an epoch's workers in this process, while a replica strategy decides (docs/adr/0014).

They are forked when such a strategy takes over and folded when it ends. This file connects the engine and the training;
the arithmetic of replicas is in `gearshift.parameters.replicas`, and their threads in `live_replicas.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from gearshift.engine.live_replicas import LiveReplicas
from gearshift.parameters.local_shards import LocalShards
from gearshift.parameters.push import LocalPush, Push
from gearshift.parameters.replicas.group import Replicas
from gearshift.sync.events import Action, Begin, Event, Reissue, WorkerJoined, WorkerLost, WorkRequested
from gearshift.sync.exchange import Choices
from gearshift.sync.replicated import choices_of
from gearshift.sync.strategy import Strategy
from gearshift.sync.work import Work

if TYPE_CHECKING:
    from gearshift.training.training import Training


class EpochReplicas:
    def __init__(
        self, training: Training, shards: LocalShards, work: Work, notify: Callable[[str], None]
    ) -> None:
        self.training, self._shards, self._work, self._notify = training, shards, work, notify
        self.live: LiveReplicas | None = None
        if choices := choices_of(training.strategy):
            self._fork(choices).common.take_velocity(training.replicas.velocity)

    # ---- from workers' threads ----

    def flat(self, worker: int) -> tuple[Tensor] | tuple[()]:
        """The weights of the worker's replica, if it has one."""
        flat = None if self.live is None else self.live.flat(worker)
        return () if flat is None else (flat,)

    def step(self, begin: Begin, push: Push) -> LocalPush:
        """Steps the worker's replica, if it has one; else returns the gradient for the servers."""
        if self.live is None:
            return push
        scale = self.training.rates.after(begin.lease.count)
        return self.live.step(begin.worker, begin.lease.number, push, lr_scale=scale)

    # ---- from the thread that decides ----

    def observe(self, event: Event, actions: list[Action]) -> None:
        live = self.live
        if live is None:
            return
        live.ended(action.lease for action in actions if isinstance(action, Reissue))
        match event:
            case WorkerJoined(worker):
                live.join(worker)
            case WorkerLost(worker):
                live.leave(worker)
            case WorkRequested(worker) if not actions and self._work.exhausted and not self._work.supply:
                live.replicas.idle(worker)

    def ended(self, leases: Iterable[int]) -> None:
        if self.live is not None:
            self.live.ended(leases)

    def meet(self) -> None:
        assert self.live is not None
        self.live.meet()

    def settle(self) -> bool:
        """Stops all steps. Once they are accounted for, copies the result of the replicas to the server."""
        if self.live is None:
            return True
        if not self.live.hold():
            return False
        self.live.show()
        self.training.replicas.settled(self.live.replicas.common.velocity())
        return True

    def continue_steps(self) -> None:
        """Lets settled workers step again."""
        if self.live is not None and self.live.settled:
            self.live.release()

    def release(self) -> None:
        """Lets all workers step again, settled or not: the run ends."""
        if self.live is not None:
            self.live.release()

    def switch(self, old: Strategy, new: Strategy, change_over: Callable[[], None]) -> None:
        """Calls `change_over` to switch, and forks or folds replicas before and after it as needed."""
        before, after = choices_of(old), choices_of(new)
        if before and (after is None or after.workers_per_replica != before.workers_per_replica):
            self.fold()  # gradients in flight are pushed to the servers like any other
            self.training.replicas.begin_without_velocity()
        elif after and self.live is not None and after != before:
            self.live.rechoose(after)
        change_over()
        if after and self.live is None:
            self._fork(after)  # waiting gradients were applied; those in flight are stepped on replicas

    def fold(self) -> None:
        if self.live is not None:
            self.live.fold()
            self.training.replicas.settled(self.live.replicas.common.velocity())
        self.live, self._shards.moved = None, None

    def _fork(self, choices: Choices) -> Replicas:
        learner = self.training.learner
        replicas = Replicas(learner.server, choices, self.training.replicas.counts)
        for worker in self._work.pace.counts:
            replicas.join(worker)
        self.live = LiveReplicas(replicas, learner.layout.dense, self._notify)
        self._shards.moved = replicas.shift
        return replicas
