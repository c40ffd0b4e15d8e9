"""What worker, coordinator and shards say to each other.

Everything said under an earlier incarnation is refused. A `boot` is the number under which a process started; a later
start has a higher one. What is asked is numbered, so that an answer is known by its question.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from gearshift.data.batch import Floats, Ids
from gearshift.engine.protocol.all_reduce import NO_GROUP, GroupRank
from gearshift.engine.protocol.replica_messages import (
    SERVERS_ONLY,
    ExchangePlan,
    Go,
    Meet,
    Met,
    Offer,
    Target,
)
from gearshift.parameters.push import Push
from gearshift.parameters.shard import HeldDense, Order, StepOnSum
from gearshift.sync.messages import Begin
from gearshift.training.ended import BatchMeasures

# ---- to the coordinator ----


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker starts, and knows nothing of what it may have done before."""

    worker: int
    boot: int


@dataclass(frozen=True, slots=True)
class Report:
    """All shards have the gradient of `lease` (None: there is none yet), and the worker asks for more."""

    incarnation: int
    worker: int
    boot: int
    request: int
    lease: int | None = None
    refused: str = ""  # why there is no gradient to give
    version: int = 0  # the oldest step among the shards it pulled from
    seconds: float = 0.0
    content: BatchMeasures | None = None
    ring: int = 0  # that has its dense gradient in the sum; without a lease: that broke


@dataclass(frozen=True, slots=True)
class Alive:
    """A worker is busy and well."""

    incarnation: int
    worker: int
    boot: int


@dataclass(frozen=True, slots=True)
class ShardHello:
    """A shard starts, and holds nothing."""

    shard: int
    boot: int


@dataclass(frozen=True, slots=True)
class Loaded:
    incarnation: int
    shard: int
    boot: int


@dataclass(frozen=True, slots=True)
class Done:
    """The shard has carried out every order up to this number."""

    incarnation: int
    shard: int
    boot: int
    number: int


@dataclass(frozen=True, slots=True)
class Saved:
    """The shard's part of this cut is on disk, or why it could not be written."""

    incarnation: int
    shard: int
    boot: int
    name: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """One shard's answer to a peek."""

    incarnation: int
    shard: int
    boot: int
    number: int
    rows: tuple[Floats, ...]
    dense: Tensor
    statistics: dict[str, Tensor] = field(default_factory=dict)


# ---- to a worker ----


@dataclass(frozen=True, slots=True)
class Welcome:
    incarnation: int
    boot: int


@dataclass(frozen=True, slots=True)
class Assignment:
    incarnation: int
    boot: int
    request: int
    begin: Begin
    epoch: int = 0  # which pass over the data its examples are of
    plan: ExchangePlan = SERVERS_ONLY
    rate: float = 1.0  # what learning rates are multiplied with in a step that the worker makes itself
    place: GroupRank = NO_GROUP  # in the ring that sums dense gradients


@dataclass(frozen=True, slots=True)
class Rejoin:
    """The coordinator does not know this worker, or not any more: it must start anew."""

    boot: int


@dataclass(frozen=True, slots=True)
class Over:
    """Nothing is left to do."""

    boot: int


@dataclass(frozen=True, slots=True)
class Rows:
    """One shard's answer to a pull."""

    incarnation: int
    shard: int
    boot: int
    pull: int
    step: int
    rows: tuple[Floats, ...]
    dense: Tensor
    statistics: dict[str, Tensor] = field(
        default_factory=dict
    )  # running ones of the model, from the first shard
    made: StepOnSum | None = None  # how who holds the dense state comes to this step; None: `dense` has it
    state: dict[str, Tensor] = field(default_factory=dict)  # of the dense optimizer, for who shall hold it


@dataclass(frozen=True, slots=True)
class Taken:
    """The shard has the gradient, or its lease had ended; either way it need not be sent again."""

    incarnation: int
    shard: int
    lease: int


# ---- to a shard ----


@dataclass(frozen=True, slots=True)
class Load:
    """Forget everything and take your part of this snapshot; a new incarnation begins.

    For the shard of this start alone: one that started anew must not take the place of what it was, unheard.
    """

    incarnation: int
    boot: int
    name: str


@dataclass(frozen=True, slots=True)
class Tell:
    incarnation: int
    order: Order


@dataclass(frozen=True, slots=True)
class IsSaved:
    """Asks again what became of a cut; no answer: it is still being written."""

    incarnation: int
    name: str


@dataclass(frozen=True, slots=True)
class Pull:
    """Answered once the shard has applied step `version`."""

    incarnation: int
    worker: int
    boot: int
    pull: int
    version: int
    ids: tuple[Ids, ...]
    dense: bool = True  # whether dense values are wanted too
    held: HeldDense | None = None  # what the worker has of them; None: nothing, and no state is wanted


@dataclass(frozen=True, slots=True)
class Peek:
    """The coordinator measures the model: rows as they are now, and nothing is born."""

    incarnation: int
    number: int
    ids: tuple[Ids, ...]


@dataclass(frozen=True, slots=True)
class Give:
    """This shard's part of a gradient."""

    incarnation: int
    worker: int
    lease: int
    push: Push


ToCoordinator = Hello | Report | Alive | ShardHello | Loaded | Done | Saved | Seen | Met
ToWorker = Welcome | Assignment | Rejoin | Over | Rows | Taken | Target | Meet | Go
ToShard = Load | Tell | IsSaved | Pull | Peek | Give | Offer
Message = ToCoordinator | ToWorker | ToShard


class To(NamedTuple):
    """Whom a message is for."""

    role: str  # coordinator, worker or shard
    number: int = 0


COORDINATOR = To("coordinator")
Out = list[tuple[To, Message]]
