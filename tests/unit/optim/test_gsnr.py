from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gearshift.errors import UserError
from gearshift.optim import GSNR, Layout, Ratios, Spread, VarianceReduced, build, spread_of
from gearshift.optim.gsnr import Control

LAYOUT = Layout.of(
    ["w", "b"], [(4, 5), (3,)], [0, 32]
)  # as in the flat buffer: 12 floats of gap, then the bias
SIZE = 48
ELEMENTS = [slice(0, 20), slice(32, 35)]


def reference(gradients: torch.Tensor, weights: list[float], floor: float) -> np.ndarray:
    """ALGORITHMS.md section 3, in float64."""
    g, a = gradients.double().numpy(), np.asarray(weights)
    mean = np.average(g, axis=0, weights=a)
    variance = np.average((g - mean) ** 2, axis=0, weights=a)
    variance = np.maximum(variance, 1e-6 * np.average(g**2, axis=0, weights=a))
    wanted = np.ones(SIZE)
    for layer in ELEMENTS:
        live = variance[layer] > 0
        r = mean[layer][live] ** 2 / variance[layer][live]
        if live.any():
            wanted[layer][live] = np.clip(r / r.mean() if r.mean() else r, floor, 1)
    return wanted


def draw(k: int, seed: int, offset: float = 0.3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.zeros(k, SIZE)
    for layer in ELEMENTS:
        n = layer.stop - layer.start
        scale = 10 ** torch.empty(n).uniform_(-3, 1, generator=generator)
        gradients[:, layer] = scale * (
            offset * torch.randn(n, generator=generator) + torch.randn(k, n, generator=generator)
        )
    return gradients


def of(gradients: torch.Tensor, weights: list[float], gsnr: GSNR) -> Ratios:
    return gsnr.ratios(spread_of([(g, 1.0, w) for g, w in zip(gradients, weights, strict=True)]), LAYOUT)


def values(ratios: Ratios) -> torch.Tensor:
    assert ratios.values is not None
    return ratios.values


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 4.0]), min_size=2, max_size=24).filter(sum),
    st.integers(0, 99),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([0.0, 0.3, 30.0]),
    st.sets(st.integers(0, SIZE - 1), max_size=25),
)
def test_r_against_float64(
    weights: list[float], seed: int, floor: float, offset: float, silent: set[int]
) -> None:
    gradients = draw(len(weights), seed, offset)
    gradients[:, list(silent)] = 0
    found = values(of(gradients, weights, GSNR(floor, min_gradients=0)))
    np.testing.assert_allclose(found.double(), reference(gradients, weights, floor), rtol=1e-3, atol=1e-4)


def test_scale_does_not_matter() -> None:
    gradients = draw(16, 5)
    one = values(of(gradients, [1.0] * 16, GSNR()))
    for scale in (1e-6, 3.0, 1e6):
        torch.testing.assert_close(
            one, values(of(scale * gradients, [1.0] * 16, GSNR())), rtol=1e-4, atol=1e-5
        )


def test_the_order_of_pushes_does_not_matter() -> None:
    gradients, weights = draw(9, 6), [float(1 + i % 3) for i in range(9)]
    order = [4, 8, 0, 2, 1, 7, 6, 3, 5]
    other = of(gradients[order], [weights[i] for i in order], GSNR(min_gradients=0))
    torch.testing.assert_close(
        values(of(gradients, weights, GSNR(min_gradients=0))), values(other), rtol=1e-4, atol=1e-5
    )


def test_silent_elements_get_one_and_stay_out_of_the_mean() -> None:
    gradients = draw(8, 7)
    gradients[:, 3:20] = 0
    r = values(of(gradients, [1.0] * 8, GSNR(floor=0.0)))
    assert torch.equal(r[3:32], torch.ones(29)), "silent elements and the gap"
    alone = Layout.of(["w"], [(3,)], [0])
    wanted = GSNR(floor=0.0).ratios(spread_of([(g[:3].clone(), 1.0, 1.0) for g in gradients]), alone)
    torch.testing.assert_close(r[:3], values(wanted))


def test_no_noise_at_all_and_no_gradient_under_the_noise() -> None:
    same = torch.ones(8, SIZE)
    assert torch.equal(values(of(same, [1.0] * 8, GSNR())), torch.ones(SIZE))
    opposed = torch.ones(8, SIZE)
    opposed[::2] = -1
    r = values(of(opposed, [1.0] * 8, GSNR()))
    assert r[:20].tolist() == pytest.approx([0.1] * 20), "mean 0: all at the floor, not 0/0"
    zeros = of(torch.zeros(8, SIZE), [1.0] * 8, GSNR())
    assert torch.equal(values(zeros), torch.ones(SIZE))
    assert zeros.statistics()[0].mean_ratio == 1.0


def test_an_element_without_noise_counts_as_a_million() -> None:
    """variance >= 1e-6 of the mean square, so r stays finite; it pulls its whole layer down."""
    gradients = torch.ones(8, 2)
    gradients[::2, 1], gradients[1::2, 1] = 0.0, 2.0  # mean 1, variance 1
    r = GSNR(floor=0.0).ratios(spread_of([(g, 1.0, 1.0) for g in gradients]), Layout.whole("w", (2,)))
    assert values(r).tolist() == pytest.approx([1.0, 2e-6], rel=1e-4)


@pytest.mark.parametrize("control", ["none", "norm_matched", "layer_mean", "permuted"])
def test_floor_one_makes_r_exactly_one(control: Control) -> None:
    r = values(of(draw(8, 8), [1.0] * 8, GSNR(1.0, control=control)))
    assert torch.equal(r, torch.ones(SIZE))


