"""A relay's pulls from one shard: in a round of sync every row crosses the link once for all workers of the machine.

All leases of a round read the parameters of the same step. The relay asks the shard only for ids that no worker has
asked for in this round, keeps the answers until the next round, and answers each worker as soon as all of its rows are
there. Dense values are asked for once. No worker waits for another: the first pull of a row fetches it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gearshift.data.batch import Floats, Ids
from gearshift.embedding.store import Tables
from gearshift.engine.protocol.messages import DenseValues, Out, Pull, RelayAnswer, Rows, To, WantedRows
from gearshift.engine.protocol.relay_messages import MachinePull
from gearshift.engine.protocol.resend import ResendBackoff
from gearshift.parameters.marked_types import Statistics


class KnownRows:
    """Rows of one store in this round, sorted by id."""

    def __init__(self) -> None:
        self.asked_U: Ids = np.empty(0, np.int64)  # sorted
        self._ids_U: Ids = np.empty(0, np.int64)
        self._rows_UW: Floats | None = None

    def ask(self, ids_U: Ids, tables_U: Tables) -> tuple[Ids, Tables]:
        """Those of these ids that nobody has asked for, and their tables."""
        is_new_U = ~np.isin(ids_U, self.asked_U, assume_unique=True)
        new_U = ids_U[is_new_U]
        if len(new_U):
            self.asked_U = np.union1d(self.asked_U, new_U)
        return new_U, tables_U[is_new_U]

    def learn(self, ids_U: Ids, rows_UW: Floats) -> None:
        known = rows_UW if self._rows_UW is None else np.concatenate([self._rows_UW, rows_UW])
        ids = np.concatenate([self._ids_U, ids_U])
        order = np.argsort(ids, kind="stable")
        self._ids_U, self._rows_UW = ids[order], known[order]

    def rows(self, ids_U: Ids) -> Floats | None:
        """None if some of them are not there yet."""
        if self._rows_UW is None:
            return None
        at = np.searchsorted(self._ids_U, ids_U)
        if len(ids_U) and at.max() == len(self._ids_U):
            return None
        if not np.array_equal(self._ids_U[at], ids_U):
            return None
        return self._rows_UW[at]


@dataclass
class PullInFlight:
    message: MachinePull
    backoff: ResendBackoff = field(default_factory=ResendBackoff)


class RelayPulls:
    def __init__(self, relay: int, boot: int, shard: int) -> None:
        self._relay, self._boot, self._shard = relay, boot, shard
        self.out: Out = []
        self._number = 0  # of the last pull
        self.asked_ids = self.sent_ids = 0  # by workers; to the shard
        self._version = -1  # of this round
        self._forget()

    def _forget(self) -> None:
        self._waiting: dict[int, Pull] = {}  # by worker
        self._in_flight: dict[int, PullInFlight] = {}  # by number
        self._known: Sequence[KnownRows] = ()  # by store
        self._dense: DenseValues | None = None
        self._statistics: Statistics = {}
        self._dense_asked = False
        self._step: int | None = None  # the oldest that rows of this round came from

    def ask(self, pull: Pull) -> None:
        if pull.version > self._version:
            self._version = pull.version
            self._forget()
            self._known = [KnownRows() for _ in pull.ids]
        if pull.version < self._version:
            return  # of an earlier round
        known = self._waiting.get(pull.worker)
        if known is None or (pull.boot, pull.pull) > (known.boot, known.pull):
            self.asked_ids += sum(map(len, pull.ids))
        self._waiting[pull.worker] = pull
        asked = zip(self._known, pull.ids, pull.tables, strict=True)
        new_of_stores = [store.ask(ids_U, tables_U) for store, ids_U, tables_U in asked]
        new = WantedRows(tuple(ids for ids, _ in new_of_stores), tuple(tables for _, tables in new_of_stores))
        if any(map(len, new.ids)) or (pull.dense and not self._dense_asked):
            self._fetch(pull, new)
        self._serve()

    def take(self, answer: Rows) -> None:
        fetched = self._in_flight.pop(answer.pull, None)
        if fetched is None:
            return
        self._step = answer.step if self._step is None else min(self._step, answer.step)
        for store, ids_U, rows_UW in zip(self._known, fetched.message.ids, answer.rows, strict=True):
            store.learn(ids_U, rows_UW)
        self._statistics = answer.statistics
        if isinstance(answer.dense, DenseValues):
            self._dense = answer.dense
        self._serve()

    def tick(self) -> None:
        for fetched in self._in_flight.values():
            if fetched.backoff.due():
                self.out.append((To("shard", self._shard), fetched.message))

    def _fetch(self, pull: Pull, new: WantedRows) -> None:
        self._number += 1
        dense = pull.dense and not self._dense_asked
        self._dense_asked |= dense
        self.sent_ids += sum(map(len, new.ids))
        head = pull.incarnation, self._relay, self._boot, self._number, pull.version
        fetched = self._in_flight[self._number] = PullInFlight(MachinePull(*head, *new, dense))
        self.out.append((To("shard", self._shard), fetched.message))

    def _serve(self) -> None:
        for worker, pull in list(self._waiting.items()):
            rows = [store.rows(ids_U) for store, ids_U in zip(self._known, pull.ids, strict=True)]
            if self._step is None or any(one is None for one in rows) or (pull.dense and self._dense is None):
                continue
            del self._waiting[worker]
            dense = self._dense if pull.dense else None
            found = tuple(one for one in rows if one is not None)
            head = pull.incarnation, self._shard, pull.boot, pull.pull, self._step
            answer = Rows(*head, found, dense, self._statistics)
            self.out.append((To("worker", worker), RelayAnswer(self._relay, self._shard, answer)))
