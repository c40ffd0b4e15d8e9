"""A lease under way."""

from __future__ import annotations

from dataclasses import dataclass

from gearshift.sync.events import Lease


@dataclass(frozen=True, slots=True)
class Flight:
    """A lease that a worker is computing."""

    lease: Lease
    worker: int
    token: int
    version: int
    began: float = 0.0  # in seconds
