"""What passes between the world and a strategy: events in, actions out, both plain values.

An event says what happened, with `at`, the engine's seconds; an action says what is to be done, and actions are
carried out in the order given. A gradient is named by its lease: the servers keep it, nothing here sees it.
Fields hold only what JSON can hold, so that a log of events can be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Lease:
    """A range of examples that one worker works on. It ends exactly once: applied, discarded or reissued."""

    number: int  # never used twice
    first: int
    count: int
    attempt: int = 0  # how often the range was given out before


# ---- events ----


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    worker: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkRequested:
    """The worker has nothing to do. A worker whose request gets no `Begin` is parked until it does."""

    worker: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class GradientArrived:
    """The gradient of this lease is with the servers, all of it."""

    worker: int
    lease: int
    at: float = 0.0
    seconds: float = 0.0  # that the worker took, by its own clock; 0 if it did not say
    version: int = 0  # the oldest step that its pull may have seen, if newer than the one it had to see


@dataclass(frozen=True, slots=True)
class GradientRefused:
    """The gradient of this lease cannot be used (it is not finite, say)."""

    worker: int
    lease: int
    reason: str
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """It died, left or was given up; whatever it had begun is given to others."""

    worker: int
    reason: str
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Supplied:
    """The examples [first, first + count) may be leased, `batch` at a time; no lease crosses the end of a range.

    A switch to another batch holds for what is still to be cut. A range of one lease is never cut again.
    """

    first: int
    count: int
    batch: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class DataExhausted:
    """Nothing will be supplied after this."""

    at: float = 0.0


@dataclass(frozen=True, slots=True)
class SwitchRequested:
    """From here on another strategy decides, over the same work in flight. Its settings name both batch sizes."""

    strategy: str
    settings: dict[str, Any]
    reason: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class ExchangeDone:
    """All replicas that are there have met, as `Exchange` asked; workers may go on."""

    number: int
    at: float = 0.0


Event = (
    WorkerJoined
    | WorkRequested
    | GradientArrived
    | GradientRefused
    | WorkerLost
    | Supplied
    | DataExhausted
    | SwitchRequested
    | ExchangeDone
)


# ---- actions ----


@dataclass(frozen=True, slots=True)
class Begin:
    """`worker` computes the gradient of `lease`, on parameters at least as new as step `version`."""

    worker: int
    lease: Lease
    token: int  # the step this work was scheduled for
    version: int


@dataclass(frozen=True, slots=True)
class Part:
    """One gradient's share in a step; weight 0 has a reason and counts as discarded."""

    lease: int
    weight: float = 1.0
    reason: str = ""
    staleness: int = 0  # steps applied between its pull and this step
    lag: int = 0  # steps behind its schedule


@dataclass(frozen=True, slots=True)
class Apply:
    """Step number `step`: sum of weight times gradient, over the examples of all parts, or of the kept ones."""

    step: int
    parts: tuple[Part, ...]
    over_kept: bool = False


@dataclass(frozen=True, slots=True)
class Discard:
    """The gradient of `lease` forms no step, and its examples count as discarded (unless they ended before)."""

    lease: int
    reason: str
    ended_before: bool = False  # the lease had ended already: the gradient is dropped and nothing is counted


@dataclass(frozen=True, slots=True)
class Reissue:
    """`lease` ended without a gradient; its examples wait for another worker."""

    lease: int
    reason: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """All replicas meet now, in the training loop; nobody begins until `ExchangeDone` comes."""

    number: int  # since the last switch, from 1


Action = Begin | Apply | Discard | Reissue | Exchange
