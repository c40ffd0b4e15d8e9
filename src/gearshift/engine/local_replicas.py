"""The replicas of an epoch's workers in this process, while a replica strategy decides; the rule is docs/adr/0014.

Forked when such a strategy takes over, folded when it ends. Knows what the engine does and what the training asks;
what replicas do to each other is in `gearshift.parameters.replicas`, and their threads in `shadow_threads.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from gearshift.engine.shadow_threads import LiveReplicas
from gearshift.parameters.local_shards import LocalShards
from gearshift.parameters.push import Push
from gearshift.parameters.replicas.figures import as_json
from gearshift.parameters.replicas.group import Replicas
from gearshift.sync.exchange import Choices
from gearshift.sync.messages import Action, Begin, Event, Reissue, WorkerJoined, WorkerLost, WorkRequested
from gearshift.sync.replicated import choices_of
from gearshift.sync.strategy import Strategy
from gearshift.sync.work import Work

if TYPE_CHECKING:
    from gearshift.training.training import Training


class EpochReplicas:
    def __init__(
        self, training: Training, shards: LocalShards, work: Work, tell: Callable[[str], None]
    ) -> None:
        self.training, self._shards, self._work, self._tell = training, shards, work, tell
        self.live: LiveReplicas | None = None
        if choices := choices_of(training.strategy):
            self._fork(choices).take_velocity(training.block_velocity)

    # ---- from workers' threads ----

    def flat(self, worker: int) -> tuple[Tensor] | tuple[()]:
        """What the worker computes on, if it has a replica."""
        flat = None if self.live is None else self.live.flat(worker)
        return () if flat is None else (flat,)

    def step(self, begin: Begin, push: Push) -> Push:
        """Made on the worker's replica, if it has one; else the gradient as it is, for the servers."""
        if self.live is None:
            return push
        scale = self.training.rate_after(begin.lease.count)
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
                live.idle(worker)

    def ended(self, leases: Iterable[int]) -> None:
        if self.live is not None:
            self.live.ended(leases)

    def meet(self) -> None:
        assert self.live is not None
        self.live.meet()

    def settle(self) -> bool:
        """Holds the workers, and once all they did is accounted for, has what their replicas agree on in its place."""
        if self.live is None:
            return True
        if not self.live.hold():
            return False
        self.live.show()
        self.training.block_velocity = self.live.replicas.velocity()
        self.training.progress.exchanges = as_json(self.training.replica_counts)
        return True

    def go_on(self) -> None:
        """Workers that were held and are settled step again."""
        if self.live is not None and self.live.settled:
            self.live.release()

    def release(self) -> None:
        """Whatever is settled: the run ends."""
        if self.live is not None:
            self.live.release()

    def switch(self, old: Strategy, new: Strategy, change_over: Callable[[], None]) -> None:
        """Around the moment at which the other strategy takes over."""
        before, after = choices_of(old), choices_of(new)
        if before and (after is None or after.workers_per_replica != before.workers_per_replica):
            self.fold()  # what is in flight is pushed to the servers as any gradient
            self.training.block_velocity = None
        elif after and self.live is not None and after != before:
            self.live.rechoose(after)
        change_over()
        if after and self.live is None:
            self._fork(after)  # what waited is in; what is in flight is stepped on replicas

    def fold(self) -> None:
        if self.live is not None:
            self.live.fold()
            self.training.block_velocity = self.live.replicas.velocity()
            self.training.progress.exchanges = as_json(self.training.replica_counts)
        self.live, self._shards.moved = None, None

    def _fork(self, choices: Choices) -> Replicas:
        learner = self.training.learner
        replicas = Replicas(learner.server, choices, self.training.replica_counts)
        for worker in self._work.pace.counts:
            replicas.join(worker)
        self.live = LiveReplicas(replicas, learner.layout.dense, self._tell)
        self._shards.moved = self.live.shift
        return replicas
