"""Counts of exchanges per replica. There are no tensors here, so a timing-only simulator counts in the same way.

Sync gap = batches / exchanges of a replica, averaged over replicas; exchanges of a finished replica with no new updates
do not count. Share in flight = share of batches whose step fell between the copy and the merge of an exchange.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(slots=True)
class Counts:
    """The counts of one replica."""

    batches: int = 0
    in_flight: int = 0  # batches stepped during an exchange
    exchanges: int = 0
    bytes: float = 0.0  # sent and received

    def stepped(self, in_flight: bool) -> None:
        self.batches += 1
        self.in_flight += in_flight

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Counts)))

    def exchanged(self, moved: float, *, counts: bool = True) -> None:
        self.exchanges += counts
        self.bytes += moved


def both_ways(dense_bytes: float) -> float:
    """The bytes that an exchange with a centre moves over a trainer's link."""
    return 2 * dense_bytes


def by_all_reduce(dense_bytes: float, members: int) -> float:
    """The bytes for a mean of all replicas, in a ring."""
    return 2 * dense_bytes * (members - 1) / members


def summary(counts: Iterable[Counts], elp: int) -> dict[str, Any] | None:
    """Metrics for reports; `elp` is the number of examples computed at the same time (example-level parallelism)."""
    every = [one for one in counts if one.batches]
    if not every:
        return None
    gaps = [one.batches / one.exchanges for one in every if one.exchanges]
    batches = sum(one.batches for one in every)
    return {
        "mean": sum(gaps) / len(gaps) if gaps else None,
        "max": max(gaps, default=None),
        "exchanges": sum(one.exchanges for one in every),
        "in_flight": sum(one.in_flight for one in every) / batches,
        "bytes": sum(one.bytes for one in every),
        "elp": elp,
    }


def as_json(counts: dict[int, Counts]) -> dict[str, dict[str, float]]:
    return {str(number): asdict(one) for number, one in counts.items()}


def from_json(encoded: dict[str, dict[str, Any]]) -> dict[int, Counts]:
    return {int(number): Counts(**one) for number, one in encoded.items()}
