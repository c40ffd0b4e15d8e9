"""Extrapolated weights: exact where the coming gradients are known or constant, and nothing given is changed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gearshift.optim import Layout, build
from gearshift.optim.first_order import SGD, Adam, Momentum
from gearshift.optim.prediction import Ahead, Extrapolates
from gearshift.optim.rule_settings import DENSE_RULES

SHAPE = (4, 6)
WITH_WAITING = ["sgd", "momentum", "adagrad", "adam", "adamw", "lamb"]
WITH_MOMENTS = ["momentum", "adam", "adamw", "lamb"]


def rule(name: str, **settings):
    made = build(name, lr=0.01, **settings)
    return made.on(Layout.whole("layer", SHAPE)) if hasattr(made, "on") else made


def trained(made, steps: int = 5, gradient: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(3)
    flat, state = torch.randn(24, generator=draw), made.init(24)
    for _ in range(steps):
        made.step(flat, torch.randn(24, generator=draw) if gradient is None else gradient, state)
    return flat, state


def extrapolated(made, flat: Tensor, state: dict[str, Tensor], ahead: Ahead) -> Tensor:
    later = flat.clone()
    made.extrapolate(later, {name: values.clone() for name, values in state.items()}, ahead)
    return later


@pytest.mark.parametrize("name", list(DENSE_RULES))
def test_every_rule_can_be_extrapolated_and_keeps_what_it_knows_of_the_future(name: str) -> None:
    made = rule(name)
    flat, state = trained(made)
    waiting = torch.ones(24)
    assert isinstance(made, Extrapolates)
    assert torch.isfinite(extrapolated(made, flat, state, Ahead(3, waiting, 0.5, 0.7))).all()
    assert torch.equal(waiting, torch.ones(24))
    assert torch.equal(extrapolated(made, flat, state, Ahead(0, waiting, 0.5)), flat)


@pytest.mark.parametrize("name", WITH_WAITING)
@pytest.mark.parametrize("settings", [{}, {"l2": 0.1}])
def test_a_step_whose_gradients_all_wait_is_that_step(name: str, settings: dict[str, float]) -> None:
    made = rule(name, **(settings if name not in ("adamw", "lamb") else {}))
    flat, state = trained(made)
    waiting = torch.linspace(-1, 1, 24)
    later = extrapolated(made, flat, state, Ahead(1, waiting, 1.0, 0.5))
    made.step(flat, waiting, state, lr_scale=0.5)
    assert torch.equal(later, flat)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_momentum_under_a_constant_gradient_is_predicted_exactly(
    nesterov: bool, steps: int, share: float
) -> None:
    made = Momentum(lr=0.125, momentum=0.5, nesterov=nesterov)
    gradient = torch.full((24,), 0.25)
    flat, state = torch.linspace(-1, 1, 24), {"velocity": gradient * 2}  # where equal gradients lead
    later = extrapolated(made, flat, state, Ahead(steps, gradient, share))
    for _ in range(steps):
        made.step(flat, gradient, state)
    assert torch.equal(later, flat)


@pytest.mark.parametrize(
    ("name", "before"), [*((name, 200) for name in WITH_MOMENTS), ("adam", 3), ("adamw", 3), ("lamb", 3)]
)
def test_after_equal_gradients_the_coming_steps_are_predicted(name: str, before: int) -> None:
    """Adam's moment is known without its bias, so few are enough."""
    made, gradient = rule(name), torch.linspace(-1, 1, 24)
    flat, state = trained(made, before, gradient)
    later = extrapolated(made, flat, state, Ahead(3))
    start = flat.clone()
    for _ in range(3):
        made.step(flat, gradient, state)
    assert (later - flat).abs().max() < 1e-4 * (flat - start).abs().max()


def test_what_waits_counts_in_the_first_step_alone() -> None:
    made, waiting = rule("sgd"), torch.ones(24)
    flat, state = trained(made)
    one, three = (extrapolated(made, flat, state, Ahead(steps, waiting, 0.5)) for steps in (1, 3))
    assert torch.equal(one, three) and torch.equal(one, flat - 0.005)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "vr_sgd"])
def test_a_rule_without_moments_expects_nothing(name: str) -> None:
    made = rule(name)
    flat, state = trained(made)
    assert torch.equal(extrapolated(made, flat, state, Ahead(4)), flat)


@pytest.mark.parametrize("name", [name for name in DENSE_RULES if name.startswith("vr_")])
def test_variance_reduced_rules_and_lars_leave_waiting_gradients_out(name: str) -> None:
    for made in (rule(name), rule("lars")):
        flat, state = trained(made)
        known, unknown = (extrapolated(made, flat, state, Ahead(2, w, 0.5)) for w in (torch.ones(24), None))
        assert torch.equal(known, unknown)


def test_lars_goes_on_at_its_velocity() -> None:
    made = rule("lars")
    flat, state = trained(made)
    assert torch.equal(extrapolated(made, flat, state, Ahead(3)), flat - 3 * state["velocity"])


def test_an_element_without_any_gradient_before_moves_by_one_bounded_step() -> None:
    """Adam's denominator is 0 there: the waiting gradient must enter it too."""
    made = Adam(lr=0.01)
    flat, state = trained(made, 1, torch.zeros(24))
    later = extrapolated(made, flat, state, Ahead(2, torch.ones(24), 0.1))
    assert (later - flat).abs().max() < 10 * made.lr


def test_l2_counts_once() -> None:
    """The moment has it already."""
    plain, decayed = Momentum(lr=0.5, momentum=0.5), Momentum(lr=0.5, momentum=0.5, l2=0.25)
    flat, state = torch.ones(24), {"velocity": torch.ones(24)}
    assert torch.equal(
        extrapolated(decayed, flat, state, Ahead(1)), extrapolated(plain, flat, state, Ahead(1))
    )
    assert torch.equal(extrapolated(SGD(lr=0.5, l2=0.5), flat, {}, Ahead(1)), torch.full((24,), 0.75))