def test_too_few_gradients_say_so() -> None:
    ratios = of(draw(7, 1), [1.0] * 7, GSNR())
    assert ratios.values is None
    assert ratios.reason == "7.0 effective gradients in this step, fewer than min_gradients = 8: r = 1"
    assert [line.mean_ratio for line in ratios.statistics()] == [1.0, 1.0]
    unequal = of(draw(10, 1), [1.0] * 5 + [0.01] * 5, GSNR())
    assert unequal.values is None, "ten gradients of which five count"
    assert of(draw(8, 1), [0.1] * 8, GSNR()).reason is None, "rounding of sum(a)^2 / sum(a^2) is forgiven"
    shorter = [of(draw(8, 1), [1.0] * 7 + [last], GSNR()).reason for last in (0.5, 0.2)]
    assert shorter[0] is None and shorter[1] is not None, "half a gradient is forgiven, of 7.76 and 7.36"


def test_controls_keep_what_they_say() -> None:
    gradients = draw(16, 9)
    gradients[:, 10:13] = 0
    r, mean = values(of(gradients, [1.0] * 16, GSNR())), gradients.mean(0)
    controls: tuple[Control, ...] = ("norm_matched", "layer_mean", "permuted")
    matched, average, permuted = (values(of(gradients, [1.0] * 16, GSNR(control=c))) for c in controls)
    for layer in ELEMENTS:
        live = gradients[0, layer] != 0
        torch.testing.assert_close((matched * mean)[layer].norm(), (r * mean)[layer].norm())
        assert len(matched[layer][live].unique()) == len(average[layer][live].unique()) == 1
        torch.testing.assert_close(average[layer][live][0], r[layer][live].mean())
        torch.testing.assert_close(permuted[layer][live].sort()[0], r[layer][live].sort()[0])
    assert not torch.equal(permuted[:20], r[:20])
    assert torch.equal(permuted[10:13], torch.ones(3)), "silent elements take no part"
    assert torch.equal(permuted, values(of(gradients, [1.0] * 16, GSNR(control="permuted"))))


@pytest.mark.parametrize("control", ["none", "norm_matched", "layer_mean", "permuted"])
def test_what_is_too_large_to_square_takes_no_part_under_any_control(control: Control) -> None:
    gradients, silent = draw(16, 9), draw(16, 9)
    gradients[:, 3] *= 1e30
    silent[:, 3] = 0
    found, wanted = (values(of(g, [1.0] * 16, GSNR(control=control))) for g in (gradients, silent))
    torch.testing.assert_close(found, wanted)
    assert found[3] == 1 and (found[:20] < 1).any()


def test_statistics_per_layer() -> None:
    gradients = draw(16, 10)
    gradients[:, 5:9] = 0
    ratios = of(gradients, [1.0] * 16, GSNR())
    w, b = ratios.statistics()
    live = torch.tensor([i for i in range(20) if not 5 <= i < 9])
    r = values(ratios)[live]
    assert (w.layer, b.layer) == ("w", "b")
    assert w.mean_ratio == pytest.approx(float(r.mean()), rel=1e-5)
    assert w.at_floor == pytest.approx(float((r < 0.1001).float().mean())) and 0 < w.at_floor < 1


@pytest.mark.parametrize("weights", [(1.0,), (0.25,), (1.0, 0.25), (1.0, 0.5, 0.1, 0.0)])
def test_noise_scale_finds_the_batch_that_was_put_in(weights: tuple[float, ...]) -> None:
    """Gradients of n examples each: mean 1, variance 50 per example and element, so 50 examples; decayed or not."""
    generator = torch.Generator().manual_seed(1)
    pushes = []
    for n in (4, 5, 6, 7, 8, 9, 10, 11):
        noise = torch.randn(20_000, generator=generator) * (50 / n) ** 0.5
        pushes.append(((1 + noise) * n, float(n), weights[n % len(weights)]))
    (line,) = GSNR(min_gradients=1).ratios(spread_of(pushes), Layout.whole("w", (20_000,))).statistics()
    assert line.noise_scale == pytest.approx(50, rel=0.1)
    nothing = Spread(torch.zeros(2000), torch.ones(2000), 8.0, 8.0, 8)
    (line,) = GSNR().ratios(nothing, Layout.whole("w", (2000,))).statistics()
    assert line.noise_scale is None, "no gradient to be seen"


def test_bad_settings_are_refused_in_words() -> None:
    with pytest.raises(UserError, match=r"from 0 to 1, not 1.5"):
        GSNR(floor=1.5)
    for bad in ({"floor": None}, {"min_gradients": "8"}):
        with pytest.raises(UserError, match=f"{next(iter(bad))} is .* must be .*, not "):
            GSNR(**bad)  # type: ignore[arg-type]
    for name, bad in (
        ("vr_adam", {"beta3": "x"}),
        ("vr_lars", {"eta": -1}),
        ("lamb", {"beta1": 2}),
        ("sgd", {"lr": "1"}),
    ):
        (setting,) = bad
        with pytest.raises(UserError, match=f"optimizer {name}: {setting} must be .*, not "):
            build(name, **bad)
    with pytest.raises(UserError, match=r"beta3 smooths r and must be .* not 'x'"):
        VarianceReduced(build("adam"), beta3="x")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="Did you mean `permuted`"):
        GSNR(control="permute")  # type: ignore[arg-type]
