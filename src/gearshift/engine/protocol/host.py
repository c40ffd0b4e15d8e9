"""What the coordinator's role needs from its process: storage that outlives processes, and the accounts."""

from __future__ import annotations

from typing import Any, Protocol

from gearshift.engine.epoch import Host
from gearshift.parameters.replicas.figures import Counts


class SnapshotStore(Protocol):
    """Durable storage, which outlives every process."""

    def new_incarnation(self) -> int:
        """A number higher than any before."""

    def newest(self) -> tuple[str, dict[str, Any]]:
        """The name and the facts of the newest complete snapshot; there is always one."""

    def commit(self, incarnation: int, name: str, facts: dict[str, Any]) -> None:
        """Every shard has written its part. Does nothing if a later incarnation has begun."""

    def failed(self, name: str, error: str) -> None:
        """A shard could not write its part of this snapshot."""


class Accounts(Host[Any], Protocol):
    """A host whose accounts can be reset to those of a snapshot."""

    def facts(self) -> Any: ...
    def restore(self, facts: Any) -> None: ...
    def passed(self, first_lease: int) -> bool:
        """A pass over the data has ended. True: another one follows, whose leases start at this number."""

    def rate_after(self, examples: int) -> float:
        """Like `rate`, for a step that a worker makes on its replica."""

    def counted(self, worker: int, boot: int, counts: Counts) -> None:
        """The counts of this worker's exchanges since it started."""

    def shown(self) -> None:
        """The shards have the result of the replicas, and no worker makes a step: it can be evaluated or saved."""


class StateLost(Exception):
    """A shard restarted while the host was querying it: the state is gone."""
