"""auto: watches how long workers take, predicts what sync and gba would do, and proposes to change when it pays.

From each worker's last batches (`window` of them) two rates are predicted. sync: a global batch per slowest batch of
a round, averaged over the window, so that rare bursts count as often as they come. gba: the sum of the workers' own
rates, without those whose gradients would come too late to count. The run moves to gba when it is predicted to be
`margin` faster, back to sync when it no longer is by half of that, and only after the prediction has held for
`patience` steps in a row: so it does not flutter. Every proposal carries its numbers; what came of it is looked up
`patience` steps later. Pure: it sees events and actions, and time only in their `at`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import mean, median

from gearshift.errors import UserError
from gearshift.sync.messages import Action, Apply, Begin, Event, GradientArrived, WorkerLost

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


class Automatic:
    def __init__(self, settings: Auto, global_batch: int) -> None:
        self.settings, self.global_batch = settings, global_batch
        self.outcomes: list[str] = []  # what came of each change, in words
        self._told = 0
        self._begun: dict[int, tuple[int, int, float]] = {}  # worker, examples, when; by lease
        self._paces: dict[int, deque[float]] = {}  # seconds per example of the last batches, by worker
        self._steps: deque[float] = deque(maxlen=settings.patience + 1)  # when steps were applied
        self._held = 0  # steps in a row that spoke for a change
        self._since = 0  # steps since the last change
        self._judged: tuple[Proposal, float] | None = (
            None  # a change whose gain is not known yet, and the rate before
        )

    def observe(self, event: Event, actions: list[Action], current: str) -> Proposal | None:
        """After every event; a proposal if it is time to change from `current`."""
        if self._steps and event.at < self._steps[-1]:  # another epoch, whose clock begins anew
            self._steps.clear()
            self._begun.clear()
            self._judged = None
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
            elif isinstance(action, Apply):
                self._steps.append(event.at)
                stepped = True
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
        share = self.global_batch / len(paces)  # examples of one worker's lease in a round
        slowest_of_round = mean(max(pace[-1 - i] for pace in paces.values()) for i in range(rounds))
        usual = {worker: mean(pace) for worker, pace in paces.items()}
        rate = sum(1 / pace for pace in usual.values())
        counted = sum(1 / pace for pace in usual.values() if not self._too_late(pace, share, rate))
        slowest = max(usual, key=lambda worker: usual[worker])
        typical = median(usual.values())
        return Prediction(
            len(paces) / slowest_of_round, counted, slowest, usual[slowest] / typical if typical else 1.0
        )

    def _too_late(self, pace: float, share: float, rate: float) -> bool:
        """Whether a batch takes so many steps that its gradient would be past max_lag."""
        steps_meanwhile = pace * share * rate / self.global_batch
        return steps_meanwhile - 1 > self.settings.max_lag

    def _decide(self, current: str) -> Proposal | None:
        self._since += 1
        self._judge(current)
        prediction = self.predict()
        if prediction is None or current not in (SYNC, FAST):
            return None
        margin = self.settings.margin
        wanted = (
            FAST if prediction.gain > 1 + margin else SYNC if prediction.gain < 1 + margin / 2 else current
        )
        self._held = self._held + 1 if wanted != current else 0
        if self._held < self.settings.patience:
            return None
        return self._propose(wanted, prediction)

    def _propose(self, wanted: str, prediction: Prediction) -> Proposal:
        to, now = (prediction.gba, prediction.sync) if wanted == FAST else (prediction.sync, prediction.gba)
        why = (
            f"worker {prediction.slowest} needs {prediction.factor:.1f}x the median time"
            if wanted == FAST
            else "workers are about equally fast again"
        )
        reason = f"{why}; predicted {now:,.0f} -> {to:,.0f} ex/s, for {self._held} steps"
        proposal = Proposal(wanted, reason, to / now)
        self._judged = (proposal, self._rate()) if self._rate() else None
        self._held = self._since = 0
        return proposal

    def _rate(self) -> float:
        """Examples per second of the last steps."""
        if len(self._steps) < 2 or self._steps[-1] <= self._steps[0]:
            return 0.0
        return (len(self._steps) - 1) * self.global_batch / (self._steps[-1] - self._steps[0])

    def _judge(self, current: str) -> None:
        """What a change brought, once only steps after it are in view."""
        if self._judged is None or self._since <= self.settings.patience:
            return
        proposal, before = self._judged
        self._judged = None
        now = self._rate()
        self.outcomes.append(
            f"the change to {proposal.strategy} brought {before:,.0f} -> {now:,.0f} ex/s, "
            f"{now / before:.2f}x (predicted {proposal.predicted:.2f}x)"
        )
