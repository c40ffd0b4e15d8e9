"""An exponential moving average of the dense parameters: what evaluations, predictions and saved models use.

Training never reads it. It lives beside the parameters that it follows, on the server or on each shard, and moves when
they change: after a step, or under a replica strategy when the centre or the merged model changes. Running statistics
of the model are averaged with the weights: those of the newest weights would not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gearshift.parameters.average_rule import AverageRule
from gearshift.parameters.checkpoint import Arrays
from gearshift.parameters.dense import DenseParameters

AVERAGE = "average"  # the name of its file in a checkpoint
CLOCK = ".clock"  # beside names of tensors, of which none begins with a dot


@dataclass
class AverageClock:
    age: float = 0.0  # global batches that the average has followed
    waiting: float = 0.0  # those trained since it last moved

    def array(self) -> NDArray[np.float64]:
        return np.array([self.age, self.waiting])

    @classmethod
    def of(cls, array: NDArray[Any]) -> AverageClock:
        return cls(*map(float, array))


class DenseAverage:
    """The average of one flat buffer, and of the running statistics that belong to it. The caller holds its lock."""

    def __init__(
        self,
        rule: AverageRule,
        flat: Tensor,
        buffers: Mapping[str, Tensor],
        clock: AverageClock | None = None,
    ) -> None:
        """Takes these tensors as its own."""
        self.rule, self.flat, self.buffers = rule, flat, dict(buffers)
        self._clock = clock or AverageClock()
        self._parts: dict[int, tuple[slice, DenseAverage]] = {}  # of the shards of this process

    @classmethod
    def starting_at(cls, rule: AverageRule, flat: Tensor, buffers: Mapping[str, Tensor]) -> DenseAverage:
        return cls(rule, flat.clone(), {name: values.clone() for name, values in buffers.items()})

    @property
    def clock(self) -> AverageClock:
        """That of its shards, if it is divided: they make the steps."""
        return self._parts[0][1].clock if 0 in self._parts else self._clock

    @clock.setter
    def clock(self, clock: AverageClock) -> None:
        """Of one that is not divided."""
        self._clock = clock

    def part(self, shard: int, own: slice) -> DenseAverage:
        """The share of a shard, in the same memory; running statistics belong to the first."""
        buffers = self.buffers if shard == 0 else {}
        made = DenseAverage(self.rule, self.flat[own], buffers, replace(self.clock))
        self._parts[shard] = own, made
        return made

    def count(self, share: float) -> None:
        """This share of a global batch has been trained; `follow` comes when the parameters have changed."""
        self._clock.waiting += share

    def follow(self, flat: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Moves towards these values, by what has been trained since it last moved, if that is enough."""
        if self._parts:
            for own, part in self._parts.values():
                part.follow(flat[own], buffers)
        elif self.rule.is_due(self._clock.age, self._clock.waiting):
            self._move(flat, buffers)

    @torch.no_grad()
    def _move(self, flat: Tensor, buffers: Mapping[str, Tensor]) -> None:
        clock = self._clock
        weight = 1.0 - self.rule.kept(clock.age, clock.waiting)
        self._clock = AverageClock(clock.age + clock.waiting)
        self.flat.lerp_(flat, weight)
        for name, values in self.buffers.items():
            if values.is_floating_point():
                values.lerp_(buffers[name], weight)
            else:
                values.copy_(buffers[name])

    @torch.no_grad()
    def restart(self, flat: Tensor, buffers: Mapping[str, Tensor], clock: AverageClock) -> None:
        """Goes on from these values. At age 0 they do not stay in the average."""
        self._parts.clear()
        self._clock = clock
        self.flat.copy_(flat)
        for name, values in self.buffers.items():
            values.copy_(buffers[name])


class HasAverage(Protocol):
    """What has an average: a server."""

    flat: Tensor
    buffers: dict[str, Tensor]
    average: DenseAverage | None


def follow(held: HasAverage, flat: Tensor | None = None) -> None:
    """Lets the average of a server, if it has one, follow its dense values, or these. `dense_lock` is held."""
    if held.average is not None:
        held.average.follow(held.flat if flat is None else flat, held.buffers)


def shown(held: HasAverage) -> tuple[Tensor, dict[str, Tensor]]:
    """The dense values and running statistics that evaluations use: the average, or the newest without one."""
    source = held if held.average is None else held.average
    return source.flat, source.buffers


def arrays_of(average: DenseAverage, dense: DenseParameters) -> dict[str, NDArray[Any]]:
    """What a checkpoint keeps of it: the weights and running statistics by name, and its age."""
    tensors = dense.views(average.flat) | average.buffers
    copies = {name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    return {name: t.numpy() for name, t in copies.items()} | {CLOCK: average.clock.array()}


def load_arrays(average: DenseAverage, dense: DenseParameters, saved: Arrays) -> None:
    """Goes on from what `arrays_of` returned."""
    flat = torch.zeros_like(average.flat)
    for name, values in dense.views(flat).items():
        values.copy_(torch.from_numpy(saved[name]))
    buffers = {name: torch.from_numpy(saved[name]) for name in average.buffers}
    average.restart(flat, buffers, AverageClock.of(saved[CLOCK]))


def restore_average(held: HasAverage, dense: DenseParameters, saved: Arrays | None) -> None:
    """The average goes on from what a checkpoint has of it; without that it starts at the weights."""
    assert held.average is not None
    if saved is None:
        held.average.restart(held.flat, held.buffers, AverageClock())
    else:
        load_arrays(held.average, dense, saved)


def shown_arrays(newest: Arrays, average: Arrays) -> dict[str, NDArray[Any]]:
    """The weights of a checkpoint for evaluations, from its newest ones and the average of those that are trained."""
    return {**newest, **{name: values for name, values in average.items() if name != CLOCK}}
