from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gearshift.optim import GSNR
from gearshift.optim.row_ratios import PushedRows, RowPartColumns, RowRatios, row_wise, touched
from gearshift.parameters.merged_rows import merge_rows
from gearshift.parameters.push import RowPush

WIDTH = 5
PARTS = (RowPartColumns("embedding", 0, 4), RowPartColumns("linear", 4, 5))
WEIGHTS = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=14).filter(sum)


def draw(weights: list[float], seed: int, ids: int = 12) -> list[PushedRows]:
    rng = np.random.default_rng(seed)
    signal = rng.normal(size=(ids, WIDTH))
    pushes = []
    for weight in weights:
        here = rng.permutation(ids)[: rng.integers(1, ids)].astype(np.int64)
        examples = int(rng.integers(1, 9))
        sums = (signal[here] + rng.normal(size=(len(here), WIDTH))) * examples
        pushes.append(PushedRows(100 + here, sums.astype(np.float32), weight, float(examples)))
    return pushes


def dense_of(pushes: list[PushedRows], ids_U: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients [M, U, W], zero where a push lacks the id; which it has [M, U]; weights [M]. In float64."""
    kept = [p for p in pushes if p.weight > 0]
    g, there = np.zeros((len(kept), len(ids_U), WIDTH)), np.zeros((len(kept), len(ids_U)), bool)
    for m, push in enumerate(kept):
        for row, i in zip(push.sums_UW, push.ids_U, strict=True):
            u = int(np.flatnonzero(ids_U == i)[0])
            g[m, u], there[m, u] = row.astype(np.float64) / push.examples, True
    return g, there, np.array([p.weight * p.examples for p in kept])


def finish(r: np.ndarray, live: np.ndarray, floor: float = 0.1) -> np.ndarray:
    out = np.ones_like(r)
    out[live] = np.clip(r[live] / r[live].mean(), floor, 1)
    return out


def values(found: RowRatios) -> np.ndarray:
    assert found.values_UW is not None
    return found.values_UW


@settings(deadline=None, max_examples=40)
@given(WEIGHTS, st.integers(0, 99))
def test_touched_against_float64(weights: list[float], seed: int) -> None:
    pushes = draw(weights, seed)
    found = touched(pushes, GSNR(min_gradients=0), PARTS)
    g, _, a = dense_of(pushes, found.ids_U)
    mean = np.average(g, axis=0, weights=a)
    variance = np.average((g - mean) ** 2, axis=0, weights=a)
    variance = np.maximum(variance, 1e-6 * np.average(g**2, axis=0, weights=a))
    r = mean**2 / variance
    wanted = np.concatenate(
        [finish(r[:, p.begin : p.end], variance[:, p.begin : p.end] > 0) for p in PARTS], 1
    )
    np.testing.assert_allclose(values(found), wanted, rtol=1e-4)


@settings(deadline=None, max_examples=40)
@given(WEIGHTS, st.integers(0, 99), st.sampled_from([2.0, 3.0]))
def test_row_wise_against_float64(weights: list[float], seed: int, least: float) -> None:
    pushes = draw(weights, seed)
    found = row_wise(pushes, GSNR(min_gradients=0), PARTS, min_pushes=least)
    g, there, a = dense_of(pushes, found.ids_U)
    wanted = np.ones((len(found.ids_U), WIDTH))
    for part in PARTS:
        r, live = np.ones(len(found.ids_U)), np.zeros(len(found.ids_U), bool)
        for u in range(len(found.ids_U)):
            here, b = g[there[:, u], u, part.begin : part.end], a[there[:, u]]
            mean = np.average(here, axis=0, weights=b)
            signal, noise = (mean**2).sum(), np.average((here - mean) ** 2, axis=0, weights=b).sum()
            live[u] = b.sum() ** 2 / (b**2).sum() >= least * (1 - 1e-6)
            r[u] = signal / max(noise, 1e-6 * (noise + signal))
        if live.any():
            wanted[:, part.begin : part.end] = finish(r, live)[:, None]
    np.testing.assert_allclose(values(found), wanted, rtol=1e-4)


@pytest.mark.parametrize("mode", [touched, row_wise])
def test_ids_come_in_the_order_of_the_servers_merge(mode: object) -> None:
    pushes = draw([1.0, 0.0, 0.5, 1.0], 3)
    found = mode(pushes, GSNR(min_gradients=0), PARTS)  # type: ignore[operator]
    kept = [
        (RowPush(p.ids_U, p.sums_UW, np.ones(len(p.ids_U), np.uint32)), p.weight, p.examples)
        for p in pushes
        if p.weight > 0
    ]
    assert found.ids_U.tolist() == merge_rows(kept, 1).ids_U.tolist()
    assert values(found).shape == (len(found.ids_U), WIDTH) and values(found).dtype == np.float32


@pytest.mark.parametrize("mode", [touched, row_wise])
def test_floor_one_too_few_and_controls(mode: object) -> None:
    pushes = draw([1.0] * 12, 4)
    assert np.array_equal(values(mode(pushes, GSNR(1.0, 2), PARTS)), np.ones((12, WIDTH)))  # type: ignore[operator]
    few = mode(pushes[:5], GSNR(), PARTS)  # type: ignore[operator]
    assert few.values_UW is None and "effective gradients in this step" in few.parts[0].reason
    plain = mode(pushes, GSNR(min_gradients=2), PARTS)  # type: ignore[operator]
    mixed = mode(pushes, GSNR(min_gradients=2, control="permuted"), PARTS)  # type: ignore[operator]
    assert not np.array_equal(values(plain), values(mixed))
    np.testing.assert_allclose(np.sort(values(plain)[:, :4], None), np.sort(values(mixed)[:, :4], None))
    assert [line.layer for ratios in plain.parts for line in ratios.statistics()] == ["embedding", "linear"]


def test_an_id_in_one_of_k_pushes_is_a_matter_of_frequency() -> None:
    """touched: r = 1/(k-1) whatever its gradient, so two such ids are equal; row_wise cannot decide and gives 1."""
    k = 9
    common = np.array([7], np.int64)
    pushes = [PushedRows(common, np.full((1, WIDTH), 1.0 + m, np.float32), 1.0, 1.0) for m in range(k)]
    for m, (i, size) in enumerate([(50, 1e-3), (51, 1e3)]):
        sums = np.concatenate([pushes[m].sums_UW, np.full((1, WIDTH), size, np.float32)])
        pushes[m] = PushedRows(np.append(common, i), sums, 1.0, 1.0)
    by_element = touched(pushes, GSNR(floor=0.0), PARTS)
    r = dict(zip(by_element.ids_U.tolist(), values(by_element), strict=True))
    np.testing.assert_allclose(r[50], r[51], rtol=1e-5)
    of_common = 25 / (20 / 3)  # mean 5, variance of 1..9
    np.testing.assert_allclose(
        r[50], (1 / (k - 1)) / np.mean([of_common, 1 / (k - 1), 1 / (k - 1)]), rtol=1e-5
    )
    by_row = row_wise(pushes, GSNR(), PARTS)
    r = dict(zip(by_row.ids_U.tolist(), values(by_row), strict=True))
    assert r[50].tolist() == r[51].tolist() == [1.0] * WIDTH


def test_no_push_that_counts() -> None:
    with pytest.raises(ValueError, match="no push with a weight above 0"):
        touched(draw([1.0], 1)[:0], GSNR(), PARTS)
