"""The messages between a machine's relay and the shards, and the heartbeats between it and its workers.

Requests of workers to the relay, and its answers, wrap the messages that would go to and come from a shard: see
`RelayRequest` and `RelayAnswer` in `messages.py`. How a relay works is in `relay.py` and docs/adr/0024.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gearshift.data.batch import Ids
from gearshift.embedding.store import Tables
from gearshift.engine.protocol.replica_messages import Occasion, OfferedValues, OfferKind
from gearshift.parameters.marked_types import OptimizerState, OptionalDense
from gearshift.parameters.push import Push

Member = tuple[int, int, int]  # a worker, its boot, and the number of its offer


@dataclass(frozen=True, slots=True)
class Attend:
    """To the relay, at every tick: this worker of the same machine is alive."""

    worker: int
    boot: int


@dataclass(frozen=True, slots=True)
class RelayHere:
    """The relay's answer. A worker that misses it talks to the shards itself."""

    relay: int


@dataclass(frozen=True, slots=True)
class MachinePull:
    """Of the workers of a machine, for one round of sync: ids that none of them has asked for before."""

    incarnation: int
    relay: int
    boot: int
    pull: int
    version: int
    ids: tuple[Ids, ...]
    tables: tuple[Tables, ...]  # of each id
    dense: bool = True


@dataclass(frozen=True, slots=True)
class MachineGive:
    """The sum of the gradients of these leases (lease, worker). They count together or not at all."""

    incarnation: int
    relay: int
    boot: int
    number: int
    leases: tuple[tuple[int, int], ...]
    push: Push


@dataclass(frozen=True, slots=True)
class MachineTaken:
    """`spoiled`: the shard has one of these gradients in another form, or its lease has ended."""

    incarnation: int
    shard: int
    boot: int
    number: int
    spoiled: bool = False


@dataclass(frozen=True, slots=True)
class MachineOffer:
    """The offers of these workers as one: the sum of their values."""

    incarnation: int
    relay: int
    boot: int
    number: int
    kind: OfferKind
    occasion: Occasion
    members: tuple[Member, ...]  # by worker
    values: OfferedValues | None  # None: none of them has a replica yet


@dataclass(frozen=True, slots=True)
class MachineTarget:
    """What they merge with. If `moved`, these offers have moved the centre, and `flat` is the centre before that."""

    incarnation: int
    shard: int
    boot: int
    number: int
    split: bool  # the shard cannot take these offers as one; no values
    moved: bool
    flat: OptionalDense
    state: OptimizerState = field(default_factory=dict)
