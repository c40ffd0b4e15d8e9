"""The messages used when workers keep replicas (docs/adr/0016); the rules are those of `messages.py`.

An offer goes to every shard, each with its part of the values. It has a number, so that a resent offer is not applied
twice. All members take part in a meeting at the same time; an exchange in the background has the meeting number 0.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import IntEnum

from gearshift.parameters.marked_types import OptimizerState, OptionalDense
from gearshift.parameters.replicas.figures import Counts
from gearshift.sync.exchange import Background, Choices, EverySeconds, EverySteps

TRIGGERS = {kind.__name__: kind for kind in (Background, EverySteps, EverySeconds)}


@dataclass(frozen=True, slots=True)
class ExchangePlan:
    """Whether workers have replicas, and how these are exchanged. The plan with the highest generation is valid."""

    generation: int = 0
    lineage: int = 0  # the generation in which replicas were last forked from the servers
    choices: str = ""  # `sync.exchange.Choices` as JSON; empty: gradients go to the servers


SERVERS_ONLY = ExchangePlan()
FIRST_GENERATION = 1  # generation of the strategy with which an incarnation begins


def choices_text(choices: Choices) -> str:
    """The values as they are sent."""
    values = asdict(choices) | {"trigger": [type(choices.trigger).__name__, asdict(choices.trigger)]}
    return json.dumps(values, separators=(",", ":"))


def choices_in(text: str) -> Choices:
    values = json.loads(text)
    kind, settings = values.pop("trigger")
    return Choices(trigger=TRIGGERS[kind](**settings), **values)


class OfferKind(IntEnum):
    """The kind of answer that an offer requests."""

    FORK = 0  # initial weights and optimizer state
    CENTRE = 1  # moves the centre; answered at once
    MEAN = 2  # the mean of all members' weights, followed by the global step
    MOMENTS = 3  # the mean of all members' moments
    SHOW = 4  # the servers take the mean of all members' optimizer states, and of their weights where they have none


@dataclass(frozen=True, slots=True)
class Occasion:
    """What an offer is made for."""

    generation: int  # generation of the plan
    meeting: int = 0  # 0: none, it is in the background or with the centre
    assembly: int = 0  # the member list that a shard must have received before this meeting


@dataclass(frozen=True, slots=True)
class OfferedValues:
    """A replica's part for one shard; `flat` and `state` are empty where the kind of offer needs none."""

    weight: float
    flat: OptionalDense
    state: OptimizerState = field(default_factory=dict)
    replicas: int = 1  # of how many this is the sum; `weight` is how many of them have something to give


@dataclass(frozen=True, slots=True)
class Offer:
    """To a shard, from a worker."""

    incarnation: int
    worker: int
    boot: int
    number: int
    kind: OfferKind
    occasion: Occasion
    values: OfferedValues | None  # None: the worker takes part, and has no replica yet


@dataclass(frozen=True, slots=True)
class Target:
    """The shard's answer: what the worker merges with, or nothing."""

    incarnation: int
    shard: int
    boot: int  # the worker's
    number: int
    flat: OptionalDense
    state: OptimizerState = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Meet:
    """To a worker: a meeting of all workers. For a show, the worker makes no step until it receives `Go`."""

    incarnation: int
    boot: int
    number: int
    assembly: int
    show: bool
    plan: ExchangePlan


@dataclass(frozen=True, slots=True)
class Met:
    """To the coordinator: the worker has met. `lease` is its last lease with a step made or a gradient sent."""

    incarnation: int
    worker: int
    boot: int
    number: int
    lease: int | None
    counts: Counts  # since the worker's start


@dataclass(frozen=True, slots=True)
class Go:
    """To a worker: the meeting has ended, and this plan applies from now on."""

    incarnation: int
    boot: int
    number: int
    plan: ExchangePlan
