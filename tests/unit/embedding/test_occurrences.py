"""The worker's dedup, expand and sum against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gearshift._core import Occurrences


def zipf_ids(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).zipf(1.2, n).astype(np.int64) * 0x9E3779B97F4A7C1 % (2**63 - 1)


def first_occurrence_order(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    unique, first, inverse, counts = np.unique(
        ids, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return unique[order], counts[order], rank[inverse]


def sums_in_order(grads: np.ndarray, inverse: np.ndarray, unique: int) -> np.ndarray:
    out = np.zeros((unique, grads.shape[1]), np.float32)
    seen = np.zeros(unique, bool)
    for g, u in zip(grads, inverse, strict=True):
        out[u] = out[u] + g if seen[u] else g
        seen[u] = True
    return out


@given(st.lists(st.one_of(st.integers(0, 20), st.integers(0, 2**63 - 1)), max_size=200))
def test_ids_are_unique_in_the_order_of_their_first_occurrence(values) -> None:
    ids = np.array(values, np.int64)
    index = Occurrences(ids)
    unique, counts, inverse = first_occurrence_order(ids)
    assert np.array_equal(index.unique_U, unique)
    assert np.array_equal(index.counts_U, counts)
    assert index.unique_U.dtype == np.int64 and index.counts_U.dtype == np.uint32 and len(index) == len(ids)
    rows = np.arange(len(unique), dtype=np.float32)[:, None].copy()
    out = np.empty((len(ids), 1), np.float32)
    if len(ids):
        index.expand(rows, 0, 1, out)
    assert np.array_equal(out[:, 0], inverse)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    ("width", "begin", "end"), [(1, 0, 1), (17, 1, 17), (17, 0, 1), (16, 0, 16), (40, 3, 35), (9, 2, 9)]
)
def test_expand_and_sum_equal_numpy_for_any_number_of_threads(width, begin, end, threads) -> None:
    ids = zipf_ids(40_000)
    index = Occurrences(ids)
    _, _, inverse = first_occurrence_order(ids)
    unique = len(index.unique_U)
    rng = np.random.default_rng(1)

    rows = rng.normal(size=(unique, width)).astype(np.float32)
    out = np.empty((len(ids), end - begin), np.float32)
    index.expand(rows, begin, end, out, threads)
    assert np.array_equal(out, rows[inverse, begin:end])

    grads = rng.normal(size=(len(ids), end - begin)).astype(np.float32)
    sums = np.full((unique, width), 77, np.float32)
    index.sum(grads, begin, end, sums, threads)
    assert np.array_equal(sums[:, begin:end], sums_in_order(grads, inverse, unique))
    assert np.all(np.delete(sums, np.s_[begin:end], axis=1) == 77)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("width", [1, 5, 16])
def test_sum_tells_whether_all_is_finite(bad: float, threads: int, width: int) -> None:
    index = Occurrences(zipf_ids(50_000))
    grads = np.full((50_000, width), 3e38, np.float32)
    grads[1::2] = -3e38
    sums = np.empty((len(index.unique_U), width), np.float32)
    assert not index.sum(grads * np.float32(1e-6), 0, width, sums, threads)  # finite, and too large to square
    grads *= 1e-24
    assert index.sum(grads, 0, width, sums, threads)
    for place in (0, 31_234, 49_999):
        grads[place, -1], kept = bad, grads[place, -1]
        assert not index.sum(grads, 0, width, sums, threads)
        grads[place, -1] = kept
    assert index.sum(grads, 0, width, sums, threads)


def test_one_id_everywhere_and_every_id_once() -> None:
    for ids in (np.zeros(30_000, np.int64), np.arange(30_000, dtype=np.int64) << 33):
        index = Occurrences(ids)
        grads = np.ones((len(ids), 16), np.float32)
        sums = np.empty((len(index.unique_U), 16), np.float32)
        index.sum(grads, 0, 16, sums, 2)
        assert np.array_equal(sums[:, 0], index.counts_U)


def test_views_stay_valid_after_the_next_batches() -> None:
    ids = zipf_ids(5000)
    unique = Occurrences(ids).unique_U  # the view keeps its owner alive
    others = [Occurrences(zipf_ids(5000, seed)) for seed in range(1, 5)]
    assert np.array_equal(unique, first_occurrence_order(ids)[0])
    assert all(len(other) == 5000 for other in others)


def test_views_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Occurrences(np.arange(3)).unique_U[0] = 1


def test_wrong_shapes_and_types_are_refused() -> None:
    index = Occurrences(np.array([1, 2, 1], np.int64))
    rows, out = np.zeros((2, 4), np.float32), np.zeros((3, 2), np.float32)
    with pytest.raises(ValueError, match="rows of rows is 3, but must be 2"):
        index.expand(np.zeros((3, 4), np.float32), 0, 2, out)
    with pytest.raises(ValueError, match="columns of out is 2, but must be 3"):
        index.expand(rows, 0, 3, out)
    with pytest.raises(ValueError, match=r"columns \[3, 5\) are not inside a row of 4"):
        index.expand(rows, 3, 5, out)
    with pytest.raises(ValueError, match="rows of grads is 2, but must be 3"):
        index.sum(np.zeros((2, 2), np.float32), 0, 2, rows)
    with pytest.raises(TypeError):
        index.expand(rows.astype(np.float64), 0, 2, out)
    with pytest.raises(TypeError):
        index.expand(rows, 0, 2, np.zeros((3, 4), np.float32)[:, ::2])
    with pytest.raises(TypeError):
        Occurrences(np.array([1.0]))
