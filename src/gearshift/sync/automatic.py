"""auto: measures how long workers take, predicts the speed of sync and gba, and proposes a switch when it pays off.

Two rates are predicted from the last `window` batches of each worker. sync: one global batch per slowest batch of a
round, averaged over the window, so rare bursts count in proportion. gba: the sum of the workers' rates, without
batches that take so long that their gradients would be too late to count.

The decision is a rent-or-buy problem. Staying in sync loses `gain - 1` steps of gba per step. The run switches once it
has lost as much as `patience` steps at a gain of exactly `margin` would lose. A worker that is five times slower
therefore triggers a switch after a few (long) steps, whereas a small gain must persist for `patience` steps. The run
returns to sync when the gain has been below half of `margin` for `patience` steps; these are short, so waiting costs
nothing. Between the two thresholds nothing changes, which prevents flapping.

Every proposal carries its prediction; its effect is measured `window` steps later. This module is pure: it sees events
and actions, and time only in their `at`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from statistics import mean, median
from typing import Any

from gearshift.errors import UserError
from gearshift.settings.declaration import setting
from gearshift.settings.units import Count, Number
from gearshift.sync.events import (
    Action,
    Apply,
    Begin,
    Discard,
    Event,
    GradientArrived,
    Reissue,
    WorkerLost,
)

SYNC, FAST = "sync", "gba"


@dataclass(frozen=True, slots=True)
class Auto:
    """The settings of `strategy: auto`."""

    margin: Number = setting(0.2, "The smallest predicted gain that triggers a switch: 0.2 is 20 %.", above=0)
    patience: Count = setting(
        8, "Steps for which a gain of `margin` must persist; a larger gain needs fewer steps.", at_least=1
    )
    window: Count = setting(16, "Recent batches of each worker that the prediction uses.", at_least=2)
    max_lag: Number = setting(
        4.0, "max_lag of gba: gradients that are further behind do not count.", at_least=0
    )

    def __post_init__(self) -> None:
        if self.margin <= 0 or self.patience < 1 or self.window < 2:
            raise UserError(
                "auto: margin must be above 0, patience at least 1 step and window at least 2 batches"
            )


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted examples per second of both strategies, from the same batches."""

    sync: float
    gba: float
    slowest: int  # the worker that holds sync back most
    factor: float  # its time divided by the median worker's time

    @property
    def gain(self) -> float:
        return self.gba / self.sync


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposal to switch to `strategy`, with its reason."""

    strategy: str
    reason: str
    predicted: float  # speed-up factor
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the audit trail."""

    at: float  # the engine's seconds
    step: int  # the last step before the change
    before: str
    strategy: str
    reason: str
    predicted: float  # speed-up factor
    realised: float | None = None  # measured speed-up; None if the run ended or changed again too soon

    def outcome(self) -> str:
        return (
            f"the change to {self.strategy} at step {self.step:,} made it {self.realised:.2f}x as fast "
            f"(predicted {self.predicted:.2f}x)"
        )


