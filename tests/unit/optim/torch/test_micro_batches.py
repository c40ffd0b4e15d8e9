"""VR in a custom loop: the source of the gradients does not matter, and plain steps are reported."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as loss_of
from torch.optim.lr_scheduler import ExponentialLR

from gearshift.errors import UserError
from gearshift.optim import LAMB, VRLAMB, VRLARS, VRSGD, Layout, VRAdam, VRMomentum, build, spread_of
from gearshift.parameters.dense import DenseParameters

KINDS: dict[Any, str] = {
    VRSGD: "vr_sgd",
    VRMomentum: "vr_momentum",
    VRAdam: "vr_adam",
    VRLARS: "vr_lars",
    VRLAMB: "vr_lamb",
}
BASES: list[tuple[Any, Any]] = [
    (VRSGD, lambda p: torch.optim.SGD(p, 0.05, weight_decay=0.01)),
    (VRMomentum, lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.01)),
    (VRAdam, lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.01)),
]
every = pytest.mark.parametrize("kind", KINDS)


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def data(seed: int, n: int = 96) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator)
    chance = torch.sigmoid(x @ torch.linspace(-2, 2, 6))
    return x, (torch.rand(n, generator=generator) < chance).float()[:, None]


def pieces(seed: int) -> list[tuple[Tensor, Tensor]]:
    """Micro-batches that differ in size: ten of 9 examples and one of 6."""
    return list(zip(*(t.split(9) for t in data(seed)), strict=True))


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss_of(model(x), y), list(model.parameters())))


def collect_step(model: nn.Module, optimizer: Any, seed: int) -> None:
    with optimizer.micro_batches() as collect:
        for x, y in pieces(seed):
            loss_of(model(x), y).backward()
            collect(examples=len(x))
    optimizer.step()


@every
def test_micro_batches_equal_devices_equal_the_servers_pushes(kind: Any) -> None:
    """k micro-batches in one loop, k devices' gradients handed over, and the flat buffer with k pushes."""
    collected, devices, served = make_model(), make_model(), make_model()
    one, other = kind(collected.parameters(), lr=0.05), kind(devices.parameters(), lr=0.05)
    dense = DenseParameters(served)
    layout = Layout.of(dense.names, dense.shapes, dense.offsets)
    rule: Any = build(KINDS[kind], lr=0.05).on(layout)  # type: ignore[attr-defined]
    state = rule.init(len(dense))
    for seed in range(5):
        collect_step(collected, one, seed)
        lists = [gradients(devices, x, y) for x, y in pieces(seed)]
        other.step(gradients=lists, weights=[len(x) for x, _ in pieces(seed)])
        pushes = []
        for x, y in pieces(seed):
            dense.zero_grad()
            loss_of(served(x), y, reduction="sum").backward()
            pushes.append((dense.grad.clone(), float(len(x)), 1.0))
        ratio = rule.gsnr.ratios(spread_of(pushes), layout).values
        assert ratio is not None
        gradient = torch.stack([push for push, _, _ in pushes]).sum(0) / 96
        rule.step(dense.flat, gradient, state, ratio=ratio)
    for a, b, c in zip(collected.parameters(), devices.parameters(), served.parameters(), strict=True):
        assert torch.equal(a, b), "the same sums in the same order"
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "base"), BASES)
def test_floor_one_equals_torch_on_the_mean_gradient(kind: Any, base: Any) -> None:
    mine, theirs = make_model(), make_model()
    optimizer, plain = (
        kind(mine.parameters(), lr=0.05, weight_decay=0.01, floor=1.0),
        base(theirs.parameters()),
    )
    for seed in range(10):
        collect_step(mine, optimizer, seed)
        plain.zero_grad()
        loss_of(theirs(data(seed)[0]), data(seed)[1]).backward()
        plain.step()
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@every
def test_floor_one_equals_the_base_bit_for_bit(kind: Any) -> None:
    """The same optimizer with r = 1 for want of gradients is the base: `min_gradients` beyond reach."""
    one, other = make_model(), make_model()
    reduced = kind(one.parameters(), lr=0.05, floor=1.0)
    plain = kind(other.parameters(), lr=0.05, min_gradients=1e9)
    with pytest.warns(UserWarning, match="as without VR"):
        for seed in range(6):
            collect_step(one, reduced, seed)
            collect_step(other, plain, seed)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert (reduced.plain_steps, plain.plain_steps) == (0, 6)


