"""A shard: a part of the rows and dense parameters, the gradients waiting for a step, and the orders received.

A gradient waits under the number of its lease. Orders are numbered. A shard executes them in sequence, each once,
however often and in whatever order they arrive. All shards therefore go through the same steps, and a cut falls
between the same two steps on each. A gradient whose lease has ended is refused. Gradients may come from any thread,
orders from one. A shard makes no decisions and knows nothing about workers or clocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gearshift.data.batch import Floats, Ids
from gearshift.embedding.horizons import Horizons
from gearshift.embedding.sharded import IdPlacement, ShardedStore
from gearshift.embedding.store import RowStore, Tables
from gearshift.optim.spread import effective_number
from gearshift.parameters.average import shown
from gearshift.parameters.prediction import PredictedPulls
from gearshift.parameters.push import (
    NO_PREDICTIONS,
    AnyPush,
    AppliedPush,
    Push,
    RowPush,
    ShardPush,
    group_of,
    part_of,
)
from gearshift.parameters.server import Server
from gearshift.sync.events import STORED, Extrapolation

Values = tuple[tuple[Floats, ...], Tensor, dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class ApplyStep:
    """Apply step number `step`, formed from these leases with these weights."""

    step: int
    parts: tuple[tuple[int, float], ...]
    lr_scale: float = 1.0
    over_kept: bool = False
    horizons: Horizons | None = None  # of rows, if it is time for new ones
    dense_rate: float = 1.0  # factor of the dense learning rate, beside `lr_scale`
    late: tuple[tuple[int, int], ...] = ()  # of weight 0, but counts for rows not changed since this step
    share: float = 1.0  # of a global batch: the examples whose gradients count


@dataclass(frozen=True, slots=True)
class Drop:
    """The lease ended without a step. Its gradient, if there is one, is not needed."""

    lease: int


@dataclass(frozen=True, slots=True)
class TakeCut:
    """Take a snapshot of the current state, under this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Assemble:
    """Workers keep replicas. A meeting waits for these members (number, boot); `choices` define the exchange."""

    number: int  # of this member list, from 1
    generation: int
    choices: str
    members: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    number: int  # from 1, without gaps
    what: ApplyStep | Drop | TakeCut | Assemble
    open_from: int = 0  # all leases with lower numbers have ended


@dataclass(frozen=True, slots=True)
class HeldDense:
    """The dense state that a worker keeps: its step (-1: none), and the group whose sum it holds for the next step."""

    version: int = -1
    group: int = 0


@dataclass(frozen=True, slots=True)
class StepOnSum:
    """How the last step was made from the sum of an all-reduce group; group 0: no sum is needed to reach it."""

    group: int = 0
    lr_scale: float = 0.0
    examples: float = 0.0
    gradients: float = 0.0  # effective number of gradients in the sum


