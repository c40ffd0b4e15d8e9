from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gearshift.optim import SharedSums, ShiftedSums, Spread, spread_of

Reference = tuple[np.ndarray, np.ndarray]
WEIGHTS = st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0, 128.0]), min_size=2, max_size=20).filter(
    lambda weights: sum(weights) > 0
)


def reference(gradients: torch.Tensor, weights: list[float]) -> Reference:
    """In float64, by the definition."""
    g, a = gradients.double().numpy(), np.asarray(weights)
    mean = np.average(g, axis=0, weights=a)
    return mean, np.average((g - mean) ** 2, axis=0, weights=a)


def summed(gradients: torch.Tensor, weights: list[float]) -> Spread:
    sums = ShiftedSums(gradients[0])
    for gradient, weight in zip(gradients, weights, strict=True):
        sums.add(gradient, weight)
    return sums.spread()


def check(spread: Spread, wanted: Reference, gradients: torch.Tensor) -> None:
    """To the rounding of float32: of the gradients, and of squares around the shift, here the first gradient."""
    mean, variance = wanted
    size = gradients.abs().amax(0).double().numpy()
    np.testing.assert_allclose(spread.mean.double(), mean, rtol=0, atol=2e-6 * size.max())
    rounding = 2e-7 * size
    error = np.abs(spread.variance.double().numpy() - variance)
    allowed = 1e-5 * variance + 2 * rounding * np.sqrt(variance) + rounding**2
    assert np.all(error <= allowed + 1e-6 * (gradients[0].double().numpy() - mean) ** 2)