@every
@pytest.mark.parametrize("control", ["none", "norm_matched", "layer_mean", "permuted"])
def test_a_logistic_problem_is_learned(kind: Any, control: Any) -> None:
    model = make_model()
    rate = {VRSGD: 1.0, VRMomentum: 0.2, VRAdam: 0.02, VRLARS: 5.0, VRLAMB: 0.02}[kind]
    optimizer = kind(
        [{"params": [p], "lr": rate if p.ndim > 1 else min(rate, 0.1)} for p in model.parameters()],
        control=control,
    )
    x, y = data(1000, 2000)
    before = loss_of(model(x), y).item()
    for seed in range(60):
        collect_step(model, optimizer, seed)
    assert loss_of(model(x), y).item() < 0.42 < 0.6 < before


def test_after_the_block_grad_is_the_mean_and_may_be_clipped() -> None:
    model = make_model()
    optimizer = VRSGD(model.parameters(), lr=1.0, floor=1.0)
    x, y = data(5)
    wanted = gradients(model, x, y)
    loss_of(model(x + 1), y).backward()  # left over from something else
    with optimizer.micro_batches() as collect:
        for a, b in zip(x.split(12), y.split(12), strict=True):
            loss_of(model(a), b).backward()
            collect()
    for p, g in zip(model.parameters(), wanted, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, g, rtol=1e-4, atol=1e-6)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    moved = torch.cat([(a - b).flatten() for a, b in zip(model.parameters(), before, strict=True)])
    assert moved.norm().item() == pytest.approx(1e-3, rel=1e-3)
    assert not optimizer.collected, "used once"


def test_what_is_done_to_grad_does_not_reach_r() -> None:
    """Clipped, unscaled or emptied: r and the statistics are of the gradients that were collected."""
    found = []
    for change in (lambda p: None, lambda p: p.grad.clamp_(-0.01, 0.01), lambda p: p.grad.mul_(1e-3)):
        model = make_model()
        optimizer = VRSGD(model.parameters(), lr=0.0)
        with optimizer.micro_batches() as collect:
            for x, y in pieces(1):
                loss_of(model(x), y).backward()
                collect(examples=len(x))
        for p in model.parameters():
            change(p)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        found.append(optimizer.statistics())
    assert found[0] == found[1] == found[2] and found[0][0].noise_scale is not None


def test_a_parameter_that_some_micro_batches_lack_has_zeros_there() -> None:
    a, b, never = (nn.Parameter(torch.ones(2)) for _ in range(3))
    one, other = VRSGD([a, never], lr=0.1), VRSGD([b], lr=0.1)
    lists: list[list[Tensor | None]] = []
    for i in range(10):
        lists.append([torch.tensor([1.0, i - 3.0]) if i in (2, 3, 7) else None, None])
    one.step(gradients=lists)
    other.step(gradients=[[torch.zeros(2) if g is None else g] for g, _ in lists])
    torch.testing.assert_close(a, b)
    assert torch.equal(never.detach(), torch.ones(2))