class Shard:
    def __init__(
        self,
        server: Server,
        take_cut: Callable[[str], None] = lambda name: None,
        assemble: Callable[[Assemble], None] = lambda order: None,
    ) -> None:
        self.server, self._take_cut, self._assemble = server, take_cut, assemble
        self.step = server.step  # steps applied completely
        self.done = 0  # orders carried out
        self.made: StepOnSum | None = None  # the last step, if it was made from one group's sum only
        self.waiting: dict[int, AnyPush] = {}  # by lease
        self._early: dict[int, Order] = {}  # orders received before their turn
        self._open_from = 0
        self._ended: set[int] = set()  # ended leases from there on
        self._sums: dict[
            int, tuple[int, ...]
        ] = {}  # waiting leases whose gradients were summed before they came
        self._prediction = PredictedPulls(server)
        self._books = threading.Lock()  # protects `waiting` and the ended leases

    def pull(
        self,
        ids: tuple[Ids, ...],
        tables: tuple[Tables, ...] | None = None,
        *,
        dense: bool = True,
        version: int = 0,
        extrapolation: Extrapolation = STORED,
    ) -> Values:
        """Rows of each store, a copy of the dense part if requested, and running statistics. New ids are created.

        The dense part is extrapolated from step `version` on.
        """
        threads = self.server.threads
        rows = tuple(
            store.pull(ids_U, tables_U=tables_U, threads=threads)
            for store, ids_U, tables_U in zip(
                self.server.stores, ids, tables or [None] * len(ids), strict=True
            )
        )
        ahead = dense and extrapolation.steps > 0
        flat, statistics = self._dense(whole=dense and not ahead)
        return rows, self.extrapolate(version, extrapolation) if ahead else flat, statistics

    def extrapolate(self, version: int, extrapolation: Extrapolation) -> Tensor:
        """The dense part as it will probably be, so many steps after `version`. May be called from any thread."""
        with self._books:
            waiting, steps = dict(self.waiting), version + extrapolation.steps - self.step
        return self._prediction.dense(waiting, steps, extrapolation.waiting)

    def way_on(self, held: HeldDense) -> StepOnSum | None:
        """How a worker with this state can reach the current step without receiving dense values; None if it cannot."""
        if held.version == self.step:
            return StepOnSum()
        if self.made is not None and held == HeldDense(self.step - 1, self.made.group):
            return self.made
        return None

    def state(self) -> dict[str, Tensor]:
        """A copy of the dense optimizer state."""
        with self.server.dense_lock:
            return {name: values.clone() for name, values in self.server.optimizer_state.items()}

    def peek(self, ids: tuple[Ids, ...]) -> Values:
        """The same for evaluations: creates no rows; the dense part is the average, if there is one."""
        threads = self.server.threads
        rows = tuple(
            store.peek(ids_U, threads=threads) for store, ids_U in zip(self.server.stores, ids, strict=True)
        )
        with self.server.dense_lock:
            return rows, *_copied(*shown(self.server))

    def _dense(self, *, whole: bool = True) -> tuple[Tensor, dict[str, Tensor]]:
        server = self.server
        with server.dense_lock:
            return _copied(server.flat if whole else server.flat[:0], server.buffers)

    def take(self, lease: int, push: AnyPush) -> bool:
        """Keeps a gradient until its step; False if its lease has ended. A repeated gradient changes nothing."""
        with self._books:
            if lease < self._open_from or lease in self._ended:
                return False
            self.waiting.setdefault(lease, push)
            return True

    def take_sum(self, leases: tuple[int, ...], push: Push) -> bool:
        """Lets the sum of these leases' gradients wait, under the first; they will be applied in one step.

        False: it cannot count, because one of them has ended or waits in another form. The same sum again changes
        nothing, and neither does one whose leases have all ended.
        """
        with self._books:
            if all(self._sums.get(lease) == leases for lease in leases):
                return True
            ended = [lease < self._open_from or lease in self._ended for lease in leases]
            if any(ended) or any(lease in self.waiting for lease in leases):
                return all(ended)
            for lease in leases:
                self._sums[lease] = leases
                self.waiting[lease] = push if lease == leases[0] else AppliedPush(0.0, 0.0, NO_PREDICTIONS)
            return True

    def keep(self, lease: int) -> None:
        """If the gradient is still waiting, it is copied, because the worker will reuse its buffers."""
        if isinstance(push := self.waiting.get(lease), Push):
            self.waiting[lease] = push.kept()

    def receive(self, order: Order) -> None:
        """Receive an order, and execute all orders that are now due."""
        if order.number > self.done:
            self._early[order.number] = order
        while (due := self._early.pop(self.done + 1, None)) is not None:
            match due.what:
                case ApplyStep() as step:
                    self._apply(step)
                case Drop(lease):
                    self._end([lease], self.step)
                case TakeCut(name):
                    self._take_cut(name)
                case Assemble() as members:
                    self._assemble(members)
            self._forget_below(due.open_from)
            self.done += 1

    def _apply(self, order: ApplyStep) -> None:
        assert order.step == self.step + 1, f"step {order.step} after step {self.step}"
        leases = [lease for lease, _ in order.parts]
        pushes = [self.waiting[lease] for lease in leases if lease in self.waiting]
        weighted = [(push, weight) for push, (_, weight) in zip(pushes, order.parts, strict=True)]
        late = [(self.waiting[lease], version) for lease, version in order.late]
        self.server.apply_group(
            weighted,
            late=late,
            lr_scale=order.lr_scale,
            over_kept=order.over_kept,
            dense_rate=order.dense_rate,
            share=order.share,
            horizons=order.horizons,
        )
        self._end(leases, order.step)  # only now: a prediction made during the step counts them
        groups = {group_of(push) for push in pushes}
        group = groups.pop() if len(groups) == 1 else 0
        sizes = [push.examples for push in pushes]
        rate = order.lr_scale * order.dense_rate
        self.made = StepOnSum(group, rate, sum(sizes), effective_number(sizes)) if group else None

    def _end(self, leases: list[int], step: int) -> None:
        """Ends these leases and drops the gradients that were waiting here; this is step `step`."""
        with self._books:
            self.step = step
            self._ended.update(leases)
            for lease in leases:
                self._sums.pop(lease, None)
                self.waiting.pop(lease, None)

    def _forget_below(self, open_from: int) -> None:
        if open_from > self._open_from:
            with self._books:
                self._open_from = open_from
                self._ended = {lease for lease in self._ended if lease >= open_from}
                for lease in [lease for lease in self.waiting if lease < open_from]:
                    del self.waiting[lease]
                    self._sums.pop(lease, None)


