"""The interface of a gradient strategy: three questions about the work in progress, answered without side effects.

`start`: which parked worker may begin now, and for which step is its work scheduled? `form`: do the waiting gradients
form the next step, and with which weights? `refuse`: is an arriving gradient too late for any step? A strategy is a
frozen dataclass of its settings. All state is in `Work`, which the next strategy takes over unchanged.
`global_batch` examples form a step, however they are divided, so a step can combine leases of several sizes, even
during a switch.

A strategy of this package may also declare, as class attributes (`registry.py` collects their names):

- `in_rounds = True`: every worker of a round has the same share, so the global batch must divide among them.
- `scheduled_ahead = True`: work may be scheduled for a later step than the next, so lag differs from staleness.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import Field, dataclass
from itertools import islice
from typing import Any, ClassVar, Protocol

from gearshift.sync.events import Part
from gearshift.sync.work import Flight, Work


@dataclass(frozen=True, slots=True)
class Start:
    worker: int
    token: int


@dataclass(frozen=True, slots=True)
class Step:
    parts: tuple[Part, ...]
    over_kept: bool = False


class Strategy(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    name: ClassVar[str]

    @property
    def global_batch(self) -> int: ...

    @property
    def batch(self) -> int: ...

    def start(self, work: Work) -> Start | None: ...

    def form(self, work: Work) -> Step | None: ...

    def refuse(self, work: Work, flight: Flight) -> str | None: ...


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


def whole(work: Work, flights: Iterable[Flight]) -> Step:
    """A step of these gradients at weight 1, in the order of their examples: the sum does not depend on arrival."""
    in_order = sorted(flights, key=lambda flight: flight.lease.first)
    return Step(tuple(part(work, flight) for flight in in_order))
