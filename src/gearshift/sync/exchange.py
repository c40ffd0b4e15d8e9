"""The five choices of a replica strategy, as plain values: what is sent, with whom it is exchanged, how the result is
processed, how it enters the live weights, and when.

    snapshot     params, or params and Adam's moments (`frozen_v`, `params_m_v`)
    exchange     each trainer with a centre on the sync servers; or the mean of all trainers
    global step  on the result: none, or block momentum (momentum, outer_rate, nesterov)
    merge        elastic: w = (1-a) w + a c; delta: w += a (c - what was sent); overwrite: w = c
    trigger      in the background, continuously or with a pause; every k steps; every T seconds

`sync/replicated.py` defines the strategies that users know in terms of these values. `parameters/replicas` holds the
tensors and reads these values; there are no tensors here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, Literal

from gearshift.errors import UserError
from gearshift.settings.units import Unit, either, plain

Snapshot = Literal["params", "frozen_v", "params_m_v"]
Merge = Literal["elastic", "delta", "overwrite"]
_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0}


@dataclass(frozen=True, slots=True)
class Background:
    """The shadow: exchanges run in the background during training, with a pause in seconds between them."""

    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class EverySteps:
    """In the training loop, after every `steps` steps of each worker, and after each of the first `warmup` steps."""

    steps: int
    warmup: int = 0

    def boundary(self, merges: int) -> int:
        """The number of steps at which the next exchange is due, after this many exchanges."""
        if merges < self.warmup:
            return merges + 1
        return self.warmup + (merges - self.warmup + 1) * self.steps

    def ends_at(self, step: int) -> bool:
        """Whether an exchange follows this step (counted from 1)."""
        return 1 <= step <= self.warmup or (step > self.warmup and (step - self.warmup) % self.steps == 0)


@dataclass(frozen=True, slots=True)
class EverySeconds:
    """In the training loop, when this many seconds have passed since the last exchange."""

    seconds: float


Trigger = Background | EverySteps | EverySeconds


@dataclass(frozen=True, slots=True)
class Choices:
    exchange: Literal["centre", "mean"]
    trigger: Trigger
    merge: Merge
    elasticity: float = 1.0  # the factor a of the centre and of the merge
    simultaneous: bool = False  # the merge uses the centre before this exchange
    momentum: float = 0.0
    outer_rate: float = 1.0
    nesterov: bool = False
    snapshot: Snapshot = "params"
    workers_per_replica: int = 1
    share: float = 1.0  # share of the global batch in one push

    @property
    def in_rounds(self) -> bool:
        """Whether all replicas synchronise in the training loop: no worker continues before all have exchanged."""
        return self.exchange == "mean" and not isinstance(self.trigger, Background)

    @property
    def block_momentum(self) -> bool:
        """Whether a global step is applied to the mean."""
        return bool(self.momentum) or self.outer_rate != 1.0

    def replica_of(self, worker: int) -> int:
        return worker // self.workers_per_replica


def exchange_of(given: Any) -> str | dict[str, int | str]:
    """The user's setting in canonical form: background, {"every": 5} (steps) or {"every": "2s"}."""
    if given == "background":
        return "background"
    every = given.get("every") if isinstance(given, dict) and set(given) == {"every"} else given
    if isinstance(every, int) and not isinstance(every, bool) and every >= 1:
        return {"every": int(every)}
    if isinstance(every, str) and every.strip().isdecimal() and int(every) >= 1:
        return {"every": int(every)}
    if isinstance(every, str) and _seconds(every) is not None:
        return {"every": every.replace(" ", "")}
    raise UserError(f"exchange is {given!r}: it must be background, {{every: 5}} (batches) or {{every: 2s}}")


def trigger_of(exchange: str | dict[str, int | str], *, pause: float = 0.0, warmup: int = 0) -> Trigger:
    if isinstance(exchange, str):
        return Background(pause)
    every = exchange["every"]
    if isinstance(every, int):
        return EverySteps(every, warmup)
    seconds = _seconds(every)
    assert seconds is not None, "checked by exchange_of"
    return EverySeconds(seconds)


def _seconds(text: str) -> float | None:
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(ms|s|min)\s*", text)
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    return seconds if seconds > 0 and isfinite(seconds) else None


def _parse_exchange(value: Any) -> str | dict[str, int | str]:
    try:
        return exchange_of(plain(value))
    except UserError:
        raise ValueError("expected background, {every: 5} (batches) or {every: 2s}") from None


_EVERY: dict[str, Any] = {"type": ["integer", "string"]}
Exchange = Annotated[
    Any,  # the type in a constructed strategy: the result of exchange_of
    Unit(
        _parse_exchange,
        either(
            {"enum": ["background"]},
            _EVERY,
            {"type": "object", "properties": {"every": _EVERY}, "required": ["every"]},
        ),
    ),
]
