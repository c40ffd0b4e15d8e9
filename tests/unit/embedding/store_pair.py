"""The same calls on a store with all rows in memory and on one with rows on disk. Every answer must be the same.

Look-ahead and the writing of checkpoints run in threads of their own, beside the calls that follow, so that rows move
between memory and disk while they are evicted, merged, expired and saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.horizons import Horizons
from gearshift.embedding.row_rules import RowRule
from gearshift.embedding.store import Ids, RowAdagrad, RowAdam, RowBlock, RowPart, Tables
from gearshift.embedding.table_store import MemorySnapshot, MemoryStore
from gearshift.parameters import checkpoint
from gearshift.parameters.checkpoint import Checkpoint

PARTS = (RowPart("embedding", 16, RowAdam(lr=0.01)), RowPart("linear", 1, RowAdagrad(lr=0.05)))
WIDTH = 17
BUDGET = 8 << 20  # buffers of rows to be written get an eighth of it
SECONDS = 120.0
SHORT, LONG = 4, 9  # periods of expiry, in steps


def tables_of(ids_U: Ids, rules: Sequence[RowRule]) -> Tables | None:
    return (ids_U % (len(rules) - 1) + 1).astype(np.uint16) if rules else None


def assert_same(left: Iterator[RowBlock], right: Iterator[RowBlock]) -> int:
    """Returns the number of rows."""
    rows = 0
    for a, b in zip(left, right, strict=True):
        for field in fields(a):
            np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name), field.name)
        rows += len(a.ids_U)
    return rows


class StorePair:
    def __init__(
        self,
        folder: Path,
        hot_rows: int,
        seed: int,
        *,
        budget: int = BUDGET,
        rules: Sequence[RowRule] = (),
        ids: int = 20_000,
    ) -> None:
        self.folder, self.budget, self.rules, self.number_of_ids = folder, budget, rules, ids
        self.plain = MemoryStore(PARTS, seed=1, rules=rules)
        self.tiered = self.new_tiered(hot_rows)
        self.random, self.step = np.random.default_rng(seed), 0
        self.merges = 0  # of stores that others have replaced
        self._beside = ThreadPoolExecutor(1, "look-ahead")
        self._saver = ThreadPoolExecutor(1, "saver")
        self._ahead: list[Future[object]] = []
        self._saving: tuple[MemorySnapshot, Future[Checkpoint]] | None = None

    def new_tiered(self, hot_rows: int) -> MemoryStore:
        tier = ColdTier(self.folder / "rows", self.budget, hot_rows)
        return MemoryStore(PARTS, seed=1, rules=self.rules, tier=tier)

    def ids(self) -> Ids:
        drawn = self.random.zipf(1.2, int(self.random.integers(1, 3000))) % self.number_of_ids
        return np.unique(drawn.astype(np.int64))

    # ---- training ----

    def train(self) -> None:
        ids_U = self.ids()
        tables_U = tables_of(ids_U, self.rules)
        expected_UW = self.plain.pull(ids_U, tables_U=tables_U)
        np.testing.assert_array_equal(expected_UW, self.tiered.pull(ids_U, tables_U=tables_U))
        self.push(ids_U)

    def push(self, ids_U: Ids | None = None) -> None:
        ids_U = self.ids() if ids_U is None else ids_U
        sums_UW = self.random.standard_normal((len(ids_U), WIDTH)).astype(np.float32)
        counts_U = self.random.integers(1, 9, len(ids_U)).astype(np.uint32)
        tables_U = tables_of(ids_U, self.rules)
        self.step += 1
        for store in (self.plain, self.tiered):
            store.push(ids_U, sums_UW, counts_U, examples=8, step=self.step, tables_U=tables_U)

    def erase(self) -> None:
        ids_U = self.ids()[::3].copy()
        assert self.plain.erase(ids_U) == self.tiered.erase(ids_U)

    def load(self) -> None:
        block = next(iter(self.plain.blocks()), None)
        if block is not None:
            for store in (self.plain, self.tiered):
                store.load(block)

    def expire(self) -> None:
        """Rows that were not trained for a while do not exist any more; they are removed by and by."""
        periods = ((0, max(0, self.step - SHORT)), (1, max(0, self.step - LONG)))
        for store in (self.plain, self.tiered):
            store.lifetimes.move_horizons(Horizons(self.step + 1, periods))

    def look(self) -> None:
        ids_U = self.ids()
        np.testing.assert_array_equal(self.plain.peek(ids_U), self.tiered.peek(ids_U))
        np.testing.assert_array_equal(self.plain.contains(ids_U), self.tiered.contains(ids_U))
        np.testing.assert_array_equal(self.plain.last_steps(ids_U), self.tiered.last_steps(ids_U))
        assert len(self.plain) == len(self.tiered)

    # ---- look-ahead, beside the calls that follow ----

    def prefetch(self) -> None:
        ids_U, tier = self.ids(), self.tiered.tier
        self._ahead.append(self._beside.submit(tier.prefetch, ids_U))

    def expect(self) -> None:
        """Announces a few batches of the next chunk; other actions may come before their rows are loaded."""
        batches, tier = [self.ids() for _ in range(3)], self.tiered.tier

        def announce() -> None:
            tier.begin_chunk()
            for ids_U in batches:
                tier.expect(ids_U)

        self._ahead.append(self._beside.submit(announce))

    def load_expected(self) -> None:
        self._ahead.append(self._beside.submit(self.tiered.tier.load_expected))

    def load_all_expected(self) -> None:
        tier = self.tiered.tier

        def load() -> None:
            while tier.load_expected():
                pass

        self._ahead.append(self._beside.submit(load))

    def settle(self) -> None:
        self.tiered.tier.settle()

    # ---- cuts and checkpoints ----

    def cut(self) -> None:
        """Rows change and move between the tiers while the cut is read."""
        self.end_save()
        with self.plain.cut() as left, self.tiered.cut() as right:
            assert len(left) == len(right)
            self.train()
            self.erase()
            blocks = iter(right)
            first = [next(blocks)] if len(right) else []
            self.train()
            assert assert_same(iter(left), iter([*first, *blocks])) == len(left)

    def save(self) -> None:
        """Begins to write a checkpoint; the calls that follow change rows and move them between the tiers."""
        self.end_save()
        left, right = self.plain.cut(), self.tiered.cut()
        self._saving = left, self._saver.submit(self._write, right)

    def end_save(self) -> None:
        if self._saving is None:
            return
        left, writing = self._saving
        self._saving = None
        with left:
            saved = writing.result(SECONDS)
            assert assert_same(iter(left), saved.rows("rows0")) == len(left)

    def restore(self) -> None:
        """Goes on with a store that takes over the files of a checkpoint."""
        self.end_save()
        saved = self._write(self.tiered.cut())
        self.end_look_ahead()
        self.merges += self.tiered.tier.counts().merges
        self.tiered = self.new_tiered(int(self.random.choice([300, 3000, 30_000])))
        if self.rules:
            self.tiered.lifetimes.restore(saved.rules("rows0"))
        assert self.tiered.adopt(saved.stacks("rows0"))
        assert len(self.tiered) == len(self.plain)

    def _write(self, cut: MemorySnapshot) -> Checkpoint:
        path = Path(mkdtemp(dir=self.folder)) / "saved"
        with cut:
            checkpoint.write(path, {}, {}, {"rows0": cut})
        return Checkpoint.open(path)

    # ---- the end ----

    def end_look_ahead(self) -> None:
        """Raises what failed there."""
        for each in self._ahead:
            each.result(SECONDS)
        self._ahead.clear()

    def assert_alike(self) -> None:
        self.end_save()
        self.end_look_ahead()
        assert assert_same(self.plain.blocks(), self.tiered.blocks()) == len(self.plain)
        assert len(self.plain) == len(self.tiered)
        np.testing.assert_array_equal(self.plain.lifetimes.counts(), self.tiered.lifetimes.counts())

    def close(self) -> None:
        self._beside.shutdown()
        self._saver.shutdown()
