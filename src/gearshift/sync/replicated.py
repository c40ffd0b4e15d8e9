"""easgd, bmuf, model_averaging, k_step_adam: each trainer updates its own dense replica, and replicas synchronise.

A worker begins at once, and each gradient is a separate step, which the worker has already made when it reports: rows
in the shared store, dense weights in its replica. The strategies differ in how replicas synchronise, which five
values describe (`exchange.py`). Trainers that exchange with a centre, or in the background, never wait. If all
replicas synchronise in the training loop (the mean of all, every k steps or T seconds), a worker that has made its
steps is held until all have. `merge_due` is then true, and no worker begins before the exchange is done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gearshift.errors import UserError
from gearshift.settings.declaration import Meaning, setting
from gearshift.settings.units import Count, Number, Seconds
from gearshift.sync.checks import at_least, one_of, within
from gearshift.sync.exchange import (
    Choices,
    EverySeconds,
    EverySteps,
    Exchange,
    Merge,
    Trigger,
    exchange_of,
    trigger_of,
)
from gearshift.sync.flight import Flight
from gearshift.sync.strategy import Start, Step, Strategy, earliest, first_parked, whole
from gearshift.sync.work import Work

EXCHANGE = Meaning(
    "background, or in the training loop, after {every: 5} batches of each worker or {every: 2s}."
)
ELASTICITY = Meaning(
    "Share of the distance that an exchange moves a replica (and easgd's centre).", at_least=0, at_most=1
)
MERGE = Meaning("How the result enters a replica: pulled towards it, moved by the difference, or replaced.")
PAUSE = Meaning("Time between two exchanges in the background.")
WORKERS_PER_REPLICA = Meaning(
    "How many workers update the same dense replica, without locks (Hogwild).", at_least=1
)


class Replicated(ABC):
    """Base of the four strategies: answers the three questions from the choices."""

    __slots__ = ()
    name: ClassVar[str]
    global_batch: int
    batch: int
    exchange: Any
    workers_per_replica: int

    @property
    @abstractmethod
    def choices(self) -> Choices: ...

    def start(self, work: Work) -> Start | None:
        choices = self.choices
        if not choices.in_rounds:
            return Start(first_parked(work), work.step)
        trigger = choices.trigger
        if isinstance(trigger, EverySteps):
            behind = min(work.pace.parked_at)
            if behind >= trigger.boundary(work.merges.count):
                return None  # it has made its steps; the others have not
            return Start(next(iter(work.pace.parked_at[behind])), work.step)
        return None if _time_is_up(trigger, work) else Start(first_parked(work), work.step)

    def form(self, work: Work) -> Step | None:
        return whole(work, earliest(work, 1)) if work.waiting else None

    def refuse(self, work: Work, flight: Flight) -> str | None:
        return None

    def merge_due(self, work: Work) -> bool:
        """Whether all workers have made their steps and none computes, so replicas synchronise now."""
        choices = self.choices
        if not choices.in_rounds or not work.workers or work.flying:
            return False
        trigger = choices.trigger
        if isinstance(trigger, EverySteps):
            return work.pace.slowest >= trigger.boundary(work.merges.count)
        return _time_is_up(trigger, work)

    def _check(self) -> None:
        at_least(
            1, global_batch=self.global_batch, batch=self.batch, workers_per_replica=self.workers_per_replica
        )
        object.__setattr__(self, "exchange", exchange_of(self.exchange))


def choices_of(strategy: Strategy) -> Choices | None:
    """The replica settings of a strategy, or None for a gradient strategy, which has no replicas."""
    return strategy.choices if isinstance(strategy, Replicated) else None


def _time_is_up(trigger: Trigger, work: Work) -> bool:
    assert isinstance(trigger, EverySeconds), (
        "replicas exchanged in the background do not synchronise in the training loop"
    )
    return work.at - work.merges.at >= trigger.seconds


@dataclass(frozen=True, slots=True)
class Easgd(Replicated):
    """Elastic averaging (Zhang, Choromanska and LeCun 2015; in the background: ShadowSync, Meta 2020)."""

    global_batch: int
    batch: int
    exchange: Exchange = setting("background", EXCHANGE)
    elasticity: Number = setting(0.5, ELASTICITY)
    merge: Literal["elastic", "delta"] = setting("elastic", MERGE)
    order: Literal["sequential", "simultaneous"] = setting(
        "sequential",
        "Pull a replica towards the centre as it is after (or before) this exchange has moved it.",
    )
    pause: Seconds = setting(0.0, PAUSE)
    workers_per_replica: Count = setting(1, WORKERS_PER_REPLICA)
    name: ClassVar[str] = "easgd"

    def __post_init__(self) -> None:
        self._check()
        within(0, 1, elasticity=self.elasticity)
        within(0, 3600, pause=self.pause)
        one_of(("elastic", "delta"), merge=self.merge)
        one_of(("sequential", "simultaneous"), order=self.order)

    @property
    def choices(self) -> Choices:
        return Choices(
            "centre",
            trigger_of(self.exchange, pause=self.pause),
            self.merge,
            self.elasticity,
            simultaneous=self.order == "simultaneous",
            workers_per_replica=self.workers_per_replica,
            share=self.batch / self.global_batch,
        )


class Averaged(Replicated):
    """Base of the strategies that use the mean of all replicas."""

    __slots__ = ()
    merge: Merge | None
    elasticity: float
    pause: float

    def _check(self) -> None:
        super()._check()
        within(0, 1, elasticity=self.elasticity)
        within(0, 3600, pause=self.pause)
        if self.merge is not None:
            one_of(("elastic", "delta", "overwrite"), merge=self.merge)
        if self.merge == "overwrite" and self.exchange == "background":
            raise UserError(
                "merge is 'overwrite' with exchange: background, which would lose all training during an exchange; "
                "use elastic or delta"
            )

    def _choices(self, **of_the_global_step: Any) -> Choices:
        merge = self.merge or ("elastic" if self.exchange == "background" else "overwrite")
        return Choices(
            "mean",
            trigger_of(self.exchange, pause=self.pause),
            merge,
            self.elasticity if merge == "elastic" else 1.0,
            workers_per_replica=self.workers_per_replica,
            share=self.batch / self.global_batch,
            **of_the_global_step,
        )


@dataclass(frozen=True, slots=True)
class ModelAveraging(Averaged):
    """The mean of all replicas. Every k steps with `overwrite`, it is local SGD."""

    global_batch: int
    batch: int
    exchange: Exchange = setting("background", EXCHANGE)
    merge: Merge | None = setting(None, MERGE)  # None: elastic in the background, else overwrite
    elasticity: Number = setting(0.5, ELASTICITY)
    pause: Seconds = setting(0.0, PAUSE)
    workers_per_replica: Count = setting(1, WORKERS_PER_REPLICA)
    name: ClassVar[str] = "model_averaging"

    def __post_init__(self) -> None:
        self._check()

    @property
    def choices(self) -> Choices:
        return self._choices()


@dataclass(frozen=True, slots=True)
class Bmuf(Averaged):
    """Blockwise model-update filtering (Chen and Huo 2016): momentum on the movement of the mean.

    Every k steps with `overwrite`, nesterov, momentum .9 and outer_rate .7, it is DiLoCo; without nesterov, SlowMo.
    """

    global_batch: int
    batch: int
    exchange: Exchange = setting("background", EXCHANGE)
    momentum: Number = setting(0.5, "Share of the previous global step that is kept.", at_least=0, below=1)
    outer_rate: Number = setting(1.0, "Factor applied to the movement of the mean.", above=0)
    nesterov: bool = setting(False, "Use Nesterov momentum: replicas continue from the look-ahead point.")
    merge: Merge | None = setting(None, MERGE)  # None: elastic in the background, else overwrite
    elasticity: Number = setting(0.5, ELASTICITY)
    pause: Seconds = setting(0.0, PAUSE)
    workers_per_replica: Count = setting(1, WORKERS_PER_REPLICA)
    name: ClassVar[str] = "bmuf"

    def __post_init__(self) -> None:
        self._check()
        within(0, 0.999, momentum=self.momentum)
        within(0, 10, outer_rate=self.outer_rate)

    @property
    def choices(self) -> Choices:
        return self._choices(momentum=self.momentum, outer_rate=self.outer_rate, nesterov=self.nesterov)


@dataclass(frozen=True, slots=True)
class KStepAdam(Replicated):
    """Local Adam, merged every k steps (Baidu 2022). Only dense weights; rows go to the servers with every batch."""

    global_batch: int
    batch: int
    exchange: Exchange = setting(10, "How often replicas are merged: {every: 10} batches.")
    mode: Literal["frozen_v", "params", "params_m_v"] = setting(
        "frozen_v", "What a merge averages: weights and Adam's denominator, weights, or all."
    )
    warmup_steps: Count | None = setting(
        None, "Number of initial batches with a merge after each; max(20, k) if not set.", at_least=0
    )
    workers_per_replica: Count = setting(1, WORKERS_PER_REPLICA)
    name: ClassVar[str] = "k_step_adam"

    def __post_init__(self) -> None:
        self._check()
        one_of(("frozen_v", "params", "params_m_v"), mode=self.mode)
        if not isinstance(self.exchange, dict) or not isinstance(self.exchange["every"], int):
            raise UserError(
                "k_step_adam merges every k batches: exchange must be {every: 10}, not a time or background"
            )
        if self.warmup_steps is not None:
            at_least(0, warmup_steps=self.warmup_steps)
        if self.workers_per_replica > 1 and self.mode == "frozen_v":
            raise UserError(
                "workers_per_replica above 1 needs mode: params of k_step_adam, because frozen_v makes half steps"
            )

    @property
    def choices(self) -> Choices:
        k = self.exchange["every"]
        warmup = max(20, k) if self.warmup_steps is None else self.warmup_steps
        return Choices(
            "mean",
            EverySteps(k, warmup),
            "overwrite",
            snapshot=self.mode,
            workers_per_replica=self.workers_per_replica,
            share=self.batch / self.global_batch,
        )
