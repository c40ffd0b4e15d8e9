"""A shard: a part of the rows and of the dense parameters, the gradients that wait for a step, and what it was told.

A gradient waits under the number of its lease. Orders are numbered; a shard carries them out in that order, each
once, however often and in whatever order they reach it. So all shards go through the same steps, and a cut
falls between the same two on each. A gradient whose lease has ended is refused. Gradients may come from any thread,
orders come from one. Decides nothing, and knows no worker and no clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from gearshift.data.batch import Floats, Ids
from gearshift.embedding.sharded import IdPlacement, ShardedStore
from gearshift.embedding.store import RowStore
from gearshift.optim.spread import effective_number
from gearshift.parameters.push import Push, RowPush
from gearshift.parameters.server import Server

Values = tuple[tuple[Floats, ...], Tensor, dict[str, Tensor]]
NO_PREDICTIONS = np.empty((0, 1), np.float32)


@dataclass(frozen=True, slots=True)
class ApplyStep:
    """Apply step number `step`, from these leases with these weights."""

    step: int
    parts: tuple[tuple[int, float], ...]
    lr_scale: float = 1.0
    over_kept: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """The lease ended without a step; its gradient, if one waits, is not needed."""

    lease: int


@dataclass(frozen=True, slots=True)
class TakeCut:
    """Set aside everything as it is now, under this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Assemble:
    """Workers keep replicas, and these (number, boot) are waited for when all meet; `choices` say how they do."""

    number: int  # of this list of members, from 1
    generation: int
    choices: str
    members: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    number: int  # from 1, without a gap
    what: ApplyStep | Drop | TakeCut | Assemble
    open_from: int = 0  # every lease with a lower number has ended


@dataclass(frozen=True, slots=True)
class HeldDense:
    """The dense state that a worker keeps: of which step, -1: none; and the ring whose sum it has for the next."""

    version: int = -1
    ring: int = 0


@dataclass(frozen=True, slots=True)
class StepOnSum:
    """How the last step was made of a ring's sum; ring 0: none is needed to get to it."""

    ring: int = 0
    lr_scale: float = 0.0
    examples: float = 0.0
    gradients: float = 0.0  # that were in it, if they had equal weights


class Shard:
    def __init__(
        self,
        server: Server,
        take_cut: Callable[[str], None] = lambda name: None,
        assemble: Callable[[Assemble], None] = lambda order: None,
    ) -> None:
        self.server, self._take_cut, self._assemble = server, take_cut, assemble
        self.step = server.step  # applied, wholly
        self.done = 0  # orders carried out
        self.made: StepOnSum | None = None  # the last step, if of one ring's sum and nothing else
        self.waiting: dict[int, Push] = {}  # by lease
        self._early: dict[int, Order] = {}  # told before their turn
        self._open_from = 0
        self._ended: set[int] = set()  # of the leases from there on
        self._books = threading.Lock()  # over `waiting` and what has ended

    def pull(self, ids: tuple[Ids, ...], *, dense: bool = True) -> Values:
        """Rows of each store, a copy of the dense part if asked, and of running statistics; new ids are born."""
        threads = self.server.threads
        rows = tuple(
            store.pull(own, threads=threads) for store, own in zip(self.server.stores, ids, strict=True)
        )
        return rows, *self._dense(whole=dense)

    def way_on(self, held: HeldDense) -> StepOnSum | None:
        """How who holds that comes to the dense state of now without us; None: it cannot."""
        if held.version == self.step:
            return StepOnSum()
        if self.made is not None and held == HeldDense(self.step - 1, self.made.ring):
            return self.made
        return None

    def state(self) -> dict[str, Tensor]:
        """A copy of the dense optimizer's."""
        with self.server.dense_lock:
            return {name: values.clone() for name, values in self.server.optimizer_state.items()}

    def peek(self, ids: tuple[Ids, ...]) -> Values:
        """The same, but nothing is born."""
        threads = self.server.threads
        rows = tuple(
            store.peek(own, threads=threads) for store, own in zip(self.server.stores, ids, strict=True)
        )
        return rows, *self._dense()

    def _dense(self, *, whole: bool = True) -> tuple[Tensor, dict[str, Tensor]]:
        server = self.server
        with server.dense_lock:
            flat = server.flat if whole else server.flat[:0]
            return flat.clone(), {name: values.clone() for name, values in server.buffers.items()}

    def take(self, lease: int, push: Push) -> bool:
        """Lets a gradient wait; False if its lease has ended. The same one again changes nothing."""
        with self._books:
            if lease < self._open_from or lease in self._ended:
                return False
            self.waiting.setdefault(lease, push)
            return True

    def keep(self, lease: int) -> None:
        """If it still waits, it gets memory of its own: the worker will use its buffers again."""
        if lease in self.waiting:
            self.waiting[lease] = self.waiting[lease].kept()

    def tell(self, order: Order) -> None:
        """Carries out what is due by now."""
        if order.number > self.done:
            self._early[order.number] = order
        while (due := self._early.pop(self.done + 1, None)) is not None:
            match due.what:
                case ApplyStep() as step:
                    self._apply(step)
                case Drop(lease):
                    self._end([lease])
                case TakeCut(name):
                    self._take_cut(name)
                case Assemble() as members:
                    self._assemble(members)
            self._forget_below(due.open_from)
            self.done += 1

    def _apply(self, order: ApplyStep) -> None:
        assert order.step == self.step + 1, f"step {order.step} after step {self.step}"
        pushes = self._end([lease for lease, _ in order.parts])
        weighted = [(push, weight) for push, (_, weight) in zip(pushes, order.parts, strict=True)]
        self.server.apply_group(weighted, lr_scale=order.lr_scale, over_kept=order.over_kept)
        self.step = order.step
        rings = {push.ring for push in pushes}
        ring = rings.pop() if len(rings) == 1 else 0
        sizes = [push.examples for push in pushes]
        self.made = StepOnSum(ring, order.lr_scale, sum(sizes), effective_number(sizes)) if ring else None

    def _end(self, leases: list[int]) -> list[Push]:
        """These leases are over; the gradients of those that had one here."""
        with self._books:
            self._ended.update(leases)
            return [self.waiting.pop(lease) for lease in leases if lease in self.waiting]

    def _forget_below(self, open_from: int) -> None:
        if open_from > self._open_from:
            with self._books:
                self._open_from = open_from
                self._ended = {lease for lease in self._ended if lease >= open_from}
                for lease in [lease for lease in self.waiting if lease < open_from]:
                    del self.waiting[lease]


