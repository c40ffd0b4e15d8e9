"""The store in memory: what each call does, and what it refuses."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gearshift.embedding.store import (
    CowClip,
    RowAdagrad,
    RowAdam,
    RowBlock,
    RowFTRL,
    RowMomentum,
    RowPart,
    RowSGD,
    RowwiseAdagrad,
)
from gearshift.embedding.table_store import MemoryStore
from gearshift.errors import UserError
from tests.unit.embedding.row_reference import ReferenceStore, reference_rows, rows_of

OPTIMIZERS = [
    RowSGD(lr=0.1, l2=0.01),
    RowMomentum(lr=0.1, l2=0.01),
    RowAdagrad(lr=0.1, initial=0.1, l2=0.01),
    RowwiseAdagrad(lr=0.1, initial=0.1, l2=0.01),
    RowAdam(lr=0.01, l2=0.01),
    RowFTRL(lr=0.1, l1=0.02, l2=0.01),
]
by_name = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)


def one_part(width: int = 16, optimizer=None, **kwargs) -> MemoryStore:
    return MemoryStore([RowPart("embedding", width, optimizer or RowAdagrad())], seed=7, **kwargs)


def ids_of(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def random_ids(n: int, seed: int = 0) -> np.ndarray:
    return np.unique(np.random.default_rng(seed).integers(0, 2**63 - 1, n))


def ones(n: int) -> np.ndarray:
    return np.ones(n, np.uint32)


def gradient(n: int, width: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32)


@by_name
@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("width", [1, 3, 8, 16, 21])
def test_every_optimizer_equals_the_plain_one_bit_for_bit(optimizer, width, portable) -> None:
    parts = [RowPart("linear", 1, RowFTRL(lr=0.2)), RowPart("embedding", width, optimizer, init=0.3)]
    store, reference = MemoryStore(parts, seed=5, portable=portable), ReferenceStore(parts, 5)
    for step in range(12):
        ids = np.arange(step % 3, 40, 1 + step % 4, dtype=np.int64)
        sums = gradient(len(ids), width + 1, seed=step)
        counts = np.full(len(ids), step + 1, np.uint32)
        for s, i in ((store, ids), (reference, ids.tolist())):
            s.push(i, sums, counts, examples=3.0, step=step, lr_scale=1 - step / 20)
    assert rows_of(store.blocks()) == reference_rows(reference)


@by_name
@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("width", [1, 8, 21])
def test_cowclip_equals_the_plain_one_bit_for_bit(optimizer, width, portable) -> None:
    parts = [
        RowPart("linear", 1, optimizer, init=0.3, clip=CowClip(0.2, 0.5)),
        RowPart("embedding", width, optimizer, init=0.3, clip=CowClip(0.5)),
        RowPart("free", 2, optimizer, init=0.3),
    ]
    store, reference = MemoryStore(parts, seed=5, portable=portable), ReferenceStore(parts, 5)
    for step in range(12):
        ids = np.arange(step % 3, 40, 1 + step % 4, dtype=np.int64)
        sums = gradient(len(ids), width + 3, seed=step)
        counts = (1 + ids % 4).astype(np.uint32)
        for s, i in ((store, ids), (reference, ids.tolist())):
            s.push(i, sums, counts, examples=3.0, step=step, lr_scale=1 - step / 20)
    assert rows_of(store.blocks()) == reference_rows(reference)


def test_cowclip_by_hand() -> None:
    """SGD of rate 1, so the step is the gradient: |w| = 0.5, |g| = 10, ids that occur once, thrice and 100 times."""
    store = MemoryStore([RowPart("embedding", 4, RowSGD(1.0), clip=CowClip(ratio=0.2, zeta=1e-5))], seed=1)
    ids = ids_of(1, 2, 3, 4)
    state, none = np.zeros((4, 0), np.float32), np.zeros(4, np.uint32)
    weights = np.full((4, 4), 0.25, np.float32)
    weights[3] = 0  # born at zero: it may move by zeta's length
    store.load(RowBlock(ids, weights, state, none, none, none))
    counts = np.array([1, 3, 100, 1], np.uint32)
    store.push(ids, np.full((4, 4), 20, np.float32), counts, examples=4, step=1)
    moved = np.linalg.norm(weights - store.pull(ids), axis=1)
    assert moved == pytest.approx([0.2 * 0.5, 0.2 * 3 * 0.5, 10.0, 0.2 * 0.2 * 2 * 1e-5], rel=1e-4)


def test_cowclip_refuses_what_would_stop_every_row() -> None:
    for bad in ({"ratio": 0.0}, {"ratio": float("nan")}, {"zeta": -1.0}):
        with pytest.raises(UserError, match="a ratio above 0 and a zeta of 0 or more"):
            CowClip(**bad)


def test_adam_corrects_bias_by_the_rows_own_updates() -> None:
    store = one_part(1, RowAdam(lr=0.1))
    store.push(ids_of(1), np.full((1, 1), 5, np.float32), ones(1), examples=1, step=1)
    before = store.pull(ids_of(2)).copy()
    store.push(ids_of(2), np.full((1, 1), 5, np.float32), ones(1), examples=1, step=1000)
    assert store.pull(ids_of(2)) == pytest.approx(before - 0.1, abs=1e-5)  # a first step is one rate long


def test_adam_agrees_with_the_formula_after_very_many_updates() -> None:
    part = RowPart("embedding", 4, RowAdam(lr=0.1, beta2=0.5))
    store, reference = MemoryStore([part], seed=1), ReferenceStore([part], 1)
    state = np.full((1, 8), 0.5, np.float32)
    block = RowBlock(ids_of(9), np.ones((1, 4), np.float32), state, ones(1), ones(1), ones(1) * 400_000)
    store.load(block)
    reference.pull([9])
    reference.rows[9].weights[0][:] = 1
    reference.rows[9].state[0][:] = 0.5
    reference.rows[9].updates = 400_000
    for s, i in ((store, ids_of(9)), (reference, [9])):
        s.push(i, np.ones((1, 4), np.float32), ones(1), examples=1, step=1)
    assert np.array_equal(store.peek(ids_of(9)), reference.peek([9]))


def test_a_row_is_born_the_same_in_any_order_part_of_a_call_and_store() -> None:
    ids = random_ids(5000)
    a, b = one_part(), one_part(portable=True)
    rows = a.pull(ids)
    b.pull(ids[::-2].copy())
    assert np.array_equal(b.pull(ids, threads=2), rows)
    assert np.array_equal(one_part().peek(ids), rows)
    assert np.array_equal(rows[:3], ReferenceStore(list(a.parts), 7).pull(ids[:3].tolist()))
    other_seed = MemoryStore(a.parts, seed=8).pull(ids)
    assert not np.any(np.all(other_seed == rows, axis=1))


def test_first_values_are_uniform() -> None:
    values = MemoryStore([RowPart("embedding", 16, RowSGD(), init=0.5)], seed=3).pull(np.arange(20_000))
    assert np.abs(values).max() < 0.5
    histogram, _ = np.histogram(values, bins=20, range=(-0.5, 0.5))
    expected = values.size / 20
    assert np.sum((histogram - expected) ** 2 / expected) < 60  # chi-square, 19 degrees: p < 1e-5
    assert np.abs(np.corrcoef(values.T) - np.eye(16)).max() < 0.05


def test_peek_creates_nothing_and_contains_tells() -> None:
    store = one_part()
    store.pull(ids_of(1, 2))
    store.peek(ids_of(2, 3))
    assert len(store) == 2
    assert store.contains(ids_of(3, 2, 1)).tolist() == [False, True, True]


def test_erased_rows_are_forgotten_and_their_place_is_used_again() -> None:
    store = one_part()
    ids = random_ids(20_000)
    born = store.pull(ids)
    store.push(ids, gradient(len(ids), 16), ones(len(ids)), examples=1, step=4)
    full = store.memory_bytes()
    for _ in range(5):
        assert store.erase(ids[::2].copy()) == len(ids[::2])
        assert store.erase(ids[::2].copy()) == 0
        assert len(store) == len(ids) - len(ids[::2])
        assert np.array_equal(store.pull(ids)[::2], born[::2])
    assert not np.any(store.pull(ids)[1::2] == born[1::2])
    assert store.memory_bytes() < 1.05 * full
    rows = rows_of(store.blocks())
    assert {rows[i][2:] for i in ids[::2].tolist()} == {(0, 0, 0)}


def test_growth_keeps_every_row() -> None:
    store = one_part(8)
    ids = random_ids(300_000)
    for chunk in np.array_split(ids, 50):
        store.push(chunk, np.full((len(chunk), 8), 2, np.float32), ones(len(chunk)), examples=2, step=1)
    assert len(store) == len(ids)
    blocks = list(store.blocks())
    assert np.array_equal(np.sort(np.concatenate([b.ids_U for b in blocks])), ids)
    assert np.all(np.concatenate([b.state_US for b in blocks]) == 1)


def test_small_numbers_and_shifted_numbers_spread_over_the_partitions() -> None:
    for ids in (np.arange(20_000), np.arange(20_000) << 40):
        store = one_part(1)
        store.pull(ids.astype(np.int64))
        sizes = [len(b.ids_U) for b in store.blocks()]
        assert len(sizes) == 256 and max(sizes) < 150


@by_name
def test_export_and_import_give_the_same_store(optimizer) -> None:
    store, copy = one_part(16, optimizer), one_part(16, optimizer)
    ids = random_ids(3000)
    store.push(ids, gradient(len(ids), 16), ones(len(ids)) * 3, examples=4, step=2)
    copy.pull(ids[:100].copy())
    for block in store.blocks():
        copy.load(block)
    assert rows_of(copy.blocks()) == rows_of(store.blocks())
    for s in (store, copy):
        s.push(ids, gradient(len(ids), 16, seed=2), ones(len(ids)), examples=4, step=3)
    assert np.array_equal(copy.pull(ids), store.pull(ids))


@by_name
def test_any_number_of_threads_gives_the_same_bits(optimizer) -> None:
    ids = random_ids(30_000)
    a, b = one_part(16, optimizer), one_part(16, optimizer)
    for step in range(3):
        sums = gradient(len(ids), 16, seed=step)
        a.push(ids, sums, ones(len(ids)), examples=2, step=step)
        b.push(ids, sums, ones(len(ids)), examples=2, step=step, threads=3)
    assert np.array_equal(a.pull(ids), b.pull(ids, threads=2))


def test_an_id_given_twice_is_moved_twice_in_order() -> None:
    part = RowPart("embedding", 16, RowAdagrad())
    store, reference = MemoryStore([part], seed=7), ReferenceStore([part], 7)
    ids = ids_of(5, 5, 6, 5)
    for s, i in ((store, ids), (reference, ids.tolist())):
        s.push(i, gradient(4, 16), ones(4), examples=1, step=1)
    assert rows_of(store.blocks()) == reference_rows(reference)
    assert np.array_equal(store.pull(ids), reference.pull(ids.tolist()))


def test_many_threads_on_one_store_lose_no_update() -> None:
    store = MemoryStore([RowPart("embedding", 16, RowSGD(lr=1.0), init=0.0)], seed=0)
    universe, calls, callers = np.arange(4000, dtype=np.int64), 60, 4
    pushes = np.zeros(len(universe), np.int64)
    lock = threading.Lock()

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for call in range(calls):
            ids = rng.permutation(universe)[: rng.integers(1, 3000)]
            store.pull(ids)
            store.push(ids, np.full((len(ids), 16), -1, np.float32), ones(len(ids)), examples=1, step=call)
            with lock:
                pushes[ids] += 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(callers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert np.array_equal(store.pull(universe), np.repeat(pushes[:, None], 16, axis=1).astype(np.float32))
    block_touches = {i: row[2] for i, row in rows_of(store.blocks()).items()}
    assert [block_touches[i] for i in universe.tolist()] == pushes.tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("row", [0, 57, 99])
@pytest.mark.parametrize("column", [0, 7, 18])
@pytest.mark.parametrize("portable", [False, True])
def test_a_gradient_that_is_not_finite_changes_nothing(bad, row, column, portable) -> None:
    store = one_part(19, portable=portable)
    ids = random_ids(100)
    before = store.pull(ids)
    sums = gradient(len(ids), 19)
    sums[row, column] = bad
    with pytest.raises(ValueError, match=f"id {ids[row]} .*column {column}"):
        store.push(ids, sums, ones(len(ids)), examples=1, step=1)
    assert np.array_equal(store.pull(ids), before)
    assert all(r[2:] == (0, 0, 0) for r in rows_of(store.blocks()).values())


def test_ftrl_is_left_alone_at_rate_0() -> None:
    store = one_part(4, RowFTRL())
    store.push(ids_of(1), np.ones((1, 4), np.float32), ones(1), examples=1, step=1, lr_scale=0.0)
    assert np.all(store.pull(ids_of(1)) == 0)


def test_counts_stop_at_their_largest_value() -> None:
    store = one_part(1)
    most = np.full(1, 2**32 - 1, np.uint32)
    store.load(RowBlock(ids_of(1), *np.zeros((2, 1, 1), np.float32), most, most, most))
    store.push(ids_of(1), np.ones((1, 1), np.float32), ones(1) * 5, examples=1, step=1)
    assert rows_of(store.blocks())[1][2:] == (2**32 - 1, 1, 2**22 - 1)


def test_empty_calls_are_calls() -> None:
    store = one_part(4)
    none = ids_of()
    assert store.pull(none).shape == (0, 4)
    store.push(none, np.empty((0, 4), np.float32), ones(0), examples=1, step=1)
    assert store.erase(none) == 0 and len(store) == 0 and not list(store.blocks())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda s: s.pull([1, 2]), TypeError, "ids must be a numpy array, not list"),
        (lambda s: s.pull(np.array([1], np.int32)), TypeError, "ids must be int64, not int32"),
        (lambda s: s.pull(np.array([1.5])), TypeError, "ids must be int64, not float64"),
        (
            lambda s: s.pull(np.zeros((2, 2), np.int64)),
            ValueError,
            r"ids must have shape \(n\), not \(2, 2\)",
        ),
        (lambda s: s.pull(np.arange(8)[::2]), ValueError, "ids must be C-contiguous"),
        (lambda s: s.pull(ids_of(4, -3)), ValueError, r"ids must be 0 or more .*ids\[1\] is -3"),
        (
            lambda s: s.pull(ids_of(1), np.empty((2, 4), np.float32)),
            ValueError,
            r"out must have shape \(1, 4\)",
        ),
        (lambda s: s.pull(ids_of(1), np.empty((1, 4))), TypeError, "out must be float32, not float64"),
        (
            lambda s: s.pull(ids_of(1), np.empty((1, 8), np.float32)[:, ::2]),
            ValueError,
            "out must be C-contiguous",
        ),
        (
            lambda s: s.pull(ids_of(1), np.broadcast_to(np.float32(0), (1, 4)).copy(order="F")[:, ::-1]),
            ValueError,
            "out must be C-contiguous",
        ),
        (
            lambda s: s.push(ids_of(1), np.ones((1, 3), np.float32), ones(1), examples=1, step=1),
            ValueError,
            r"sums must have shape \(1, 4\), not \(1, 3\)",
        ),
        (
            lambda s: s.push(ids_of(1), np.ones((1, 4), np.float32), ones(2), examples=1, step=1),
            ValueError,
            r"counts must have shape \(1\)",
        ),
        (
            lambda s: s.push(ids_of(1), np.ones((1, 4), np.float32), ones(1), examples=0, step=1),
            ValueError,
            "examples must be a positive number",
        ),
        (
            lambda s: s.push(ids_of(1), np.ones((1, 4), np.float32), ones(1), examples=1, step=-1),
            ValueError,
            "step must be between",
        ),
        (
            lambda s: s.push(
                ids_of(1), np.ones((1, 4), np.float32), ones(1), examples=1, step=1, lr_scale=np.nan
            ),
            ValueError,
            "lr_scale must be 0 or more",
        ),
    ],
)
def test_wrong_arguments_are_named(call, error, words) -> None:
    store = one_part(4)
    with pytest.raises(error, match=words):
        call(store)
    assert len(store) == 0


def test_a_read_only_output_is_refused() -> None:
    out = np.empty((1, 4), np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        one_part(4).pull(ids_of(1), out)


def test_wrong_parts_are_named() -> None:
    part = RowPart("a", 4, RowSGD())
    for parts, words in (
        ([], "at least one"),
        ([part, part], "different names"),
        ([RowPart("a", 0, RowSGD())], "'a': width must be 1"),
    ):
        with pytest.raises(ValueError, match=words):
            MemoryStore(parts, seed=0)


@pytest.mark.parametrize("width", [1, 10, 16, 17, 64])
def test_memory_is_counted_and_stays_near_what_the_rows_need(width) -> None:
    store = one_part(width)
    ids = np.arange(400_000, dtype=np.int64)
    store.pull(ids)
    least = (2 * width * 4 + 12 + 16) * len(ids)  # weights, state, counts, slots
    assert least < store.memory_bytes() < 1.25 * least + 256 * 100_000


def test_a_schedule_does_not_move_ftrl_rows_that_learn_nothing() -> None:
    store = MemoryStore([RowPart("linear", 1, RowFTRL(lr=0.5))], seed=1)
    ids, one = np.array([7]), np.ones(1, np.uint32)
    store.push(ids, np.full((1, 1), 3.0, np.float32), one, examples=1, step=1)
    before = store.pull(ids)
    store.push(ids, np.zeros((1, 1), np.float32), one, examples=1, step=2, lr_scale=0.1)
    np.testing.assert_array_equal(store.pull(ids), before)
