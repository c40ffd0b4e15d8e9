"""The size limits of messages, and the error for invalid messages.

Limits follow from the run's config and are the same in every process. Sizes stated in a message are not trusted: the
bytes that arrived are compared with these limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

HEAD_BYTES = 512  # an upper bound for the numbers of any message


class WireError(ValueError):
    """Not a message, or not one that its sender may send. `reason` has no number in it, so that it can be counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Broken(WireError):
    """A message that is incomplete because its sender died or overwrote it; it is resent."""


@dataclass(frozen=True, slots=True)
class Statistic:
    """A running statistic of a model, as `Push.buffer_changes` has it."""

    name: str
    shape: tuple[int, ...] = ()
    counts: bool = False  # int64 instead of float32

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class StatePart:
    """A part of an optimizer's state: float32, or an int64 counter."""

    name: str
    each: bool = True  # one value per parameter, not one for all
    counts: bool = False  # int64


@dataclass(frozen=True, slots=True)
class Limits:
    widths: tuple[int, ...]  # row widths, by store
    dense: tuple[int, ...]  # number of dense parameters, by shard
    ids: int  # maximum number of ids of one store in one message
    batch: int  # maximum number of examples in one lease
    tasks: int = 1
    parts: int = 100_000  # maximum number of gradients in one step
    text: int = 1000  # maximum bytes of the names and reasons in one message
    statistics: tuple[Statistic, ...] = ()
    state: tuple[StatePart, ...] = ()  # of the dense optimizer
    spread: bool = False  # the sum of an all-reduce group includes the variance of its gradients

    def __post_init__(self) -> None:
        assert self.dense and all(width > 0 for width in self.widths) and self.tasks > 0

    @property
    def shards(self) -> int:
        return len(self.dense)

    @property
    def head_bytes(self) -> int:
        """The largest allowed size of a message header, in bytes."""
        return HEAD_BYTES + self.text + len(self.statistics) + len(self.state)

    @property
    def frame_bytes(self) -> int:
        """The largest allowed size of any frame, in bytes."""
        rows = self.ids * max((8, *(4 * width for width in self.widths)))
        report = self.batch * max(8, 4 * self.tasks)
        statistics = max((8 * one.size for one in self.statistics), default=0)
        return max(rows, report, 4 * max(self.dense), 8 * self.parts, self.head_bytes, statistics)