def _copied(flat: Tensor, buffers: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    return flat.clone(), {name: values.clone() for name, values in buffers.items()}


@dataclass(frozen=True)
class ShardLayout:
    """The distribution of parameters over shards: rows by the hash of their id, dense parameters in whole tensors."""

    dense: tuple[slice, ...]  # slices of the flat buffer, one per shard

    @classmethod
    def of(cls, shards: int, size: int, starts: tuple[int, ...], together: bool = False) -> ShardLayout:
        """`starts` are the offsets of the tensors; `together` keeps all of them on the first shard."""
        ends = [min((s for s in starts if s >= size * i / shards), default=size) for i in range(1, shards)]
        cuts = [size] * (shards - 1) if together else ends
        return cls(tuple(slice(a, b) for a, b in zip([0, *cuts], [*cuts, size], strict=True)))

    @property
    def shards(self) -> int:
        return len(self.dense)

    def split(self, push: ShardPush) -> list[ShardPush]:
        """Each shard's share of a gradient, copied; running statistics go to the first shard."""
        rows = [split_rows(own, self.shards) for own in push.rows]
        return [
            part_of(push, tuple(of_store[s] for of_store in rows), own, first=s == 0)
            for s, own in enumerate(self.dense)
        ]

    def split_any(self, push: AnyPush) -> list[AnyPush]:
        """The same; of a push that was applied already, every shard gets everything that is left."""
        return [push] * self.shards if isinstance(push, AppliedPush) else [*self.split(push)]


def split_rows(rows: RowPush, shards: int) -> list[RowPush]:
    groups = IdPlacement(rows.ids_U, shards).groups
    return [
        RowPush(rows.ids_U[at], rows.sums_UW[at], rows.counts_U[at], tables_U=rows.tables_U[at])
        for at in groups
    ]


def shard_server(whole: Server, layout: ShardLayout, number: int) -> Server:
    """The server of one shard in the memory of `whole`. Both see all changes of rows and dense values."""
    if layout.shards == 1:
        return whole
    part = layout.dense[number]
    stores = tuple(_part_of(store, number) for store in whole.stores)
    server = Server(
        whole.flat[part],
        stores,
        whole.optimizer,
        dense=whole.dense_policy,
        rows=whole.row_policy,
        layout=whole.layers.within(part.start, part.stop),
        buffers=whole.buffers if number == 0 else {},
        threads=max(1, whole.threads // layout.shards),
    )
    server.optimizer_state = {
        name: values[part] if values.dim() else (values if number == 0 else values.clone())
        for name, values in whole.optimizer_state.items()
    }
    server.dense_lock = whole.dense_lock
    server.average = None if whole.average is None else whole.average.part(number, part)
    server.step = whole.step
    return server


def _part_of(store: RowStore, number: int) -> RowStore:
    """The process of a shard holds no other rows."""
    return store.shards[number] if isinstance(store, ShardedStore) else store
