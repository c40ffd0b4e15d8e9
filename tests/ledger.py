"""What became of every example, from a run's event log alone: also of a run that had to go back to a checkpoint.

A head begins an incarnation, a pass or a resumed run at a step. Whatever the log says of later steps of that pass did
not survive; what it says of earlier ones did, and together with what follows must end each example exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gearshift.run.event_log import Decision, Head, files, read
from gearshift.sync.events import Apply, Begin, Discard, Duplicate, Lease, Reissue, Supplied


@dataclass(frozen=True)
class End:
    """Of a lease, in the pass and after the step that was decided last."""

    epoch: int
    step: int
    lease: Lease
    applied: bool


@dataclass
class Ledger:
    ends: list[End] = field(default_factory=list)  # of the history that survived
    heads: int = 0
    step: int = 0
    again: int = 0  # steps that were made and did not survive
    duplicated: int = 0  # examples that were computed a second time for nothing
    _epoch: int = 0
    _open: dict[int, Lease] = field(default_factory=dict)
    _doubtful: list[End] = field(default_factory=list)  # discarded right after the step that a head names
    _supplied: list[tuple[int, int]] = field(default_factory=list)  # since the head

    @classmethod
    def of(cls, run: Path) -> Ledger:
        ledger = cls()
        for _, said in read(files(run)):
            match said:
                case Head():
                    ledger._begin(said)
                case Decision(event, actions):
                    if isinstance(event, Supplied):
                        ledger._supplied.append((event.first, event.first + event.count))
                    for action in actions:
                        ledger._take(action)
        ledger._settle()
        return ledger

    def examples(self, *, applied: bool) -> int:
        return sum(end.lease.count for end in self.ends if end.applied is applied)

    def leases(self, *, applied: bool) -> int:
        return sum(end.applied is applied for end in self.ends)

    def times_ended(self, epoch: int, examples: int) -> np.ndarray:
        """How often each example of a pass was applied or discarded."""
        times_E = np.zeros(examples, np.int64)
        for end in self.ends:
            if end.epoch == epoch:
                times_E[end.lease.first : end.lease.first + end.lease.count] += 1
        return times_E

    def assert_exact(self, examples: int, epochs: int = 1) -> None:
        """Each example of each pass has ended once, and none was applied twice."""
        for epoch in range(epochs):
            times_E = self.times_ended(epoch, examples)
            odd = np.flatnonzero(times_E != 1)
            assert not len(odd), (
                f"pass {epoch}: example {odd[0]} and {len(odd) - 1} more ended {times_E[odd[0]]} times"
            )

    def _begin(self, head: Head) -> None:
        self._settle()
        self.again += max(0, self.step - head.step)
        before = [end for end in self.ends if (end.epoch, end.step) <= (head.epoch, head.step)]
        self._doubtful = [
            end for end in before if not end.applied and (end.epoch, end.step) == (head.epoch, head.step)
        ]
        self.ends = [end for end in before if end not in self._doubtful]
        self.heads, self.step, self._epoch = self.heads + 1, head.step, head.epoch
        self._open, self._supplied = {}, []

    def _settle(self) -> None:
        """A discard right after the step of a checkpoint is part of it unless its examples were given out again."""
        for end in self._doubtful:
            first, stop = end.lease.first, end.lease.first + end.lease.count
            if not any(first < b and a < stop for a, b in self._supplied):
                self.ends.append(end)
        self._doubtful = []

    def _take(self, action: Begin | Apply | Discard | Duplicate | Reissue) -> None:
        match action:
            case Begin(lease=lease):
                self._open[lease.number] = lease
            case Apply(step, parts):
                assert step == self.step + 1, f"step {step} follows step {self.step}"
                self.step = step
                for part in parts:
                    self.ends.append(End(self._epoch, step, self._open.pop(part.lease), part.weight > 0))
            case Discard(number):
                self.ends.append(End(self._epoch, self.step, self._open.pop(number), False))
            case Duplicate(number):
                self.duplicated += self._open.pop(number).count
            case Reissue(number):
                del self._open[number]
