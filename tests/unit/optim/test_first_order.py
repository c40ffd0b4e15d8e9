from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gearshift import optim
from gearshift.errors import UserError

Reference = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
PAIRS: list[tuple[optim.DenseOptimizer, Reference]] = [
    (optim.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    (optim.SGD(0.1, l2=0.01), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.01)),
    (optim.Momentum(0.05, 0.8), lambda p: torch.optim.SGD(p, 0.05, 0.8)),
    (
        optim.Momentum(0.05, 0.8, nesterov=True, l2=0.01),
        lambda p: torch.optim.SGD(p, 0.05, 0.8, nesterov=True, weight_decay=0.01),
    ),
    (optim.Adagrad(0.05), lambda p: torch.optim.Adagrad(p, 0.05)),
    (
        optim.Adagrad(0.05, initial=0.1, l2=0.01),
        lambda p: torch.optim.Adagrad(p, 0.05, initial_accumulator_value=0.1, weight_decay=0.01),
    ),
    (optim.Adam(1e-2), lambda p: torch.optim.Adam(p, 1e-2)),
    (
        optim.Adam(1e-2, 0.8, 0.99, 1e-6, l2=0.01),
        lambda p: torch.optim.Adam(p, 1e-2, (0.8, 0.99), 1e-6, weight_decay=0.01),
    ),
    (optim.AdamW(1e-2), lambda p: torch.optim.AdamW(p, 1e-2)),
]


@pytest.mark.parametrize(("mine", "reference"), PAIRS, ids=lambda v: repr(v) if not callable(v) else "")
def test_hundred_steps_equal_torch(mine: optim.DenseOptimizer, reference: Reference) -> None:
    g = torch.Generator().manual_seed(1)
    start = torch.randn(257, generator=g)
    flat, theirs = start.clone(), start.clone().requires_grad_()
    state, other = mine.init(257), reference([theirs])
    for _ in range(100):
        grad = torch.randn(257, generator=g)
        theirs.grad = grad.clone()
        other.step()
        kept = grad.clone()
        mine.step(flat, grad, state)
        assert torch.equal(grad, kept), "the gradient belongs to the caller"
    torch.testing.assert_close(flat, theirs.detach(), rtol=2e-6, atol=2e-6)
    assert not torch.allclose(flat, start, atol=1e-2)


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_lr_scale_is_a_factor_of_lr(name: str) -> None:
    start, grad = torch.randn(9), torch.randn(9)
    moved = []
    for lr, scale in ((0.02, 1.0), (0.08, 0.25)):
        optimizer, flat = optim.build(name, lr=lr), start.clone()
        state = optimizer.init(9)
        for _ in range(3):
            optimizer.step(flat, grad, state, lr_scale=scale)
        moved.append(flat)
    torch.testing.assert_close(moved[0], moved[1])
    assert not torch.equal(moved[0], start)


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_the_state_is_all_there_is(name: str) -> None:
    """Saved and restored in the middle, the rest of the way is the same bit for bit."""
    grads = torch.randn(6, 20)
    optimizer, flat = optim.build(name), torch.randn(20)
    state = optimizer.init(20)
    for grad in grads[:3]:
        optimizer.step(flat, grad, state)
    again, resumed = flat.clone(), {key: value.clone() for key, value in state.items()}
    for grad in grads[3:]:
        optimizer.step(flat, grad, state)
        optim.build(name).step(again, grad, resumed)
    assert torch.equal(flat, again)


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_zero_weights_with_zero_gradients_stay_zero(name: str) -> None:
    """What the gaps of the flat buffer rely on."""
    optimizer, flat = optim.build(name), torch.zeros(4)
    state = optimizer.init(4)
    for _ in range(3):
        optimizer.step(flat, torch.zeros(4), state)
    assert torch.equal(flat, torch.zeros(4))


@pytest.mark.parametrize(
    ("name", "params", "sentence"),
    [
        ("adan", {}, "unknown optimizer `adan`. Did you mean `adam`?"),
        ("adam", {"learning_rate": 1}, "unknown parameter of optimizer adam: `learning_rate`"),
        ("adagrad", {"initial_": 1}, "Did you mean `initial`?"),
    ],
)
def test_unknown_names_are_told_the_nearest(name: str, params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        optim.build(name, **params)
    assert sentence in str(error.value)


def test_clip_norm() -> None:
    grad = torch.tensor([3.0, 4.0])
    assert optim.clip_norm(grad, 10.0) == 5.0
    assert torch.equal(grad, torch.tensor([3.0, 4.0]))
    assert optim.clip_norm(grad, 1.0) == 5.0
    torch.testing.assert_close(grad, torch.tensor([0.6, 0.8]))
    bad = torch.tensor([float("nan"), 4.0])
    assert optim.clip_norm(bad, 1.0) != optim.clip_norm(bad, 1.0)  # NaN comes back
    assert bad[1] == 4.0
