"""What passes between an engine and a strategy: events in, actions out, all plain values.

An event describes what happened, with `at` in the engine's seconds. An action describes what to do; actions are
carried out in the given order. A gradient is identified by its lease: the servers keep it, and nothing here sees it.
All fields are JSON values, so a log of events can be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Lease:
    """A range of examples for one worker. It ends exactly once: applied, discarded, reissued or as a duplicate.

    Two leases may have the same range, if one is a copy of the other: then one of them ends as a duplicate.
    """

    number: int  # never reused
    first: int
    count: int
    attempt: int = 0  # how many times the range was issued before, copies included


# ---- events ----


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    worker: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkRequested:
    """The worker is idle. A worker that gets no `Begin` is parked until it does."""

    worker: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class GradientArrived:
    """The complete gradient of this lease is on the servers."""

    worker: int
    lease: int
    at: float = 0.0
    seconds: float = 0.0  # computing time by the worker's clock; 0 if unknown
    version: int = 0  # the oldest step that its pull may have seen, if newer than required


@dataclass(frozen=True, slots=True)
class GradientRefused:
    """The gradient of this lease cannot be used, for example because it is not finite."""

    worker: int
    lease: int
    reason: str
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The worker died, left or was declared lost. Its leases are reissued."""

    worker: int
    reason: str
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Supplied:
    """The examples [first, first + count) may be leased, `batch` at a time; no lease crosses the end of a range.

    A switch to another batch size applies to examples not yet leased. A range of one lease is never split again.
    """

    first: int
    count: int
    batch: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class DataExhausted:
    """No more examples will be supplied."""

    at: float = 0.0


@dataclass(frozen=True, slots=True)
class SwitchRequested:
    """From now on another strategy decides, with the same work in flight. Its settings contain both batch sizes."""

    strategy: str
    settings: dict[str, Any]
    reason: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class ExchangeDone:
    """All present replicas have carried out the `Exchange`; workers may continue."""

    number: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class TimePassed:
    """A worker that waits may get work now because others take longer than expected."""

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
    | TimePassed
)


# ---- actions ----


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """How a pull predicts the dense parameters that the step of its gradient will start from."""

    steps: int = 0  # from the version of the pull on; 0: the stored parameters
    waiting: float = 0.0  # the share of a global batch whose gradients wait for the first of these steps


STORED = Extrapolation()


@dataclass(frozen=True, slots=True)
class Begin:
    """`worker` computes the gradient of `lease`, on parameters at least as new as step `version`."""

    worker: int
    lease: Lease
    token: int  # the step that this work is scheduled for
    version: int
    extrapolation: Extrapolation = STORED


@dataclass(frozen=True, slots=True)
class Part:
    """The share of one gradient in a step. Weight 0 needs a reason and counts as discarded."""

    lease: int
    weight: float = 1.0
    reason: str = ""
    staleness: int = 0  # steps applied between its pull and this step
    lag: int = 0  # steps behind its schedule
    unchanged_rows: bool = (
        False  # at weight 0: it still counts for rows that nobody has changed since its pull
    )


@dataclass(frozen=True, slots=True)
class Apply:
    """Step number `step`: the weighted sum of gradients, divided by the examples of all parts or of the kept ones."""

    step: int
    parts: tuple[Part, ...]
    over_kept: bool = False
    dense_rate: float = 1.0  # factor of the dense learning rate, beside that of the schedule


def version_of(step: Apply, part: Part) -> int:
    """The step that the gradient's pull may not have seen the successor of."""
    return step.step - 1 - part.staleness


@dataclass(frozen=True, slots=True)
class Discard:
    """The gradient of `lease` is in no step, and its examples count as discarded, unless the lease had ended before."""

    lease: int
    reason: str
    ended_before: bool = False  # the lease had already ended: the gradient is dropped and not counted


@dataclass(frozen=True, slots=True)
class Reissue:
    """`lease` ended without a gradient. Its examples wait for another worker."""

    lease: int
    reason: str


@dataclass(frozen=True, slots=True)
class Duplicate:
    """`lease` ended without a gradient. Its examples are those of another lease, which goes on or has arrived."""

    lease: int
    reason: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """All replicas synchronise now, in the training loop. No worker starts another batch until `ExchangeDone`."""

    number: int  # since the last switch, from 1


Action = Begin | Apply | Discard | Reissue | Duplicate | Exchange
