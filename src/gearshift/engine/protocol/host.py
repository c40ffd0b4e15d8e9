"""What the coordinator's role needs of whoever runs it: something that outlives processes, and the accounts."""

from __future__ import annotations

from typing import Any, Protocol

from gearshift.engine.epoch import Host
from gearshift.parameters.replicas.figures import Counts


class SnapshotStore(Protocol):
    """What outlives every process."""

    def new_incarnation(self) -> int:
        """Higher than any before."""

    def newest(self) -> tuple[str, dict[str, Any]]:
        """The name and the facts of the newest whole snapshot; there is always one."""

    def commit(self, incarnation: int, name: str, facts: dict[str, Any]) -> None:
        """Every shard has written its part of this one. Nothing, if a later incarnation has begun."""

    def failed(self, name: str, error: str) -> None:
        """A shard could not write its part of this one."""


class Accounts(Host[Any], Protocol):
    """A host whose accounts can be set back to a snapshot's."""

    def facts(self) -> Any: ...
    def restore(self, facts: Any) -> None: ...
    def passed(self, first_lease: int) -> bool:
        """The data are done with. True: once more from the beginning; leases go on with this number."""

    def rate_after(self, examples: int) -> float:
        """`rate`, for a step that a worker makes itself."""

    def counted(self, worker: int, boot: int, counts: Counts) -> None:
        """What the exchanges of this worker came to since it started."""

    def shown(self) -> None:
        """Replicas are where they can be evaluated, saved, or taken over by another strategy; nobody steps."""


class StateLost(Exception):
    """A shard that the host asked has begun anew: what it looked at is gone."""