class Automatic:
    def __init__(self, settings: Auto, global_batch: int) -> None:
        self.settings, self.global_batch = settings, global_batch
        self.changes: list[Change] = []  # all proposals
        self.outcomes: list[str] = []  # the effect of each, in words
        self._reported = 0
        self._begun: dict[int, tuple[int, int, float]] = {}  # worker, examples and time, by lease
        self._paces: dict[int, deque[float]] = {}  # seconds per example in the last batches, by worker
        self._applied: deque[float] = deque(maxlen=settings.window + 1)  # times at which steps were applied
        self._step = 0
        self._held = 0  # consecutive steps in favour of a change
        self._lost = 0.0  # loss by not changing, in units of the loss of a step at a gain of `margin`
        self._since = 0  # steps since the last change
        self._rate_before: float | None = None  # before a change whose gain is not known yet

    def observe(self, event: Event, actions: list[Action], current: str) -> Proposal | None:
        """Call this after every event. Returns a proposal if the run should change from `current`."""
        if self._applied and event.at < self._applied[-1]:  # a new epoch; its clock restarts
            self._applied.clear()
            self._begun.clear()
            self._rate_before = None
        if isinstance(event, WorkerLost):
            self._paces.pop(event.worker, None)
        elif isinstance(event, GradientArrived) and event.lease in self._begun:
            worker, examples, since = self._begun.pop(event.lease)
            pace = self._paces.setdefault(worker, deque(maxlen=self.settings.window))
            pace.append((event.seconds or event.at - since) / examples)
        stepped = False
        for action in actions:
            if isinstance(action, Begin):
                self._begun[action.lease.number] = action.worker, action.lease.count, event.at
            elif isinstance(action, Discard | Reissue):
                self._begun.pop(action.lease, None)
            else:
                assert isinstance(action, Apply), "sync and gba have no replicas"
                self._step, stepped = action.step, True
                self._applied.append(event.at)
        return self._decide(current) if stepped else None

    def new_outcomes(self) -> list[str]:
        """The measured outcomes of changes since the last call."""
        new, self._reported = self.outcomes[self._reported :], len(self.outcomes)
        return new

    def predict(self) -> Prediction | None:
        """None until enough batches of every worker are known."""
        paces = self._paces
        if len(paces) < 2 or min(map(len, paces.values())) < 2:
            return None
        rounds = min(map(len, paces.values()))
        slowest_of_round = mean(max(pace[-1 - i] for pace in paces.values()) for i in range(rounds))
        usual = {worker: mean(pace) for worker, pace in paces.items()}
        slowest = max(usual, key=lambda worker: usual[worker])
        typical = median(usual.values())
        return Prediction(
            len(paces) / slowest_of_round, self._counted(usual), slowest, usual[slowest] / typical
        )

    def _counted(self, usual: dict[int, float]) -> float:
        """Examples per second under gba that are not too late, that is at most max_lag steps behind."""
        paces, rate = self._paces, sum(1 / pace for pace in usual.values())
        longest = (1 + self.settings.max_lag) * len(paces) / rate  # seconds per example of a lease in a round
        return sum(mean(one <= longest for one in paces[w]) / pace for w, pace in usual.items())

    def _decide(self, current: str) -> Proposal | None:
        self._since += 1
        self._judge()
        prediction = self.predict()
        if prediction is None or current not in (SYNC, FAST):
            return None
        gain, margin = prediction.gain, self.settings.margin
        wanted = FAST if gain > 1 + margin else SYNC if gain < 1 + margin / 2 else current
        if wanted == current:
            self._held, self._lost = 0, 0.0
            return None
        self._held += 1
        self._lost += (gain - 1) / margin if wanted == FAST else 1.0
        if self._lost < self.settings.patience:
            return None
        return self._propose(current, wanted, prediction)

    def _propose(self, current: str, wanted: str, prediction: Prediction) -> Proposal:
        to, now = (prediction.gba, prediction.sync) if wanted == FAST else (prediction.sync, prediction.gba)
        why = (
            f"worker {prediction.slowest} needs {prediction.factor:.1f}x the median time"
            if wanted == FAST
            else "workers are about equally fast again"
        )
        steps = "step" if self._held == 1 else "steps"
        reason = f"{why}; predicted {now:,.0f} -> {to:,.0f} ex/s, for {self._held} {steps}"
        settings = {"max_lag": self.settings.max_lag} if wanted == FAST else {}
        self.changes.append(Change(self._applied[-1], self._step, current, wanted, reason, to / now))
        self._rate_before = self._rate(self._held)
        self._held, self._lost, self._since = 0, 0.0, 0
        return Proposal(wanted, reason, to / now, settings)

    def _rate(self, steps: int) -> float | None:
        """Examples per second over the last `steps` steps; None if unknown."""
        steps = min(steps, len(self._applied) - 1)
        seconds = self._applied[-1] - self._applied[-1 - steps]
        return steps * self.global_batch / seconds if seconds > 0 else None

    def _judge(self) -> None:
        """Measure the effect of the last change, once enough steps have followed."""
        before = self._rate_before
        if before is None or self._since < self.settings.window:
            return
        self._rate_before = None
        if now := self._rate(self._since - 1):
            self.changes[-1] = replace(self.changes[-1], realised=now / before)
            self.outcomes.append(self.changes[-1].outcome())
