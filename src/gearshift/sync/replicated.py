"""easgd, bmuf, model_averaging, k_step_adam: each trainer steps a dense replica of its own, and replicas meet.

A worker begins at once and each gradient is a step of its own, which the worker has made on its replica before it
reports: rows in the shared store, dense weights in its own. What differs is how replicas meet, and that is five values
(`exchange.py`). Trainers that exchange with a centre, or in the background, wait for nobody. Where all meet in the
training loop (the mean of all, every k steps or T seconds), a worker that has made its steps is held until all have;
then `merge_due` says so, and nobody begins before it is done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gearshift.errors import UserError
from gearshift.sync.exchange import Choices, EverySeconds, EverySteps, Merge, Trigger, exchange_of, trigger_of
from gearshift.sync.settings import at_least, one_of, within
from gearshift.sync.strategy import Start, Step, Strategy, earliest, first_parked, whole
from gearshift.sync.work import Flight, Work


class Replicated(ABC):
    """What the four have in common: the questions of a strategy, answered from the choices."""

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
            behind = min(work.parked_at)
            if behind >= trigger.boundary(work.merges):
                return None  # it has made its steps; the others have not
            return Start(next(iter(work.parked_at[behind])), work.step)
        return None if _time_is_up(trigger, work) else Start(first_parked(work), work.step)

    def form(self, work: Work) -> Step | None:
        return whole(work, earliest(work, 1)) if work.waiting else None

    def refuse(self, work: Work, flight: Flight) -> str | None:
        return None

    def merge_due(self, work: Work) -> bool:
        """Whether all have made their steps and nobody computes: replicas meet now."""
        choices = self.choices
        if not choices.in_rounds or not work.workers or work.flying:
            return False
        trigger = choices.trigger
        if isinstance(trigger, EverySteps):
            return work.pace.slowest >= trigger.boundary(work.merges)
        return _time_is_up(trigger, work)

    def _check(self) -> None:
        at_least(
            1, global_batch=self.global_batch, batch=self.batch, workers_per_replica=self.workers_per_replica
        )
        object.__setattr__(self, "exchange", exchange_of(self.exchange))


def choices_of(strategy: Strategy) -> Choices | None:
    """None of a gradient strategy: its workers have no replicas."""
    return strategy.choices if isinstance(strategy, Replicated) else None


def _time_is_up(trigger: Trigger, work: Work) -> bool:
    assert isinstance(trigger, EverySeconds), "who meets in the background meets no one in the training loop"
    return work.at - work.merged_at >= trigger.seconds


@dataclass(frozen=True, slots=True)
class Easgd(Replicated):
    """Elastic averaging (Zhang, Choromanska and LeCun 2015; in the shadow: ShadowSync, Meta 2020)."""

    global_batch: int
    batch: int
    exchange: Any = "background"
    elasticity: float = 0.5
    merge: Literal["elastic", "delta"] = "elastic"
    order: Literal["sequential", "simultaneous"] = "sequential"
    pause: float = 0.0
    workers_per_replica: int = 1
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
    """What those have in common that meet in a mean of all."""

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
                "merge is 'overwrite' with exchange: background: what is trained during an exchange would be lost; "
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
    """The mean of all replicas; every k steps with `overwrite` it is local SGD."""

    global_batch: int
    batch: int
    exchange: Any = "background"
    merge: Merge | None = None  # None: elastic in the background, else overwrite
    elasticity: float = 0.5
    pause: float = 0.0
    workers_per_replica: int = 1
    name: ClassVar[str] = "model_averaging"

    def __post_init__(self) -> None:
        self._check()

    @property
    def choices(self) -> Choices:
        return self._choices()


@dataclass(frozen=True, slots=True)
class Bmuf(Averaged):
    """Blockwise model-update filtering (Chen and Huo 2016): momentum on what the mean has moved.

    Every k steps with `overwrite`, nesterov, momentum .9 and outer_rate .7 it is DiLoCo; without nesterov, SlowMo.
    """

    global_batch: int
    batch: int
    exchange: Any = "background"
    momentum: float = 0.5
    outer_rate: float = 1.0
    nesterov: bool = False
    merge: Merge | None = None  # None: elastic in the background, else overwrite
    elasticity: float = 0.5
    pause: float = 0.0
    workers_per_replica: int = 1
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
    """Local Adam, merged every k steps (Baidu 2022): dense only, rows go to the servers on every batch."""

    global_batch: int
    batch: int
    exchange: Any = 10
    mode: Literal["frozen_v", "params", "params_m_v"] = "frozen_v"
    warmup_steps: int | None = None  # None: max(20, k) steps, each of them merged
    workers_per_replica: int = 1
    name: ClassVar[str] = "k_step_adam"

    def __post_init__(self) -> None:
        self._check()
        one_of(("frozen_v", "params", "params_m_v"), mode=self.mode)
        if not isinstance(self.exchange, dict) or not isinstance(self.exchange["every"], int):
            raise UserError(
                "k_step_adam merges every k batches: exchange is {every: 10}, not a time or background"
            )
        if self.warmup_steps is not None:
            at_least(0, warmup_steps=self.warmup_steps)
        if self.workers_per_replica > 1 and self.mode == "frozen_v":
            raise UserError(
                "workers_per_replica above 1 needs k_step_adam's mode: params; frozen_v makes half steps"
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
