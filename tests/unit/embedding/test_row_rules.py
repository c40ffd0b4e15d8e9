"""Admission and expiry of rows: the same in memory, with a tiny budget, on shards, and after a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gearshift.data.row_lifetime import Expire
from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.horizons import Horizons
from gearshift.embedding.row_rules import COUNTS, RowRule
from gearshift.embedding.sharded import ShardedStore
from gearshift.embedding.store import RowAdagrad, RowPart, RowStore
from gearshift.embedding.table_store import MemoryStore
from gearshift.parameters import checkpoint
from gearshift.parameters.checkpoint import Checkpoint

PARTS = (RowPart("embedding", 4, RowAdagrad(lr=0.1), 0.05), RowPart("linear", 1, RowAdagrad(lr=0.1), 0.0))
RULES = (
    RowRule(),
    RowRule("plain"),
    RowRule("counted", min_count=3),
    RowRule("drawn", admit=0.3),
    RowRule("short_lived", expire=Expire(5), period=0),
    RowRule("rare", min_count=2, expire=Expire(5, occurrences_below=6), period=0),
    RowRule("small", expire=Expire(9, norm_below=0.12), period=1),
)
IDS = np.arange(1, 601) * 7919


def tables_of(ids_U: np.ndarray) -> np.ndarray:
    return (ids_U % 6 + 1).astype(np.uint16)


def store_of(kind: str, folder: Path, rules: Sequence[RowRule] = RULES) -> RowStore:
    def one(name: str, hot_rows: int = 0) -> MemoryStore:
        tier = ColdTier(folder / name, 64 << 20, hot_rows=hot_rows) if hot_rows else None
        return MemoryStore(PARTS, seed=3, rules=rules, tier=tier)

    match kind:
        case "sharded":
            return ShardedStore([one("") for _ in range(3)])
        case "tiny":
            return one("tiny", 256)
        case "tiny shards":
            return ShardedStore([one(f"tiny{s}", 256) for s in range(2)])
        case _:
            return one("")


KINDS = ("whole", "sharded", "tiny", "tiny shards")


def content(store: RowStore) -> dict[int, tuple[Any, ...]]:
    return {
        int(row[0]): tuple(np.asarray(value).tobytes() for value in row[1:])
        for block in store.blocks()
        for row in zip(*vars(block).values(), strict=True)
    }


def cut_content(store: RowStore) -> dict[int, tuple[Any, ...]]:
    with closing_cut(store) as cut:
        rows = {
            int(row[0]): tuple(np.asarray(value).tobytes() for value in row[1:])
            for block in cut
            for row in zip(*vars(block).values(), strict=True)
        }
        assert len(cut) == len(rows)
    return rows


@contextmanager
def closing_cut(store: RowStore) -> Iterator[Any]:
    cut = store.cut()
    try:
        yield cut
    finally:
        cut.close()


class Trainer:
    """The same pushes for several stores; they depend on the seed and the step only."""

    def __init__(self, stores: Sequence[RowStore], seed: int) -> None:
        self.stores, self.seed, self.step = stores, seed, 0

    def push(self, count: int) -> None:
        self.step += 1
        random = np.random.default_rng((self.seed, self.step))
        ids_U = random.choice(IDS, count, replace=False)
        sums_UW = random.normal(0, 1, (count, 5)).astype(np.float32)
        counts_U = random.integers(1, 3, count).astype(np.uint32)
        expected = self.stores[0].peek(ids_U)
        for store in self.stores:
            assert np.array_equal(store.pull(ids_U, tables_U=tables_of(ids_U)), expected)
            store.push(ids_U, sums_UW, counts_U, examples=8, step=self.step, tables_U=tables_of(ids_U))

    def move_horizons(self) -> None:
        steps = (0, max(0, self.step - 5)), (1, max(0, self.step - 9))
        for store in self.stores:
            store.lifetimes.move_horizons(Horizons(self.step + 1, steps))

    def assert_alike(self) -> None:
        first, *others = self.stores
        expected = content(first)
        assert len(first) == len(expected)
        for store in others:
            assert content(store) == expected and len(store) == len(expected)
            assert np.array_equal(store.lifetimes.counts(), first.lifetimes.counts())
            assert np.array_equal(store.contains(IDS), first.contains(IDS))
            assert np.array_equal(store.peek(IDS), first.peek(IDS))


ACTIONS = st.lists(
    st.sampled_from(["push", "push", "push", "push a lot", "move", "move", "cut", "settle", "erase"]),
    min_size=5,
    max_size=40,
)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(actions=ACTIONS, seed=st.integers(0, 1000))
def test_memory_and_shards_change_nothing(actions: list[str], seed: int) -> None:
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        trainer = Trainer([store_of(kind, Path(folder)) for kind in KINDS], seed)
        for action in actions:
            match action:
                case "push" | "push a lot":
                    trainer.push(20 if action == "push" else 400)
                case "move":
                    trainer.move_horizons()
                case "cut":
                    assert all(cut_content(s) == content(trainer.stores[0]) for s in trainer.stores)
                case "settle":
                    for store in trainer.stores:
                        for one in getattr(store, "shards", (store,)):
                            if one.tier is not None:
                                one.tier.settle()
                case "erase":
                    some = np.ascontiguousarray(IDS[:: trainer.step % 50 + 20])
                    assert len({store.erase(some) for store in trainer.stores}) == 1
        trainer.assert_alike()


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_gets_a_row_at_its_third_occurrence(tmp_path: Path, kind: str) -> None:
    store = store_of(kind, tmp_path)
    ids_U, table_U, one_U = IDS[:1], np.full(1, 2, np.uint16), np.ones(1, np.uint32)
    born = store.peek(ids_U)
    for step in (1, 2):
        store.push(ids_U, np.ones((1, 5), np.float32), one_U, examples=1, step=step, tables_U=table_U)
        assert not store.contains(ids_U)[0]
        assert np.array_equal(store.pull(ids_U, tables_U=table_U), born)
    store.push(ids_U, np.ones((1, 5), np.float32), one_U, examples=1, step=3, tables_U=table_U)
    assert store.contains(ids_U)[0] and not np.array_equal(store.peek(ids_U), born)
    assert store.lifetimes.counts()[2].tolist() == [1, 2, 2, 0]


def test_the_probability_of_admission_is_that_of_an_occurrence() -> None:
    store = MemoryStore(PARTS, seed=3, rules=(RowRule(), RowRule("drawn", admit=0.2)))
    ids_U = np.arange(20_000)
    for step, occurrences in ((1, 1), (2, 3)):
        some_U = ids_U + step * 1_000_000
        counts_U = np.full(len(some_U), occurrences, np.uint32)
        tables_U = np.ones(len(some_U), np.uint16)
        sums_UW = np.ones((len(some_U), 5), np.float32)
        store.push(some_U, sums_UW, counts_U, examples=1, step=step, tables_U=tables_U)
        assert store.contains(some_U).mean() == pytest.approx(1 - 0.8**occurrences, abs=0.015)


def test_a_row_expires_and_comes_back_as_a_new_one(tmp_path: Path) -> None:
    for kind in KINDS:
        store = store_of(kind, tmp_path / kind)
        ids_U, table_U, one_U = IDS[:1], np.full(1, 4, np.uint16), np.ones(1, np.uint32)
        born, ones = store.peek(ids_U), np.ones((1, 5), np.float32)
        store.push(ids_U, ones, one_U, examples=1, step=10, tables_U=table_U)
        once = store.peek(ids_U)
        store.lifetimes.move_horizons(Horizons(11, ((0, 0), (1, 0))))
        assert store.contains(ids_U)[0]
        store.lifetimes.move_horizons(Horizons(20, ((0, 11), (1, 0))))
        assert not store.contains(ids_U)[0] and len(store) == 0 and not list(store.blocks())
        assert np.array_equal(store.pull(ids_U, tables_U=table_U), born)
        assert store.erase(ids_U) == 0
        store.push(ids_U, ones, one_U, examples=1, step=21, tables_U=table_U)
        assert np.array_equal(store.peek(ids_U), once)  # not what was learned twice
        (block,) = store.blocks()
        assert (block.touches_U[0], block.last_step_U[0], block.updates_U[0]) == (1, 21, 1)
        assert dict(zip(COUNTS, store.lifetimes.counts()[4].tolist(), strict=True))["expired"] == 1


def test_a_row_that_has_ended_does_not_come_back_from_an_older_file(tmp_path: Path) -> None:
    """The older record is too large to expire; the newer one, which has ended, was never written."""
    rules = (RowRule(), RowRule("small", expire=Expire(5, norm_below=0.5), period=0))
    store = MemoryStore(PARTS, seed=3, rules=rules, tier=ColdTier(tmp_path, 64 << 20, hot_rows=256))
    ids_U, ones_U = IDS, np.ones(len(IDS), np.uint32)
    tables_U = np.ones(len(IDS), np.uint16)
    large = np.full((len(IDS), 5), 1.0, np.float32)
    for step in range(1, 12):
        store.push(ids_U, large, ones_U, examples=1, step=step, tables_U=tables_U)
    grown = np.linalg.norm(store.peek(ids_U)[:, :4], axis=1)
    assert (grown > 0.5).all()
    while (np.linalg.norm(store.peek(ids_U)[:, :4], axis=1) > 0.4).any():
        step += 1
        store.push(ids_U, -large, ones_U, examples=1, step=step, tables_U=tables_U)
    store.lifetimes.move_horizons(Horizons(step + 1, ((0, 0),)))
    store.lifetimes.move_horizons(Horizons(step + 9, ((0, step + 1),)))
    assert len(store) == 0
    for later in range(300):  # sweeps
        other = np.array([10**12 + later])
        store.push(other, large[:1], ones_U[:1], examples=1, step=step + 10, tables_U=tables_U[:1])
    store.tier.settle()
    assert not store.contains(ids_U).any() and len(store) == 300


def test_a_file_whose_rows_have_ended_is_merged_by_itself(tmp_path: Path) -> None:
    """It is the only file of its group: a checkpoint was taken over, and nothing is evicted afterwards."""
    rules = (RowRule(), RowRule("short_lived", expire=Expire(5), period=0))
    ids_U = np.arange(30_000)
    tables_U, ones_U = np.ones(len(ids_U), np.uint16), np.ones(len(ids_U), np.uint32)
    tier = ColdTier(tmp_path, 64 << 20, hot_rows=1 << 20)
    store = MemoryStore(PARTS, seed=3, rules=rules, tier=tier)
    for step, some in ((1, slice(None)), (9, slice(0, 9_000))):
        gradients = np.ones((len(ids_U[some]), 5), np.float32)
        store.push(ids_U[some], gradients, ones_U[some], examples=1, step=step, tables_U=tables_U[some])
        store.lifetimes.move_horizons(Horizons(step + 1, ((0, 0),)))
    with store.cut() as cut:
        checkpoint.write(tmp_path / "saved", {}, {}, {"rows0": cut})
    saved = Checkpoint.open(tmp_path / "saved")
    restored = MemoryStore(PARTS, seed=3, rules=rules, tier=ColdTier(tmp_path, 1 << 20, hot_rows=256))
    restored.lifetimes.restore(saved.rules("rows0"))
    assert restored.adopt(saved.stacks("rows0"))
    assert restored.tier.counts().files <= 16
    restored.lifetimes.move_horizons(Horizons(11, ((0, 2),)))
    restored.tier.settle()
    assert len(restored) == 9_000 and restored.tier.counts().stored_rows <= 9_000


def test_counting_takes_few_ids_for_known_ones() -> None:
    """Stated: an id that has not occurred is taken for one that has with a probability of at most 1 in 256."""
    store = MemoryStore(PARTS, seed=3, rules=(RowRule(), RowRule("counted", min_count=2)))
    ids = np.random.default_rng(1).integers(0, 2**62, 1_500_000)
    for step, some_U in enumerate(np.array_split(ids, 100)):
        ones, ones_U = np.ones((len(some_U), 5), np.float32), np.ones(len(some_U), np.uint32)
        tables_U = ones_U.astype(np.uint16)
        store.push(some_U, ones, ones_U, examples=1, step=step + 1, tables_U=tables_U)
    assert 0 < len(store) / len(ids) < 1 / 256
    assert store.memory_bytes() < 40 << 20


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    before=st.integers(3, 20),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
    seed=st.integers(0, 99),
)
def test_a_checkpoint_continues_as_if_nothing_had_happened(
    before: int, kinds: tuple[str, str], seed: int
) -> None:
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        trainer = Trainer([store_of("whole", folder), store_of(kinds[0], folder / "a")], seed)
        for step in range(before):
            trainer.push(150)
            if step % 2:
                trainer.move_horizons()
        with closing_cut(trainer.stores[1]) as cut:
            trainer.push(200)  # what comes after the cut is not in it
            checkpoint.write(folder / "saved", {}, {}, {"rows0": cut})
        opened = Checkpoint.open(folder / "saved")
        restored = store_of(kinds[1], folder / "b")
        restored.lifetimes.restore(opened.rules("rows0"))
        if not (stacks := opened.stacks("rows0")) or not restored.adopt(stacks):
            for block in opened.rows("rows0"):
                restored.load(block)
        again = Trainer([restored], seed)
        again.step = before
        again.push(200)
        trainer.stores = [trainer.stores[0], restored]
        for step in range(12):
            trainer.push(100)
            if step % 3 == 0:
                trainer.move_horizons()
        trainer.assert_alike()


def test_a_store_without_rules_has_none() -> None:
    store = MemoryStore(PARTS, seed=3)
    store.lifetimes.move_horizons(Horizons(5, ((0, 3),)))
    assert store.lifetimes.counts().shape == (0, len(COUNTS))
