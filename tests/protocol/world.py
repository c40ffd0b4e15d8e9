"""The parts that a simulated cluster is made of: tiny parameters, gradients that follow from their examples, a disk.

A gradient depends on its range of examples alone, so whoever knows which ranges formed which steps can compute what
the parameters must be; momentum and Adagrad make that depend on the order of steps too.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from gearshift.embedding.sharded import ShardedStore
from gearshift.embedding.store import RowAdagrad, RowBlock, RowPart, StoreSnapshot
from gearshift.embedding.table_store import MemoryStore
from gearshift.optim.first_order import DenseOptimizer, Momentum
from gearshift.parameters.push import (
    GroupRowsPush,
    GroupSumPush,
    Push,
    ReplicaRowsPush,
    RowPush,
    ShardPush,
)
from gearshift.parameters.replicas.figures import Counts
from gearshift.parameters.server import Server
from gearshift.parameters.shard import ShardLayout, shard_server
from gearshift.sync.events import Lease
from gearshift.training.ended import Ended

TENSORS = (0, 4, 7)  # where they begin
SIZE = 9
IDS = 40
PARTS = (RowPart("embedding", 2, RowAdagrad(lr=0.1), 0.01),)
NOBODY = np.empty((0, 1), np.float32)
MOMENTUM = Momentum(lr=0.1)


@lru_cache(None)
def ids_of(first: int, count: int) -> np.ndarray:
    """Of a range; other ranges have some of them too."""
    return np.unique((first * 7 + np.arange(2 + count % 3) * 5) % IDS).astype(np.int64)


@lru_cache(None)
def gradient(first: int, count: int) -> Push:
    ids = ids_of(first, count)
    dense = torch.arange(SIZE, dtype=torch.float32).mul_(first % 5 + 1).remainder_(7).sub_(3)
    sums = np.outer(ids % 3 - 1.0, [count, first % 4 + 1]).astype(np.float32)
    counts = np.full(len(ids), count, np.uint32)
    return Push((RowPush(ids, sums, counts),), dense, float(count), 0.0, NOBODY)


def summed(push: Push, total: torch.Tensor | None, group: int = 1) -> GroupSumPush | GroupRowsPush:
    """A push of an all-reduce group: with the sum, or without a dense part."""
    if total is None:
        return GroupRowsPush(group, push.rows, push.examples)
    return GroupSumPush(group, push.rows, total, None, push.examples)


def whole_server(shards: int, optimizer: DenseOptimizer = MOMENTUM) -> Server:
    stores = [MemoryStore(PARTS, seed=3) for _ in range(shards)]
    return Server(
        torch.linspace(-1, 1, SIZE), (stores[0] if shards == 1 else ShardedStore(stores),), optimizer
    )


def layout_of(shards: int) -> ShardLayout:
    return ShardLayout.of(shards, SIZE, TENSORS)


def fresh_shard(number: int, shards: int, optimizer: DenseOptimizer = MOMENTUM) -> Server:
    """The server of one shard, in memory of its own."""
    server = shard_server(whole_server(shards, optimizer), layout_of(shards), number)
    server.flat = server.flat.clone()
    server.optimizer_state = {name: values.clone() for name, values in server.optimizer_state.items()}
    return server


@dataclass
class SavedPart:
    step: int
    flat: torch.Tensor
    optimizer: dict[str, torch.Tensor]
    rows: list[RowBlock]


@dataclass
class CutUnderWay:
    """A cut that was taken and is still to be read and written."""

    step: int
    flat: torch.Tensor
    optimizer: dict[str, torch.Tensor]
    rows: StoreSnapshot

    @classmethod
    def of(cls, server: Server) -> CutUnderWay:
        optimizer = {name: values.clone() for name, values in server.optimizer_state.items()}
        return cls(server.step, server.flat.clone(), optimizer, server.stores[0].cut())

    def read(self) -> SavedPart:
        rows = list(self.rows)
        self.rows.close()
        return SavedPart(self.step, self.flat, self.optimizer, rows)


def restored(
    part: SavedPart | None, number: int, shards: int, optimizer: DenseOptimizer = MOMENTUM
) -> Server:
    server = fresh_shard(number, shards, optimizer)
    if part is not None:
        server.flat.copy_(part.flat)
        for name, values in part.optimizer.items():
            server.optimizer_state[name].copy_(values)
        for block in part.rows:
            server.stores[0].load(block)
        server.step = part.step
    return server


class Disk:
    """What outlives every process: `SnapshotStore`, and the shards' parts of snapshots."""

    def __init__(self, strategy: str, settings: dict[str, Any]) -> None:
        self.incarnation = 0
        self.strategy = (
            strategy,
            settings,
        )  # as of now: it is no state of the parameters, and survives a rewind
        start = {"step": 0, "position": 0, "leased": [], "unbegun": []}
        start |= {"strategy": strategy, "settings": settings}
        self.snapshots: list[tuple[str, dict[str, Any]]] = [
            ("start", {**start, "book": {"ends": {}, "done": 0}})
        ]
        self.parts: dict[tuple[str, int], SavedPart] = {}

    def new_incarnation(self) -> int:
        self.incarnation += 1
        return self.incarnation

    def newest(self) -> tuple[str, dict[str, Any]]:
        name, facts = copy.deepcopy(self.snapshots[-1])
        strategy, settings = self.strategy
        return name, {**facts, "strategy": strategy, "settings": settings}

    def commit(self, incarnation: int, name: str, facts: dict[str, Any]) -> None:
        if incarnation == self.incarnation:
            self.snapshots.append((name, facts))

    def failed(self, name: str, error: str) -> None:
        pass


