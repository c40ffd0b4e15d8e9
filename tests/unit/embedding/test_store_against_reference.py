"""Random operations on a store equal those on a plain dict of rows, bit for bit, including cuts.

A cut may stay open over many steps, be read partition by partition between pushes, or be closed unread; what
it shows must be the dict as it was when the cut was taken.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gearshift.embedding.sharded import ShardedStore
from gearshift.embedding.store import (
    RowAdagrad,
    RowAdam,
    RowFTRL,
    RowMomentum,
    RowPart,
    RowSGD,
    RowwiseAdagrad,
)
from gearshift.embedding.table_store import MemoryStore
from tests.unit.embedding.row_reference import ReferenceStore, reference_rows, rows_of

rates = st.sampled_from([0.01, 0.1, 0.5])
decays = st.sampled_from([0.0, 0.01])
optimizers = st.one_of(
    st.builds(RowSGD, lr=rates, l2=decays),
    st.builds(RowMomentum, lr=rates, momentum=st.sampled_from([0.0, 0.9]), l2=decays),
    st.builds(RowAdagrad, lr=rates, initial=st.sampled_from([0.0, 0.1]), l2=decays),
    st.builds(RowwiseAdagrad, lr=rates, initial=st.sampled_from([0.0, 0.1]), l2=decays),
    st.builds(RowAdam, lr=rates, beta1=st.sampled_from([0.0, 0.9]), l2=decays),
    st.builds(RowFTRL, lr=rates, beta=st.sampled_from([0.5, 1.0]), l1=decays, l2=decays),
)
widths = st.sampled_from([1, 2, 7, 8, 10, 16, 20])
inits = st.sampled_from([0.0, 0.01, 1.0])
ids_lists = st.lists(st.integers(0, 60), max_size=40, unique=True)
threads = st.sampled_from([1, 2])


class StoreBesideDict(RuleBasedStateMachine):
    @initialize(
        columns=st.lists(st.tuples(widths, optimizers, inits), min_size=1, max_size=3),
        seed=st.integers(0, 2**64 - 1),
        portable=st.booleans(),
        shards=st.sampled_from([1, 1, 2, 3]),
    )
    def begin(self, columns, seed, portable, shards) -> None:
        parts = [RowPart(f"part{n}", *column) for n, column in enumerate(columns)]
        stores = [MemoryStore(parts, seed=seed, portable=portable) for _ in range(shards)]
        self.store = stores[0] if shards == 1 else ShardedStore(stores)
        self.reference = ReferenceStore(parts, seed)
        self.step = 0
        self.cut = None

    @rule(ids=ids_lists, threads=threads)
    def pull(self, ids, threads) -> None:
        assert np.array_equal(self.store.pull(as_ids(ids), threads=threads), self.reference.pull(ids))

    @rule(ids=ids_lists)
    def peek(self, ids) -> None:
        assert np.array_equal(self.store.peek(as_ids(ids)), self.reference.peek(ids))

    @rule(
        ids=st.lists(st.integers(0, 60), max_size=40),  # repeated ids too
        noise=st.integers(0, 2**32),
        examples=st.sampled_from([1, 3, 4096]),
        lr_scale=st.sampled_from([0.0, 0.5, 1.0]),
        threads=threads,
    )
    def push(self, ids, noise, examples, lr_scale, threads) -> None:
        rng = np.random.default_rng(noise)
        sums = rng.normal(scale=rng.choice([0.1, 100]), size=(len(ids), self.store.width)).astype(np.float32)
        counts = rng.integers(1, 9, len(ids)).astype(np.uint32)
        self.step += 1
        how = {"examples": examples, "step": self.step, "lr_scale": lr_scale}
        self.store.push(as_ids(ids), sums, counts, **how, threads=threads)
        self.reference.push(ids, sums, counts, **how)

    @rule(ids=ids_lists)
    def erase(self, ids) -> None:
        assert self.store.erase(as_ids(ids)) == self.reference.erase(ids)

    @rule(ids=ids_lists)
    def contains(self, ids) -> None:
        assert self.store.contains(as_ids(ids)).tolist() == [i in self.reference.rows for i in ids]

    @rule(ids=ids_lists)
    def last_steps(self, ids) -> None:
        known = [self.reference.rows[i].last_step if i in self.reference.rows else 0 for i in ids]
        assert self.store.last_steps(as_ids(ids)).tolist() == known

    @rule(seed=st.integers(0, 9), ids=ids_lists)
    def load_rows_of_another_store(self, seed, ids) -> None:
        other = MemoryStore(self.store.parts, seed=seed)
        other.push(
            as_ids(ids),
            np.ones((len(ids), other.width), np.float32),
            np.ones(len(ids), np.uint32),
            examples=2,
            step=9,
        )
        twin = ReferenceStore(self.reference.parts, seed)
        twin.push(ids, np.ones((len(ids), other.width), np.float32), [1] * len(ids), examples=2, step=9)
        for block in other.blocks():
            self.store.load(block)
        self.reference.rows.update(twin.rows)

    @precondition(lambda self: self.cut is None)
    @rule()
    def take_cut(self) -> None:
        self.cut = self.store.cut()
        self.blocks = iter(self.cut)
        self.seen: list = []
        self.then = self.reference.copy()
        assert len(self.cut) == len(self.then.rows)

    @precondition(lambda self: self.cut is not None)
    @rule(count=st.integers(1, 30))
    def read_some_of_the_cut(self, count) -> None:
        self.seen += islice(self.blocks, count)

    @precondition(lambda self: self.cut is not None)
    @rule()
    def read_the_cut_to_its_end(self) -> None:
        self.seen += self.blocks
        self.cut.close()
        self.cut = None
        assert rows_of(self.seen) == reference_rows(self.then)

    @precondition(lambda self: self.cut is not None)
    @rule()
    def close_the_cut_unread(self) -> None:
        self.cut.close()
        self.cut = None

    @precondition(lambda self: self.cut is not None)
    @rule()
    def a_second_cut_is_refused(self) -> None:
        with pytest.raises(ValueError, match="a cut is open already"):
            self.store.cut()

    @invariant()
    def all_rows_are_equal(self) -> None:
        if hasattr(self, "store"):
            assert len(self.store) == len(self.reference.rows)
            assert rows_of(self.store.blocks()) == reference_rows(self.reference)


def as_ids(ids: list[int]) -> np.ndarray:
    return np.array(ids, np.int64)


TestStoreBesideDict = StoreBesideDict.TestCase
TestStoreBesideDict.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
