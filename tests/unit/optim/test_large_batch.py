from __future__ import annotations

import numpy as np
import pytest
import torch

from gearshift import optim
from gearshift.optim import DenseLAMB, DenseLARS, Layout
from gearshift.parameters.dense import DenseParameters

LAYOUT = Layout.of(["w", "b", "v"], [(4, 3), (3,), (2, 2)], [0, 16, 32])
ELEMENTS = {"w": slice(0, 12), "b": slice(16, 19), "v": slice(32, 36)}
SIZE = 48


def draw(seed: int) -> torch.Tensor:
    flat = torch.zeros(SIZE)
    for at in ELEMENTS.values():
        flat[at] = torch.randn(at.stop - at.start, generator=torch.Generator().manual_seed(seed + at.start))
    return flat


def lars(w: np.ndarray, g: np.ndarray, state: dict[str, np.ndarray], name: str, t: int) -> np.ndarray:
    """lr .5, momentum .8, weight decay .01, eta .02; in float64."""
    trust = 1.0
    if name != "b":
        trust = 0.02 * np.linalg.norm(w) / (np.linalg.norm(g) + 0.01 * np.linalg.norm(w))
    state["buf"] = 0.8 * state.get("buf", 0 * w) + 0.5 * trust * (g + 0.01 * w)
    return w - state["buf"]


def lamb(w: np.ndarray, g: np.ndarray, state: dict[str, np.ndarray], name: str, t: int) -> np.ndarray:
    """lr .1, betas .8 and .99, eps 1e-6, weight decay .01; in float64."""
    state["m"] = 0.8 * state.get("m", 0 * w) + 0.2 * g
    state["v"] = 0.99 * state.get("v", 0 * w) + 0.01 * g * g
    u = state["m"] / (1 - 0.8**t) / (np.sqrt(state["v"] / (1 - 0.99**t)) + 1e-6) + 0.01 * w
    trust = 1.0 if name == "b" else np.linalg.norm(w) / np.linalg.norm(u)
    return w - 0.1 * trust * u


@pytest.mark.parametrize(
    ("rule", "reference"),
    [(DenseLARS(0.5, 0.8, 0.01, 0.02), lars), (DenseLAMB(0.1, 0.8, 0.99, 1e-6, 0.01), lamb)],
    ids=["lars", "lamb"],
)
def test_against_float64_per_layer(rule: DenseLARS | DenseLAMB, reference: object) -> None:
    flat, rule = draw(1), rule.on(LAYOUT)
    state = rule.init(SIZE)
    wanted = {name: flat[at].double().numpy() for name, at in ELEMENTS.items()}
    memory: dict[str, dict[str, np.ndarray]] = {name: {} for name in ELEMENTS}
    for t in range(1, 21):
        grad = draw(100 + t)
        kept = grad.clone()
        rule.step(flat, grad, state)
        assert torch.equal(grad, kept), "the gradient belongs to the caller"
        for name, at in ELEMENTS.items():
            g = grad[at].double().numpy()
            wanted[name] = reference(wanted[name], g, memory[name], name, t)  # type: ignore[operator]
    for name, at in ELEMENTS.items():
        np.testing.assert_allclose(flat[at], wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)
    gaps = torch.ones(SIZE, dtype=torch.bool)
    for at in ELEMENTS.values():
        gaps[at] = False
    assert not flat[gaps].any()


@pytest.mark.parametrize("rule", [DenseLARS(0.1), DenseLAMB(0.1)], ids=["lars", "lamb"])
def test_zero_weights_and_zero_gradients_get_trust_one(rule: DenseLARS | DenseLAMB) -> None:
    """A matrix of zeros must be able to leave zero, and a silent one must not divide by its length."""
    rule = rule.on(LAYOUT)
    flat, grad, state = torch.zeros(SIZE), draw(2), rule.init(SIZE)
    rule.step(flat, grad, state)
    moved = -0.1 * grad if isinstance(rule, DenseLARS) else -0.1 * grad.sign()
    torch.testing.assert_close(flat, moved, rtol=1e-4, atol=1e-5)
    flat, state = draw(3), rule.init(SIZE)
    before = flat.clone()
    rule.step(flat, torch.zeros(SIZE), state)
    assert torch.equal(flat, before)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_lr_scale_and_scale_of_the_gradient(name: str) -> None:
    """The rate is lr * lr_scale. A gradient ten times as long gives a matrix the same step."""
    torch.manual_seed(1)  # a draw near 0 would meet eps
    matrix = Layout.whole("w", (4, 3))
    start, grads = torch.randn(4, 3), torch.randn(3, 4, 3)
    ends = []
    for lr, scale, size in ((0.1, 1.0, 1.0), (0.4, 0.25, 1.0), (0.1, 1.0, 10.0)):
        rule, flat = optim.bind(optim.build(name, lr=lr), matrix), start.clone()
        state = {key: v if v.ndim == 0 else torch.zeros(4, 3) for key, v in rule.init(0).items()}
        for grad in grads:
            rule.step(flat, size * grad, state, lr_scale=scale)
        ends.append(flat)
    torch.testing.assert_close(ends[0], ends[1])
    torch.testing.assert_close(ends[0], ends[2], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(ends[0], start, atol=1e-5)


def test_the_layout_of_a_module_is_that_of_its_flat_buffer() -> None:
    dense = DenseParameters(torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 2)))
    layout = Layout.of(dense.names, dense.shapes, dense.offsets)
    views = dense.views(dense.flat)
    assert [layer.name for layer in layout.layers] == list(views)
    assert [layer.is_matrix for layer in layout.layers] == [True, False, True, False]
    for mine, theirs in zip(layout.views(dense.flat), views.values(), strict=True):
        assert mine.data_ptr() == theirs.data_ptr() and mine.numel() == theirs.numel()


def test_a_rule_without_its_layers_says_so() -> None:
    with pytest.raises(ValueError, match="set the layers first"):
        DenseLAMB().step(torch.zeros(4), torch.zeros(4), DenseLAMB().init(4))
    assert optim.bind(optim.SGD(0.5), LAYOUT) == optim.SGD(0.5)