@dataclass
class Account:
    """How often each example ended; an `Accounts`."""

    ends: Counter[int] = field(default_factory=Counter)
    passes: int = 1  # over the data
    done: int = 0  # of these

    def horizons(self, step: int) -> None:
        return None

    def rate(self, examples: int) -> float:
        """Of all that ended before: a step applied beside its turn would have another."""
        return 1.0 + (self.ends.total() + examples) % 5 / 10

    def ended(self, leases: Sequence[Ended[Any]]) -> None:
        for one in leases:
            self.ends.update(range(one.lease.first, one.lease.first + one.lease.count))

    def duplicated(self, examples: int) -> None:
        pass

    def stepped(self) -> bool:
        return True

    def facts(self) -> dict[str, Any]:
        return {"ends": dict(self.ends), "done": self.done}

    def restore(self, facts: dict[str, Any]) -> None:
        self.ends, self.done = Counter(facts["ends"]), facts["done"]

    def passed(self, first_lease: int) -> bool:
        self.done += 1
        return self.done < self.passes

    def rate_after(self, examples: int) -> float:
        return self.rate(examples)

    def counted(self, worker: int, boot: int, counts: Counts) -> None:
        pass

    def shown(self) -> None:
        pass


@dataclass(frozen=True)
class Applied:
    """One step: its ranges with their weights, and how it was divided and scaled."""

    parts: list[tuple[Lease, float]]
    over_kept: bool
    rate: float
    dense: bool = True  # False: rows alone; the dense part was a replica's
    ranks: dict[int, int] = field(default_factory=dict)  # by lease, of those whose sum was made in a group
    examples: dict[int, float] = field(default_factory=dict)  # by lease: as how many its rows count
    dense_rate: float = 1.0
    late: dict[int, int] = field(
        default_factory=dict
    )  # by lease of weight 0 whose rows count: what it has seen

    def late_pushes(self) -> list[tuple[ShardPush, int]]:
        return [
            (push, self.late[lease.number])
            for (push, _), (lease, _) in zip(self.pushes(), self.parts, strict=True)
            if lease.number in self.late
        ]

    def pushes(self) -> list[tuple[ShardPush, float]]:
        """What the shards must have: the sum of a group is that of its parts in this step."""
        found: list[tuple[ShardPush, float]] = []
        for lease, weight in self.parts:
            push: ShardPush = gradient(lease.first, lease.count)
            if not self.dense:
                push = ReplicaRowsPush(push.rows, self.examples[lease.number])
            elif (rank := self.ranks.get(lease.number)) is not None:
                push = summed(gradient(lease.first, lease.count), self._sum() if rank == 0 else None)
            found.append((push, weight))
        return found

    def _sum(self) -> torch.Tensor:
        ringed = [lease for lease, _ in self.parts if lease.number in self.ranks]
        return torch.stack([gradient(lease.first, lease.count).dense for lease in ringed]).sum(0)


@dataclass
class History:
    """The surviving steps, and what the parameters are after each: known from the steps alone.

    While workers keep replicas the dense values follow from exchanges, and are not known here; `rebase` says what they
    were when servers took over again.
    """

    steps: dict[int, Applied] = field(default_factory=dict)
    optimizer: DenseOptimizer = MOMENTUM
    based: dict[int, tuple[torch.Tensor, dict[str, torch.Tensor]]] = field(default_factory=dict)  # by step
    flats: list[torch.Tensor] = field(default_factory=list)  # by step, from 0
    states: list[dict[str, torch.Tensor]] = field(default_factory=list)  # of the optimizer
    rows: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = whole_server(1, self.optimizer)

    def rewind(self, step: int) -> None:
        """A new incarnation begins after this step: what came later never was."""
        self.steps = {k: applied for k, applied in self.steps.items() if k <= step}
        self.based = {k: values for k, values in self.based.items() if k < step}
        if step < len(self.flats):
            self._forget()

    def rebase(self, step: int, flat: torch.Tensor, state: dict[str, torch.Tensor]) -> None:
        self.based[step] = flat, state
        self._forget()

    def _forget(self) -> None:
        self.flats, self.states, self.rows, self.server = [], [], [], whole_server(1, self.optimizer)

    def after(self, step: int) -> tuple[torch.Tensor, np.ndarray]:
        """Dense values and all rows."""
        while len(self.flats) <= step:
            if self.flats:
                applied = self.steps[len(self.flats)]
                self.server.apply_group(
                    applied.pushes(),
                    lr_scale=applied.rate,
                    over_kept=applied.over_kept,
                    late=applied.late_pushes(),
                    dense_rate=applied.dense_rate,
                )
            if len(self.flats) in self.based:
                flat, state = self.based[len(self.flats)]
                self.server.flat.copy_(flat)
                for name, values in state.items():
                    self.server.optimizer_state[name].copy_(values)
            self.flats.append(self.server.flat.clone())
            state = self.server.optimizer_state
            self.states.append({name: values.clone() for name, values in state.items()})
            self.rows.append(self.server.stores[0].peek(np.arange(IDS, dtype=np.int64)))
        return self.flats[step], self.rows[step]