def test_a_gradient_scaler_changes_nothing_and_may_skip_a_step() -> None:
    plain, mixed = make_model(), make_model()
    one, other = VRAdam(plain.parameters(), lr=0.05), VRAdam(mixed.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for seed in range(4):
        with other.micro_batches() as collect:
            for x, y in pieces(seed):
                broken = float("inf") if seed == 1 else 1.0
                scaler.scale(broken * loss_of(mixed(x), y)).backward()
                collect(examples=len(x))
        scaler.step(other)
        scaler.update()
        if seed != 1:
            collect_step(plain, one, seed)
    for a, b in zip(plain.parameters(), mixed.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_statistics_and_names() -> None:
    model = make_model()
    optimizer = VRAdam(model.named_parameters(), lr=0.01)
    assert optimizer.statistics() == ()
    collect_step(model, optimizer, 1)
    lines = optimizer.statistics()
    assert [line.layer for line in lines] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all(0.1 <= line.mean_ratio <= 1 and 0 <= line.at_floor < 1 for line in lines)
    assert lines[0].noise_scale is not None and lines[0].noise_scale > 1


def test_a_plain_step_is_said_once_and_counted() -> None:
    model = make_model()
    optimizer = VRAdam(model.parameters())
    loss_of(model(data(1)[0]), data(1)[1]).backward()
    with pytest.warns(UserWarning, match="VRAdam: the step has one gradient: r = 1, as without VR") as warned:
        optimizer.step()
        optimizer.step()
    assert len(warned) == 1 and optimizer.plain_steps == 2
    assert warned[0].filename == __file__, "points at the user's line"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collect_step(model, optimizer, 1)
    assert optimizer.plain_steps == 2


def test_mistakes_are_told_in_words() -> None:
    optimizer = VRSGD([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))])
    with pytest.raises(UserError, match="no micro-batch was collected"), optimizer.micro_batches():
        pass
    with pytest.raises(UserError, match="1 gradients for 2 parameters"):
        optimizer.step(gradients=[[torch.ones(2)]])
    with pytest.raises(UserError, match="2 weights for the gradients of 1 devices"):
        optimizer.step(gradients=[[torch.ones(2), None]], weights=[1, 2])
    with pytest.raises(UserError, match="more than 0 and at most"):
        optimizer.step(gradients=[[torch.ones(2), None]], weights=[0])
    with pytest.raises(
        UserError, match=r"gradient of group 0, parameter 1 is \[1\], but the parameter is \[2\]"
    ):
        optimizer.step(gradients=[[torch.ones(2), torch.ones(1)]])
    with pytest.raises(UserError, match="does not support sparse gradients"):
        optimizer.step(gradients=[[torch.ones(2).to_sparse(), None]])
    with pytest.raises(UserError, match="a list per device"):
        optimizer.step(gradients=[torch.ones(2), torch.ones(2)])  # type: ignore[list-item]
    for nothing in ([], [None], [3.0], 3):
        with pytest.raises(UserError, match="a list per device"):
            optimizer.step(gradients=nothing)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="parameter 0 is a ndarray, not a tensor"):
        optimizer.step(gradients=[[np.ones(2), None]])  # type: ignore[list-item]
    with pytest.raises(UserError, match="at most 1e"):
        optimizer.step(gradients=[[torch.ones(2), None]], weights=[float("inf")])
    for examples in ("3", None, True):
        with (
            pytest.raises(UserError, match=r"examples, not .*: skip an empty one"),
            optimizer.micro_batches() as collect,
        ):
            optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
            collect(examples=examples)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"by name: step\(gradients="):
        optimizer.step([[torch.ones(2), None]])  # type: ignore[arg-type]
    for weights in (5, ["a"]):
        with pytest.raises(
            UserError, match="weights must be a list with the number of examples of each device"
        ):
            optimizer.step(gradients=[[torch.ones(2), None]], weights=weights)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="weights belong to step"):
        optimizer.step(weights=[1.0])
    assert torch.equal(optimizer.param_groups[0]["params"][0].detach(), torch.ones(2)), "nothing moved"


def test_weights_come_as_numbers_of_any_kind() -> None:
    found = []
    for weights in (
        [1, 2, 3] * 4,
        torch.tensor([1, 2, 3] * 4),
        np.array([1, 2, 3] * 4),
    ):
        p = nn.Parameter(torch.ones(2))
        optimizer = VRSGD([p])
        optimizer.step(gradients=([torch.tensor([1.0 + i % 2, i])] for i in range(12)), weights=weights)  # type: ignore[arg-type]
        assert optimizer.plain_steps == 0
        found.append(p.detach())
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("in_place", [True, False])
def test_a_collected_gradient_may_be_changed_in_place_only(in_place: bool) -> None:
    model = make_model()
    optimizer = VRSGD(model.parameters(), lr=0.05)
    with optimizer.micro_batches() as collect:
        assert optimizer.statistics() == ()  # of the step before nothing is kept
        for x, y in pieces(1):
            loss_of(model(x), y).backward()
            collect(examples=len(x))
    first = next(model.parameters())
    assert first.grad is not None
    if in_place:
        first.grad.clamp_(-0.01, 0.01)
        optimizer.step()
        assert len(optimizer.statistics()) == 4
        return
    first.grad = first.grad.clamp(-0.01, 0.01)
    with pytest.warns(
        UserWarning, match="replaced by another tensor, so r = 1: change it in place"
    ) as warned:
        optimizer.step()
    assert len(warned) == 1 and len(optimizer.statistics()) == 3 and optimizer.plain_steps == 0


