"""Several stores as one. The hash of an id determines its shard; callers see a single store.

Shard s of n holds a contiguous run of the 256 partitions, so a checkpoint loads with any number of shards.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gearshift import _core
from gearshift.embedding.horizons import Horizons
from gearshift.embedding.row_rules import RuleState, joined
from gearshift.embedding.store import (
    DiskTier,
    Floats,
    Ids,
    RowBlock,
    RowLifetimes,
    RowStack,
    RowStore,
    StoreSnapshot,
    TableLookups,
    Tables,
    TierCounts,
)
from gearshift.embedding.tier_figures import summed_lookups


class IdPlacement:
    """The shards of these ids: `groups[s]` has the positions of those on shard s, in input order."""

    def __init__(self, ids_U: Ids, shards: int) -> None:
        order_U, begins = np.empty(len(ids_U), np.uint32), np.empty(shards + 1, np.uint32)
        _core.place(ids_U, shards, order_U, begins)
        self.groups = [order_U[begins[s] : begins[s + 1]] for s in range(shards)]


class ShardedStore:
    """`RowStore` describes each method."""

    def __init__(self, shards: Sequence[RowStore]) -> None:
        self.shards = tuple(shards)
        first = self.shards[0]
        self.parts, self.width, self.state_width = first.parts, first.width, first.state_width
        tiers = [shard.tier for shard in self.shards if shard.tier is not None]
        self.tier = ShardedTier(tiers) if tiers else None
        self.lifetimes = ShardedLifetimes([shard.lifetimes for shard in self.shards])

    def __len__(self) -> int:
        return sum(len(shard) for shard in self.shards)

    def pull(
        self, ids_U: Ids, out_UW: Floats | None = None, *, tables_U: Tables | None = None, threads: int = 1
    ) -> Floats:
        out_UW = np.empty((len(ids_U), self.width), np.float32) if out_UW is None else out_UW
        for shard, at in zip(self.shards, IdPlacement(ids_U, len(self.shards)).groups, strict=True):
            out_UW[at] = shard.pull(ids_U[at], tables_U=_some(tables_U, at), threads=threads)
        return out_UW

    def peek(self, ids_U: Ids, out_UW: Floats | None = None, *, threads: int = 1) -> Floats:
        out_UW = np.empty((len(ids_U), self.width), np.float32) if out_UW is None else out_UW
        for shard, at in zip(self.shards, IdPlacement(ids_U, len(self.shards)).groups, strict=True):
            out_UW[at] = shard.peek(ids_U[at], threads=threads)
        return out_UW

    def push(
        self,
        ids_U: Ids,
        sums_UW: Floats,
        counts_U: NDArray[np.uint32],
        *,
        examples: float,
        step: int,
        lr_scale: float = 1.0,
        tables_U: Tables | None = None,
        threads: int = 1,
    ) -> None:
        """Push shard by shard. If one refuses, earlier shards have already pushed, so push finite values only."""
        for shard, at in zip(self.shards, IdPlacement(ids_U, len(self.shards)).groups, strict=True):
            shard.push(
                ids_U[at],
                sums_UW[at],
                counts_U[at],
                examples=examples,
                step=step,
                lr_scale=lr_scale,
                tables_U=_some(tables_U, at),
                threads=threads,
            )

    def contains(self, ids_U: Ids) -> NDArray[np.bool_]:
        out_U = np.empty(len(ids_U), np.bool_)
        for shard, at in zip(self.shards, IdPlacement(ids_U, len(self.shards)).groups, strict=True):
            out_U[at] = shard.contains(ids_U[at])
        return out_U

    def last_steps(self, ids_U: Ids) -> NDArray[np.uint32]:
        out_U = np.empty(len(ids_U), np.uint32)
        for shard, at in zip(self.shards, IdPlacement(ids_U, len(self.shards)).groups, strict=True):
            out_U[at] = shard.last_steps(ids_U[at])
        return out_U

    def erase(self, ids_U: Ids) -> int:
        groups = IdPlacement(ids_U, len(self.shards)).groups
        return sum(shard.erase(ids_U[at]) for shard, at in zip(self.shards, groups, strict=True))

    def blocks(self) -> Iterator[RowBlock]:
        for shard in self.shards:
            yield from shard.blocks()

    def load(self, block: RowBlock) -> None:
        for shard, at in zip(self.shards, IdPlacement(block.ids_U, len(self.shards)).groups, strict=True):
            if len(at):
                shard.load(RowBlock(*(getattr(block, field.name)[at] for field in fields(block))))

    def adopt(self, stacks: Sequence[RowStack]) -> bool:
        return False

    def cut(self) -> ShardedSnapshot:
        return ShardedSnapshot([shard.cut() for shard in self.shards])

    def memory_bytes(self) -> int:
        return sum(shard.memory_bytes() for shard in self.shards)


class ShardedTier:
    """`DiskTier` describes each method."""

    def __init__(self, tiers: Sequence[DiskTier]) -> None:
        self._tiers = tuple(tiers)
        self.budget, self.folder = sum(tier.budget for tier in tiers), tiers[0].folder

    def prefetch(self, ids_U: Ids) -> None:
        for tier, at in zip(self._tiers, IdPlacement(ids_U, len(self._tiers)).groups, strict=True):
            tier.prefetch(ids_U[at])

    def begin_chunk(self) -> None:
        for tier in self._tiers:
            tier.begin_chunk()

    def expect(self, ids_U: Ids) -> float:
        groups = IdPlacement(ids_U, len(self._tiers)).groups
        return max(tier.expect(ids_U[at]) for tier, at in zip(self._tiers, groups, strict=True))

    def load_expected(self) -> bool:
        return any(tier.load_expected() for tier in self._tiers)  # one tier after another

    def counts(self) -> TierCounts:
        return reduce(operator.add, (tier.counts() for tier in self._tiers))

    def lookups(self) -> dict[str, TableLookups]:
        return summed_lookups(tier.lookups() for tier in self._tiers)

    def check(self) -> None:
        for tier in self._tiers:
            tier.check()

    def write_failure(self) -> str | None:
        return next((why for tier in self._tiers if (why := tier.write_failure()) is not None), None)


class ShardedLifetimes:
    """`RowLifetimes` describes each method."""

    def __init__(self, shards: Sequence[RowLifetimes]) -> None:
        self._shards, self.rules = tuple(shards), shards[0].rules

    def move_horizons(self, horizons: Horizons) -> None:
        for shard in self._shards:
            shard.move_horizons(horizons)

    def restore(self, states: Sequence[RuleState], of_shard: tuple[int, int] = (0, 1)) -> None:
        for number, shard in enumerate(self._shards):
            shard.restore(states, (number, len(self._shards)))

    def counts(self) -> NDArray[np.uint64]:
        counts: NDArray[np.uint64] = np.sum([shard.counts() for shard in self._shards], 0)
        return counts


def _some(tables_U: Tables | None, at: NDArray[np.uint32]) -> Tables | None:
    return None if tables_U is None else tables_U[at]


class ShardedSnapshot:
    """The cuts of all shards, in partition order."""

    def __init__(self, cuts: Sequence[StoreSnapshot]) -> None:
        self._cuts = tuple(cuts)

    def __len__(self) -> int:
        return sum(len(cut) for cut in self._cuts)

    def __iter__(self) -> Iterator[RowBlock]:
        for cut in self._cuts:
            yield from cut

    def rules(self) -> RuleState | None:
        states = [state for cut in self._cuts if (state := cut.rules()) is not None]
        return joined(states) if states else None

    def write_files(self, folder: Path, name: str) -> list[RowStack]:
        return [
            stack
            for shard, cut in enumerate(self._cuts)
            for stack in cut.write_files(folder, f"{name}-s{shard}")
        ]

    def close(self) -> None:
        for cut in self._cuts:
            cut.close()

    def __enter__(self) -> ShardedSnapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
