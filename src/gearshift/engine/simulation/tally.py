"""The totals of a simulated run, counted from its actions as they are carried out.

Counts examples, not batches, unless stated otherwise. Staleness and lag are those of all gradients that formed a
step, also at weight 0. A reason is counted by the words before the colon, because the rest contains numbers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from gearshift.sync.automatic import Change
from gearshift.sync.events import Action, Apply, Begin, Discard, Duplicate, Reissue


@dataclass(frozen=True, slots=True)
class Distribution:
    mean: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, counts: Counter[int]) -> Distribution:
        total = counts.total()
        if not total:
            return cls()
        seen, p99 = 0, 0
        for p99 in sorted(counts):
            seen += counts[p99]
            if seen >= 0.99 * total:
                break
        return cls(sum(value * n for value, n in counts.items()) / total, p99, max(counts))


@dataclass(frozen=True, slots=True)
class Outcome:
    strategy: str  # the last strategy
    workers: int
    seconds: float  # virtual time of the last step
    steps: int
    batches: int  # batches begun
    events: int
    applied: int
    discarded: int
    discarded_by_reason: dict[str, int]
    reissued: int  # lost together with their worker
    duplicated: int  # computed a second time for nothing
    applied_by_worker: tuple[int, ...]
    discarded_by_worker: tuple[int, ...]
    staleness: Distribution  # steps applied since its parameters were pulled
    lag: Distribution  # steps behind its schedule
    idle_seconds: float  # idle time of present workers
    possible: float  # examples per second, if nobody ever waited and nothing was discarded
    automatic: tuple[Change, ...] = ()  # what auto changed, when and why
    sync_gap: dict[str, Any] | None = None  # the totals of replica exchanges

    @property
    def examples(self) -> int:
        return self.applied + self.discarded

    @property
    def examples_per_second(self) -> float:
        return self.applied / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "examples": self.examples, "examples_per_second": self.examples_per_second}


class Tally:
    def __init__(self, workers: int) -> None:
        self.applied = self.discarded = self.reissued = self.duplicated = self.batches = self.steps = 0
        self.reasons: Counter[str] = Counter()
        self.staleness: Counter[int] = Counter()
        self.lag: Counter[int] = Counter()
        self.applied_by_worker = [0] * workers
        self.discarded_by_worker = [0] * workers
        self._open: dict[int, Begin] = {}  # by lease

    @property
    def ended(self) -> int:
        """Examples that were applied or discarded."""
        return self.applied + self.discarded

    def count(self, action: Action) -> None:
        if isinstance(action, Begin):
            self.batches += 1
            self._open[action.lease.number] = action
        elif isinstance(action, Apply):
            self._apply(action)
        elif isinstance(action, Reissue):
            self.reissued += self._open.pop(action.lease).lease.count
        elif isinstance(action, Duplicate):
            self.duplicated += self._open.pop(action.lease).lease.count
        elif (
            isinstance(action, Discard) and action.lease in self._open
        ):  # not the push of a lease that had ended
            self._discard(action.lease, action.reason)

    def _apply(self, step: Apply) -> None:
        self.steps += 1
        staleness, lag, by_worker, leases = self.staleness, self.lag, self.applied_by_worker, self._open
        for part in step.parts:
            staleness[part.staleness] += 1
            lag[part.lag] += 1
            if part.weight:
                begun = leases.pop(part.lease)
                self.applied += begun.lease.count
                by_worker[begun.worker] += begun.lease.count
            else:
                self._discard(part.lease, part.reason)

    def _discard(self, number: int, reason: str) -> None:
        begun = self._open.pop(number)
        self.discarded += begun.lease.count
        self.discarded_by_worker[begun.worker] += begun.lease.count
        self.reasons[reason.partition(":")[0]] += begun.lease.count

    def outcome(
        self,
        *,
        strategy: str,
        seconds: float,
        events: int,
        idle_seconds: float,
        possible: float,
        automatic: tuple[Change, ...] = (),
        sync_gap: dict[str, Any] | None = None,
    ) -> Outcome:
        return Outcome(
            strategy=strategy,
            workers=len(self.applied_by_worker),
            seconds=seconds,
            steps=self.steps,
            batches=self.batches,
            events=events,
            applied=self.applied,
            discarded=self.discarded,
            discarded_by_reason=dict(self.reasons),
            reissued=self.reissued,
            duplicated=self.duplicated,
            applied_by_worker=tuple(self.applied_by_worker),
            discarded_by_worker=tuple(self.discarded_by_worker),
            staleness=Distribution.of(self.staleness),
            lag=Distribution.of(self.lag),
            idle_seconds=idle_seconds,
            possible=possible,
            automatic=automatic,
            sync_gap=sync_gap,
        )
