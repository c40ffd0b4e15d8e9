"""The interface of a gradient strategy: three questions about the work in progress, answered without side effects.

`start`: which parked worker may begin now, and for which step is its work scheduled? `form`: do the waiting gradients
form the next step, and with which weights? `refuse`: is an arriving gradient too late for any step? A strategy is a
frozen dataclass of its settings. All state is in `Work`, which the next strategy takes over unchanged.
`global_batch` examples form a step, however they are divided, so a step can combine leases of several sizes, even
during a switch.

A strategy of this package may also declare, as class attributes (`registry.py` collects their names):

- `in_rounds = True`: every worker of a round has the same share, so the global batch must divide among them.
- `scheduled_ahead = True`: work may be scheduled for a later step than the next, so lag differs from staleness.
- `cuts = True`: `start` chooses the size of each lease, out of a global batch of examples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import Field, dataclass
from itertools import islice
from typing import Any, ClassVar, Protocol, runtime_checkable

from gearshift.sync.events import STORED, Extrapolation, Part
from gearshift.sync.flight import Flight
from gearshift.sync.work import Work


@dataclass(frozen=True, slots=True)
class Start:
    worker: int
    token: int
    size: int = 0  # the most examples; 0: the batch of the supply
    extrapolation: Extrapolation = STORED


@dataclass(frozen=True, slots=True)
class Copy:
    """`worker` computes an open lease of another worker too. The gradient that arrives first counts."""

    worker: int
    lease: int
    token: int


@dataclass(frozen=True, slots=True)
class Step:
    parts: tuple[Part, ...]
    over_kept: bool = False
    dense_rate: float = 1.0  # factor of the dense learning rate


class Strategy(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    name: ClassVar[str]

    @property
    def global_batch(self) -> int: ...

    @property
    def batch(self) -> int: ...  # examples of a lease, unless `Start` has another size

    def start(self, work: Work) -> Start | None: ...

    def form(self, work: Work) -> Step | None: ...

    def refuse(self, work: Work, flight: Flight) -> str | None: ...


def cuts(strategy: Strategy | type[Strategy] | None) -> bool:
    """Whether the strategy chooses the size of each lease: it gets a global batch of examples at a time."""
    return getattr(strategy, "cuts", False)


@runtime_checkable
class Copying(Protocol):
    """A strategy that lets workers compute open leases a second time, when no other work is left for them."""

    def copy(self, work: Work) -> Copy | None: ...

    def copies_at(self, work: Work) -> float | None:
        """When `copy` may have another answer although nothing happens until then; None: never."""


def first_parked(work: Work) -> int:
    return next(iter(work.parked))


def full(work: Work, examples: int) -> bool:
    """Whether enough examples wait for a step. At the end of the data, any number is enough."""
    return work.waiting_examples >= examples or (work.ending and bool(work.waiting))


def earliest(work: Work, examples: int) -> tuple[Flight, ...]:
    """The gradients that arrived first, until they have `examples` examples."""
    taken, total = 0, 0
    for flight in work.waiting.values():
        taken, total = taken + 1, total + flight.lease.count
        if total >= examples:
            break
    return tuple(islice(work.waiting.values(), taken))


def part(work: Work, flight: Flight, weight: float = 1.0, reason: str = "") -> Part:
    lag = work.step - flight.token
    return Part(flight.lease.number, weight, reason, work.step - flight.version, lag)


def usual_max_lag(work: Work, batch: int, step: int) -> int:
    """How many steps, of so many examples, a gradient may be late, unless the user says otherwise."""
    return max(4, math.ceil(2 * work.workers * batch / step))


def whole(work: Work, flights: Iterable[Flight]) -> Step:
    """A step of these gradients at weight 1, in the order of their examples: the sum does not depend on arrival."""
    return Step(tuple(part(work, flight) for flight in in_order(flights)))


def whole_without_stale(work: Work, flights: Iterable[Flight]) -> Step:
    """The same, but stragglers from before a switch are left out, and the step is the mean of the others.

    They are as stale as gba would not allow: steps are counted in the size that they had before the switch.
    """
    parts = []
    for flight in in_order(flights):
        stale, reason = work.step - flight.version, ""
        if work.adopted(flight) and work.adopted_step:
            limit = usual_max_lag(work, flight.lease.count, work.adopted_step)
            if stale > limit:
                reason = f"too late: begun before the switch, {stale} steps ago; up to {limit} are allowed"
        parts.append(part(work, flight, 0.0 if reason else 1.0, reason))
    return Step(tuple(parts), over_kept=any(one.reason for one in parts))


def in_order(flights: Iterable[Flight]) -> list[Flight]:
    """By their examples."""
    return sorted(flights, key=lambda flight: flight.lease.first)