def test_a_warning_is_of_whoever_called_step() -> None:
    model = make_model()
    optimizer = VRAdam(model.parameters())
    ExponentialLR(optimizer, 0.9)  # wraps step() once more
    loss_of(model(data(1)[0]), data(1)[1]).backward()
    with pytest.warns(UserWarning, match="one gradient") as warned:
        optimizer.step()
    assert [one.filename for one in warned] == [__file__]


def test_a_collector_out_of_its_place_is_told() -> None:
    model = make_model()
    optimizer = VRAdam(model.parameters())
    (x, y), *_ = pieces(1)

    def backward() -> None:
        loss_of(model(x), y).backward()

    before = [p.detach().clone() for p in model.parameters()]
    with (
        pytest.raises(UserError, match="call it once, after the block"),
        optimizer.micro_batches() as collect,
    ):
        backward()
        collect()
        optimizer.step()
    with (
        pytest.raises(UserError, match="only one is allowed at a time"),
        optimizer.micro_batches(),
        optimizer.micro_batches(),
    ):
        pass
    with pytest.raises(UserError, match="call backward"), optimizer.micro_batches() as collect:
        collect()
    with (
        pytest.raises(UserError, match="a micro-batch was not collected"),
        optimizer.micro_batches() as collect,
    ):
        backward()
        collect()
        backward()
    with optimizer.micro_batches() as collect:
        backward()
        collect()
    with pytest.raises(UserError, match="block has ended"):
        collect()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    collect_step(model, optimizer, 1)  # and it goes on
    assert optimizer.plain_steps == 0


@pytest.mark.parametrize("dropped", ["zero_grad", "model", "a block that fails"])
def test_what_was_collected_and_thrown_away_is_not_used(dropped: str) -> None:
    """A plain step after it is a plain step."""
    model = make_model()
    optimizer = VRAdam(model.parameters())
    (x, y), *_ = pieces(1)
    with optimizer.micro_batches() as collect:
        for a, b in pieces(2):
            loss_of(model(a), b).backward()
            collect(examples=len(a))
    match dropped:
        case "zero_grad":
            optimizer.zero_grad(set_to_none=False)
        case "model":
            model.zero_grad()
        case _:
            with pytest.raises(ZeroDivisionError), optimizer.micro_batches():
                raise ZeroDivisionError
    loss_of(model(x), y).backward()
    with pytest.warns(UserWarning, match="one gradient|another tensor") as warned:
        optimizer.step()
    assert optimizer.plain_steps == 1
    assert len(warned) == (
        2 if dropped == "model" else 1
    )  # there the optimizer sees gradients that took the place


@every
def test_gradients_too_large_to_square_have_r_1(kind: Any) -> None:
    """The step is then that of the rule without VR, which may survive them; r of the others is unchanged."""
    p = nn.Parameter(torch.ones(4))
    optimizer = kind([p], lr=0.1)
    torch.manual_seed(1)
    plain = torch.randn(8, 4) + 1
    for size in (1e20, float("nan")):
        huge = plain.clone()
        huge[:, 3] *= size
        optimizer.step(gradients=[[g] for g in huge])
        (ratios,) = optimizer.ratios
        assert ratios.values[3] == 1 and ratios.values[:3].isfinite().all() and ratios.values[:3].max() == 1


def test_state_of_another_optimizer_or_model_is_refused() -> None:
    model = make_model()
    optimizer = VRAdam(model.parameters())
    collect_step(model, optimizer, 1)
    saved = optimizer.state_dict()
    for other in (VRSGD, VRMomentum, VRLARS, LAMB):
        with pytest.raises(UserError, match=f"(does not fit|was not saved by) {other.__name__}"):
            other(make_model().parameters()).load_state_dict(saved)
    with pytest.raises(UserError, match=r"no beta3, .*floor.*: it was not saved by VRAdam"):
        optimizer.load_state_dict(torch.optim.Adam(model.parameters()).state_dict())
    wide = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    with pytest.raises(UserError, match=r"with a parameter of shape \[2, 8\]"):
        VRAdam(wide.parameters()).load_state_dict(saved)
    again = VRAdam(make_model().parameters())
    again.load_state_dict(saved)
    assert again.state_dict()["state"].keys() == saved["state"].keys()
