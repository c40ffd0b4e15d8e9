"""The messages of worker, coordinator and shards.

A message of an earlier incarnation is ignored. A `boot` is the number under which a process started; a later start has
a higher one. Requests are numbered, and an answer has the number of its request.

A message is declared here, in replica_messages.py or in relay_messages.py, and nowhere else: its encoding is derived
from its fields, and its reader from the unions at the end (engine/wire/message_layout.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from gearshift.data.batch import Floats, Ids
from gearshift.embedding.store import Tables
from gearshift.engine.protocol.all_reduce import NO_GROUP, GroupRank
from gearshift.engine.protocol.relay_messages import (
    Attend,
    MachineGive,
    MachineOffer,
    MachinePull,
    MachineTaken,
    MachineTarget,
    RelayHere,
)
from gearshift.engine.protocol.replica_messages import (
    SERVERS_ONLY,
    ExchangePlan,
    Go,
    Meet,
    Met,
    Offer,
    Target,
)
from gearshift.parameters.marked_types import Statistics, WholeOptimizerState
from gearshift.parameters.push import ShardPush
from gearshift.parameters.shard import HeldDense, Order, StepOnSum
from gearshift.sync.events import STORED, Begin, Extrapolation
from gearshift.training.ended import BatchMeasures

# ---- to the coordinator ----


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker starts, and knows nothing of what it may have done before."""

    worker: int
    boot: int


@dataclass(frozen=True, slots=True)
class LeaseDone:
    """All shards have the gradient of this lease."""

    lease: int
    version: int = 0  # the oldest step among the shards it pulled from
    seconds: float = 0.0
    content: BatchMeasures | None = None
    group: int = 0  # the all-reduce group that has its dense gradient in a sum; 0: none


@dataclass(frozen=True, slots=True)
class LeaseRefused:
    """There is no usable gradient."""

    lease: int
    reason: str


@dataclass(frozen=True, slots=True)
class GroupBroken:
    """The all-reduce group has no sum; a lease that was computed for it does not count."""

    group: int
    reason: str


Outcome = LeaseDone | LeaseRefused | GroupBroken  # of a lease


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of the worker's lease (None: it has had none yet), and a request for more work."""

    incarnation: int
    worker: int
    boot: int
    request: int
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Alive:
    """A heartbeat: the worker is busy and healthy."""

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
    statistics: Statistics = field(default_factory=dict)


# ---- to a worker ----


@dataclass(frozen=True, slots=True)
class Welcome:
    incarnation: int
    boot: int


@dataclass(frozen=True, slots=True)
class ComingRange:
    """Examples that will soon be leased, probably to this worker."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Assignment:
    incarnation: int
    boot: int
    request: int
    begin: Begin
    epoch: int = 0  # the pass over the data that its examples belong to
    plan: ExchangePlan = SERVERS_ONLY
    rate: float = 1.0  # the factor of the learning rates in a step that the worker makes itself
    place: GroupRank = NO_GROUP  # in the all-reduce group that sums dense gradients
    ahead: ComingRange | None = None  # whose ids the worker tells the shards, if these have rows on disk


@dataclass(frozen=True, slots=True)
class Rejoin:
    """The coordinator does not know this worker (any more): it must join again with a higher boot."""

    boot: int


@dataclass(frozen=True, slots=True)
class Over:
    """Nothing is left to do."""

    boot: int


@dataclass(frozen=True, slots=True)
class DenseValues:
    """A shard's dense weights, and the state of the dense optimizer for a worker that keeps a copy."""

    flat: Tensor
    state: WholeOptimizerState = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rows:
    """One shard's answer to a pull."""

    incarnation: int
    shard: int
    boot: int
    pull: int
    step: int
    rows: tuple[Floats, ...]
    # The dense values at this step; or how a worker that holds the previous state makes the step; None: not requested.
    dense: DenseValues | StepOnSum | None
    statistics: Statistics = field(default_factory=dict)  # from the first shard


@dataclass(frozen=True, slots=True)
class Taken:
    """The shard has the gradient, or its lease had ended; either way it need not be resent."""

    incarnation: int
    shard: int
    lease: int
    spoiled: bool = False  # a machine's sum of gradients cannot count: the lease must be reissued


# ---- to a shard ----


@dataclass(frozen=True, slots=True)
class Load:
    """The shard forgets everything and loads its part of this snapshot; a new incarnation begins.

    Only for the shard with this boot: a restarted shard must not replace the old one unnoticed.
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
    """Asks for the outcome of a cut; there is no answer while it is still being written."""

    incarnation: int
    name: str


class WantedRows(NamedTuple):
    """The ids that a lease needs from one shard and their tables, by store."""

    ids: tuple[Ids, ...]
    tables: tuple[Tables, ...]


@dataclass(frozen=True, slots=True)
class Pull:
    """Answered once the shard has applied step `version`."""

    incarnation: int
    worker: int
    boot: int
    pull: int
    version: int
    ids: tuple[Ids, ...]
    tables: tuple[Tables, ...]  # of each id
    dense: bool = True  # whether dense values are wanted too
    held: HeldDense | None = (
        None  # the dense values that the worker already has; None: it has none, and needs no state
    )
    extrapolation: Extrapolation = STORED  # of dense values, from `version` on


@dataclass(frozen=True, slots=True)
class Peek:
    """The coordinator evaluates the model: it gets the current rows, and no row is created."""

    incarnation: int
    number: int
    ids: tuple[Ids, ...]


@dataclass(frozen=True, slots=True)
class Give:
    """This shard's part of a gradient."""

    incarnation: int
    worker: int
    lease: int
    push: ShardPush


@dataclass(frozen=True, slots=True)
class Prefetch:
    """These ids will be pulled soon: rows on disk may be read ahead. A lost one costs time and changes no result."""

    incarnation: int
    worker: int
    ids: tuple[Ids, ...]


# ---- by way of the relay of a machine ----


@dataclass(frozen=True, slots=True)
class RelayRequest:
    """To the relay: what the worker would send to this shard."""

    worker: int
    shard: int
    choices: str  # how replicas are exchanged, with an offer
    request: Pull | Give | Offer


@dataclass(frozen=True, slots=True)
class RelayAnswer:
    """To a worker: what the shard would answer."""

    relay: int
    shard: int
    answer: Rows | Taken | Target


@dataclass(frozen=True, slots=True)
class MachineRows:
    """To a relay, for `MachinePull`; `boot` and `pull` of the answer are the relay's."""

    shard: int
    answer: Rows


ToCoordinator = Hello | Report | Alive | ShardHello | Loaded | Done | Saved | Seen | Met
ToWorker = Welcome | Assignment | Rejoin | Over | Rows | Taken | Target | Meet | Go | RelayAnswer | RelayHere
ToShard = (
    Load | Tell | Pull | Give | IsSaved | Peek | Offer | Prefetch | MachinePull | MachineGive | MachineOffer
)
ToRelay = RelayRequest | Attend | MachineRows | MachineTaken | MachineTarget
Message = ToCoordinator | ToWorker | ToShard | ToRelay


class To(NamedTuple):
    """The recipient of a message."""

    role: str  # coordinator, worker, shard or relay
    number: int = 0


COORDINATOR = To("coordinator")
Out = list[tuple[To, Message]]