@dataclass(frozen=True)
class ShardLayout:
    """How parameters lie on shards: rows by the hash of their id, dense parameters in whole tensors."""

    dense: tuple[slice, ...]  # of the flat buffer, one per shard

    @classmethod
    def of(cls, shards: int, size: int, starts: tuple[int, ...], together: bool = False) -> ShardLayout:
        """`starts` are the places where a tensor begins; `together` keeps all of them on the first shard."""
        ends = [min((s for s in starts if s >= size * i / shards), default=size) for i in range(1, shards)]
        cuts = [size] * (shards - 1) if together else ends
        return cls(tuple(slice(a, b) for a, b in zip([0, *cuts], [*cuts, size], strict=True)))

    @property
    def shards(self) -> int:
        return len(self.dense)

    def split(self, push: Push) -> list[Push]:
        """Each shard's share of a gradient, in memory of its own; running statistics go to the first."""
        rows = [split_rows(own, self.shards) for own in push.rows]
        return [
            replace(
                push,
                rows=tuple(of_store[s] for of_store in rows),
                dense=push.dense[own].clone(),  # nothing, if another carries it
                variance=push.variance[own].clone(),
                probabilities_BT=NO_PREDICTIONS,
                buffer_changes=push.buffer_changes if s == 0 else {},
            )
            for s, own in enumerate(self.dense)
        ]


def split_rows(rows: RowPush, shards: int) -> list[RowPush]:
    groups = IdPlacement(rows.ids_U, shards).groups
    return [RowPush(rows.ids_U[at], rows.sums_UW[at], rows.counts_U[at]) for at in groups]


def shard_server(whole: Server, layout: ShardLayout, number: int) -> Server:
    """The server of one shard, in the memory of `whole`: both see what either does to rows and dense values."""
    if layout.shards == 1:
        return whole
    own = layout.dense[number]
    stores = tuple(_part_of(store, number) for store in whole.stores)
    server = Server(
        whole.flat[own],
        stores,
        whole.optimizer,
        max_norm=whole.max_norm,
        embedding_reduce=whole.embedding_reduce,
        row_trust=whole.row_trust,
        layout=whole.layers.within(own.start, own.stop),
        threads=max(1, whole.threads // layout.shards),
    )
    server.optimizer_state = {
        name: values[own] if values.dim() else (values if number == 0 else values.clone())
        for name, values in whole.optimizer_state.items()
    }
    server.dense_lock = whole.dense_lock
    server.buffers = whole.buffers if number == 0 else {}
    server.step = whole.step
    return server


def _part_of(store: RowStore, number: int) -> RowStore:
    """A process that is a shard holds no other rows."""
    return store.shards[number] if isinstance(store, ShardedStore) else store