@settings(deadline=None, max_examples=60)
@given(WEIGHTS, st.sampled_from([1e-6, 1.0, 1e4]), st.sampled_from([0.0, 1.0, 100.0]), st.integers(0, 9))
def test_against_float64(weights: list[float], size: float, offset: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradients = size * (offset + torch.randn(len(weights), 31, generator=generator))
    check(summed(gradients, weights), reference(gradients, weights), gradients)


def test_a_small_variance_around_a_large_mean_is_found() -> None:
    """Where sums of g and g^2 fail: their difference is rounding, often below zero."""
    gradients = 100 + 1e-3 * torch.randn(16, 1000, generator=torch.Generator().manual_seed(1))
    naive = (gradients**2).mean(0) - gradients.mean(0) ** 2
    assert (naive <= 0).float().mean() > 0.2
    found = summed(gradients, [1.0] * 16)
    _, variance = reference(gradients, [1.0] * 16)
    np.testing.assert_allclose(found.variance.double(), variance, rtol=0.02)


@settings(deadline=None, max_examples=30)
@given(WEIGHTS, st.data())
def test_the_order_of_pushes_does_not_matter(weights: list[float], data: st.DataObject) -> None:
    gradients = 5 + torch.randn(len(weights), 20, generator=torch.Generator().manual_seed(3))
    order = data.draw(st.permutations(range(len(weights))))
    one, other = summed(gradients, weights), summed(gradients[order], [weights[i] for i in order])
    torch.testing.assert_close(one.mean, other.mean)
    torch.testing.assert_close(one.variance, other.variance, rtol=1e-4, atol=2e-5)  # of squares of about 25
    assert one.effective == pytest.approx(other.effective)


def test_weight_zero_is_left_out_and_not_taken_for_a_zero() -> None:
    gradients = torch.randn(5, 8)
    with_nothing = summed(gradients, [1.0, 0.0, 1.0, 1.0, 0.0])
    without = summed(gradients[[0, 2, 3]], [1.0, 1.0, 1.0])
    assert torch.equal(with_nothing.variance, without.variance)
    assert with_nothing.gradients == 3 and with_nothing.effective == 3.0
    with pytest.raises(ValueError, match="so there is no mean"):
        summed(gradients[:1], [0.0])


def test_effective_counts_equal_weights() -> None:
    gradients = torch.randn(4, 2)
    assert summed(gradients, [7.0] * 4).effective == pytest.approx(4)
    assert summed(gradients, [1.0, 1.0, 1e-9, 1e-9]).effective == pytest.approx(2)


class Processes:
    """With one gradient each, which an all-reduce adds up."""

    def __init__(self, count: int, size: int) -> None:
        self.sums = [SharedSums(size) for _ in range(count)]
        self._first = True

    def reduce(self, gradients: torch.Tensor, sizes: list[int]) -> SharedSums:
        """Of mean gradients over this many examples."""
        own = list(zip(self.sums, gradients, sizes, strict=True))
        if self._first:
            all_reduce([s.propose(g * n, n if i == 0 else 0.0) for i, (s, g, n) in enumerate(own)])
        self._first = False
        for sums, gradient, n in own:
            sums.restart()
            sums.add(gradient * n, n)
        all_reduce([sums.packed for sums in self.sums])
        for sums in self.sums:
            sums.settle(len(own))
        return self.sums[-1]


def all_reduce(vectors: list[torch.Tensor]) -> None:
    total = torch.stack(vectors).sum(0)
    for vector in vectors:
        vector.copy_(total)


@pytest.mark.parametrize("count", [2, 8, 64])
def test_processes_that_share_a_shift_find_sum_and_variance_at_once(count: int) -> None:
    """Of a mean that wanders, and noise of a thousandth of it: sums of g and g^2 would not see it."""
    generator = torch.Generator().manual_seed(count)
    processes, center = Processes(count, 1000), 100 * torch.randn(1000, generator=generator)
    sizes = [16 + i % 3 for i in range(count)]
    for _ in range(4):
        noise = 1e-3 * center.abs()
        center = center + noise * torch.randn(1000, generator=generator)
        gradients = center + noise * torch.randn(count, 1000, generator=generator)
        mean, variance = reference(gradients, [float(n) for n in sizes])
        found = processes.reduce(gradients, sizes)
        np.testing.assert_allclose(found.total.double() / sum(sizes), mean, rtol=1e-5)
        error = np.abs(found.variance.double().numpy() - variance)
        assert np.all(error <= 1e-2 * variance + 1e-2 * noise.double().numpy() ** 2)
        naive = (gradients**2).mean(0) - gradients.mean(0) ** 2
        assert np.median(np.abs(naive.double().numpy() - variance) / variance) > 3e-2
        assert all(torch.equal(sums.packed, found.packed) for sums in processes.sums)


def test_an_element_without_gradients_has_no_noise_whatever_the_shift() -> None:
    """By rounding alone it would have a tiny one, and count for its layer."""
    processes, live = Processes(5, 300), torch.arange(300) % 3 > 0
    sizes = [7, 7, 7, 5, 3]
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        gradients = 3 + torch.randn(5, 300, generator=generator)
        if step % 2:
            gradients[:, ~live] = 0.0
        found = processes.reduce(gradients, sizes)
        assert torch.equal(found.variance > 0, live if step % 2 else torch.ones_like(live))


def test_what_rounding_hides_is_no_small_noise() -> None:
    """All equal, far from the shift: this cannot be distinguished from noise."""
    processes = Processes(4, 50)
    processes.reduce(torch.full((4, 50), 1000.0), [3] * 4)
    near = processes.reduce(torch.full((4, 50), 0.7), [3] * 4).variance.clone()
    assert (near > 1e-2).all() and (near < 5).all()
    assert (processes.reduce(torch.full((4, 50), 0.7), [3] * 4).variance < 1e-12).all()


def test_pushes_come_as_sums_over_their_examples() -> None:
    sizes, kept = [4, 2, 8, 0, 5], [1.0, 0.5, 1.0, 1.0, 0.0]
    means = torch.randn(5, 7)
    pushes = [(mean * n, float(n), w) for mean, n, w in zip(means, sizes, kept, strict=True)]
    wanted = summed(means[:3], [4.0, 1.0, 8.0])
    found = spread_of(pushes)
    torch.testing.assert_close(found.mean, wanted.mean)
    torch.testing.assert_close(found.variance, wanted.variance)
    assert found.weight == 13.0 and found.effective == pytest.approx(169 / 81)
    used = ShiftedSums(torch.randn(7))
    used.add(torch.randn(7))
    used.spread()
    assert torch.equal(spread_of(pushes, used).variance, found.variance), "nothing is left of an earlier step"
    with pytest.raises(ValueError, match="no push with a weight above 0"):
        spread_of(pushes[3:])


def test_half_precision_gradients_are_summed_in_float32() -> None:
    gradients = torch.randn(9, 5).to(torch.bfloat16)
    found = summed(gradients, [1.0] * 9)
    assert found.variance.dtype == torch.float32
    assert math.isclose(float(found.mean.sum()), float(gradients.float().mean(0).sum()), rel_tol=1e-5)
