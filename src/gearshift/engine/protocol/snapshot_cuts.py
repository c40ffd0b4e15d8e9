"""The coordinator's part of a snapshot: it orders a cut, and commits it when every shard has written its part.

One cut is written at a time. If a shard could not write its part, the whole cut fails, and the previous snapshot
remains the newest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gearshift.engine.protocol.host import SnapshotStore
from gearshift.engine.protocol.messages import IsSaved, To
from gearshift.engine.protocol.orders import Orders
from gearshift.parameters.shard import TakeCut


@dataclass
class CutInProgress:
    name: str
    facts: dict[str, Any]  # the coordinator's state at the moment of the cut
    unsaved: set[int]  # shards whose parts are not on disk yet
    errors: list[str] = field(default_factory=list)


class SnapshotCuts:
    """The cuts of one incarnation."""

    def __init__(
        self,
        incarnation: int,
        shards: int,
        store: SnapshotStore,
        orders: Orders,
        send: Callable[[To, IsSaved], None],
    ) -> None:
        self._incarnation, self._shards = incarnation, shards
        self._store, self._orders, self._send = store, orders, send
        self.current: CutInProgress | None = None

    def take(self, step: int, facts: dict[str, Any]) -> None:
        """Takes a cut of the step that all shards have just applied. No other cut may be in progress."""
        assert self.current is None
        self.current = CutInProgress(f"step-{step}-{self._incarnation}", facts, set(range(self._shards)))
        self._orders.carry_out(TakeCut(self.current.name), 0)

    def part_saved(self, shard: int, name: str, error: str) -> None:
        cut = self.current
        if cut is None or cut.name != name:
            return
        cut.unsaved.discard(shard)
        if error:
            cut.errors.append(error)
        if not cut.unsaved:  # even if one of them failed: all others have finished writing
            self._finish(cut)
            self.current = None

    def resend(self) -> None:
        """Asks the shards that have not answered whether their parts are written."""
        if self.current is not None:
            for shard in sorted(self.current.unsaved):
                self._send(To("shard", shard), IsSaved(self._incarnation, self.current.name))

    def _finish(self, cut: CutInProgress) -> None:
        if cut.errors:
            self._store.failed(cut.name, cut.errors[0])  # the next one may succeed
        else:
            self._store.commit(self._incarnation, cut.name, cut.facts)
