"""auto: watches how long workers take, predicts what sync and gba would do, and proposes to change when it pays.

From each worker's last batches (`window` of them) two rates are predicted. sync: a global batch per slowest batch of
a round, averaged over the window, so that rare bursts count as often as they come. gba: the sum of the workers' own
rates, without the batches that take so long that their gradients would come too late to count.

When to change is the question of whether to rent or to buy. Staying in sync loses `gain - 1` steps of gba per step;
the run moves once it has lost what `patience` steps at a gain of exactly `margin` lose. So a worker five times slower
is answered after a few steps, which are long ones, and a small gain must hold for `patience` of them. Back to sync
it goes when the gain has been below half of `margin` for `patience` steps, which are short: no speed is lost by
waiting there. Between the two thresholds it stays what it is, so it does not flutter.

Every proposal carries its numbers; what came of it is looked up `window` steps later. Pure: it sees events and
actions, and time only in their `at`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from statistics import mean, median
from typing import Any

from gearshift.errors import UserError
from gearshift.sync.messages import (
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

    margin: float = 0.2
    patience: int = 8
    window: int = 16
    max_lag: float = 4.0  # of gba: a worker further behind adds nothing

    def __post_init__(self) -> None:
        if self.margin <= 0 or self.patience < 1 or self.window < 2:
            raise UserError(
                "auto: margin is more than 0, patience at least 1 step, window at least 2 batches"
            )


@dataclass(frozen=True, slots=True)
class Prediction:
    """Examples per second of each, from the same batches."""

    sync: float
    gba: float
    slowest: int  # the worker that holds sync back most
    factor: float  # how many times the median worker's time it takes

    @property
    def gain(self) -> float:
        return self.gba / self.sync


@dataclass(frozen=True, slots=True)
class Proposal:
    """Change to `strategy`, because."""

    strategy: str
    reason: str
    predicted: float  # times as fast
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the audit trail."""

    at: float  # the engine's seconds
    step: int  # the last one before it
    before: str
    strategy: str
    reason: str
    predicted: float  # times as fast
    realised: float | None = None  # the same, measured; None if the end or another change came too soon

    def outcome(self) -> str:
        return (
            f"the change to {self.strategy} at step {self.step:,} made it {self.realised:.2f}x as fast "
            f"(predicted {self.predicted:.2f}x)"
        )


class Automatic:
    def __init__(self, settings: Auto, global_batch: int) -> None:
        self.settings, self.global_batch = settings, global_batch
        self.changes: list[Change] = []  # all that were proposed
        self.outcomes: list[str] = []  # what came of each, in words
        self._told = 0
        self._begun: dict[int, tuple[int, int, float]] = {}  # worker, examples, when; by lease
        self._paces: dict[int, deque[float]] = {}  # seconds per example of the last batches, by worker
        self._applied: deque[float] = deque(maxlen=settings.window + 1)  # when steps were applied
        self._step = 0
        self._held = 0  # steps in a row that spoke for a change
        self._lost = 0.0  # by not changing meanwhile, in units of what a step at a gain of `margin` loses
        self._since = 0  # steps since the last change
        self._rate_before: float | None = None  # of a change whose gain is not known yet

    def observe(self, event: Event, actions: list[Action], current: str) -> Proposal | None:
        """After every event; a proposal if it is time to change from `current`."""
        if self._applied and event.at < self._applied[-1]:  # another epoch, whose clock begins anew
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
                assert isinstance(action, Apply), "there are no replicas under sync and gba"
                self._step, stepped = action.step, True
                self._applied.append(event.at)
        return self._decide(current) if stepped else None

    def new_outcomes(self) -> list[str]:
        """Those since this was last asked."""
        new, self._told = self.outcomes[self._told :], len(self.outcomes)
        return new

    def predict(self) -> Prediction | None:
        """None while some worker is not known well enough."""
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
        """Examples per second under gba that are not too late: all but those more than max_lag steps behind."""
        paces, rate = self._paces, sum(1 / pace for pace in usual.values())
        longest = (
            (1 + self.settings.max_lag) * len(paces) / rate
        )  # seconds per example, of a lease in a round
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
        """Examples per second of the last so many steps; None if that is not known."""
        steps = min(steps, len(self._applied) - 1)
        seconds = self._applied[-1] - self._applied[-1 - steps]
        return steps * self.global_batch / seconds if seconds > 0 else None

    def _judge(self) -> None:
        """What the last change brought, once there are enough steps after it."""
        before = self._rate_before
        if before is None or self._since < self.settings.window:
            return
        self._rate_before = None
        if now := self._rate(self._since - 1):
            self.changes[-1] = replace(self.changes[-1], realised=now / before)
            self.outcomes.append(self.changes[-1].outcome())
