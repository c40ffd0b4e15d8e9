"""VR-x on the flat buffer, against x and against its formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gearshift import optim
from gearshift.errors import UserError
from gearshift.optim import GSNR, Layout, VarianceReduced, spread_of
from gearshift.optim.variance_reduced import variance_reduced

LAYOUT = Layout.of(["w", "b"], [(4, 5), (3,)], [0, 32])
SIZE = 48
NAMES = list(optim.VARIANCE_REDUCED)
by_name = pytest.mark.parametrize("name", NAMES)


def draw(k: int, seed: int) -> torch.Tensor:
    """k gradients, each with the same mean beside its noise; zeros in the gaps."""
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(SIZE, generator=generator) + torch.randn(k, SIZE, generator=generator)
    gradients[:, 20:32] = 0
    gradients[:, 35:] = 0
    return gradients


def train(optimizer: Any, gradients: list[torch.Tensor], vr: bool = True) -> torch.Tensor:
    optimizer = optim.bind(optimizer, LAYOUT)
    flat, state = draw(1, 99)[0].clone(), optimizer.init(SIZE)
    for group in gradients:
        if vr:
            spread = spread_of([(g, 1.0, 1.0) for g in group])
            ratios = optimizer.gsnr.ratios(spread, LAYOUT)
            optimizer.step(flat, group.mean(0), state, ratio=ratios.values)
        else:
            optimizer.step(flat, group.mean(0), state)
    return flat


def settings_of(name: str) -> dict[str, Any]:
    decay = {"vr_sgd": "l2", "vr_momentum": "l2", "vr_adam": "l2"}.get(name, "weight_decay")
    return {"lr": 0.05, decay: 0.01}


STEPS = [draw(10, seed) for seed in range(12)]


@by_name
def test_floor_one_is_the_base_bit_for_bit(name: str) -> None:
    base = optim.build(name.removeprefix("vr_"), **settings_of(name))
    plain = train(base, STEPS, vr=False)
    assert torch.equal(train(variance_reduced(name, floor=1.0, **settings_of(name)), STEPS), plain)
    assert not torch.allclose(train(variance_reduced(name, **settings_of(name)), STEPS), plain, atol=1e-4)


@by_name
def test_too_few_gradients_are_the_base_bit_for_bit(name: str) -> None:
    few = [group[:7] for group in STEPS]
    base = optim.build(name.removeprefix("vr_"), **settings_of(name))
    assert torch.equal(train(variance_reduced(name, **settings_of(name)), few), train(base, few, vr=False))


def test_vr_adam_against_its_formulas() -> None:
    """ALGORITHMS.md section 3: p = b3 p + (1-b3) r; p/(1-b3^t) * g is fed to both moments."""
    lr, b1, b2, b3, eps = 0.05, 0.9, 0.999, 0.8, 1e-8
    x = draw(1, 99)[0].double().numpy()
    p = m = v = np.zeros(SIZE)
    for t, group in enumerate(STEPS, 1):
        r = GSNR().ratios(spread_of([(g, 1.0, 1.0) for g in group]), LAYOUT).values
        assert r is not None
        p = b3 * p + (1 - b3) * r.double().numpy()
        g = p / (1 - b3**t) * group.mean(0).double().numpy()
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        x = x - lr * m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
    found = train(variance_reduced("vr_adam", lr=lr, beta3=b3), STEPS)
    np.testing.assert_allclose(found, x, rtol=1e-4, atol=2e-5)


def test_weight_decay_is_never_scaled() -> None:
    """A gradient that is all noise is at the floor; the weights shrink as fast as without VR."""
    group = torch.ones(8, SIZE)
    group[::2] = -1
    group[:, 20:32] = group[:, 35:] = 0
    vr = train(variance_reduced("vr_sgd", lr=0.1, l2=0.5), [group])
    torch.testing.assert_close(vr, draw(1, 99)[0] * (1 - 0.1 * 0.5))


@by_name
def test_gaps_stay_zero_and_the_state_is_all_there_is(name: str) -> None:
    optimizer = variance_reduced(name, lr=0.05).on(LAYOUT)
    flat, state = draw(1, 99)[0].clone(), optimizer.init(SIZE)
    again = resumed = None
    for i, group in enumerate(STEPS):
        if i == 6:
            again, resumed = flat.clone(), {key: value.clone() for key, value in state.items()}
        r = optimizer.gsnr.ratios(spread_of([(g, 1.0, 1.0) for g in group]), LAYOUT).values
        optimizer.step(flat, group.mean(0), state, ratio=r)
        if again is not None and resumed is not None:
            variance_reduced(name, lr=0.05).on(LAYOUT).step(again, group.mean(0), resumed, ratio=r)
    assert again is not None and torch.equal(flat, again)
    assert not flat[20:32].any() and not flat[35:].any()


def test_settings_go_where_they_belong() -> None:
    optimizer = optim.build("vr_adam", lr=0.01, beta1=0.8, floor=0.2, control="permuted", beta3=0.5)
    assert optimizer == VarianceReduced(optim.Adam(0.01, 0.8), GSNR(0.2, control="permuted"), 0.5)
    assert optimizer.lr == 0.01
    for params, sentence in [
        ({"floors": 1}, "unknown parameter of optimizer vr_adam: `floors`. Did you mean `floor`?"),
        ({"layout": LAYOUT}, "unknown parameter of optimizer vr_adam: `layout`"),
        ({"beta3": 1.0}, "at least 0 and below 1, not 1.0"),
    ]:
        with pytest.raises(UserError) as error:
            optim.build("vr_adam", **params)
        assert sentence in str(error.value)
    with pytest.raises(UserError, match="Did you mean `vr_adam`"):
        optim.build("vr_adan")
    with pytest.raises(UserError, match="counts its steps"):
        variance_reduced("vr_sgd", beta3=0.9).init(4)
