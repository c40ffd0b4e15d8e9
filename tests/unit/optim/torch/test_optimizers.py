"""The patterns of torch's own optimizer tests (test/test_optim.py), on ours."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, OneCycleLR, ReduceLROnPlateau

from gearshift.errors import UserError
from gearshift.optim import LAMB, LARS, VRLAMB, VRLARS, VRSGD, VRAdam, VRMomentum
from gearshift.optim.torch.variance_reduced import VarianceReducedOptimizer

Make = Callable[..., torch.optim.Optimizer]
ALL: list[Any] = [LARS, LAMB, VRSGD, VRMomentum, VRAdam, VRLARS, VRLAMB]
WITH_MOMENTUM = [o for o in ALL if o is not VRSGD]
every = pytest.mark.parametrize("kind", ALL)


@pytest.fixture(autouse=True)
def _plain_steps_are_not_the_subject() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="VR.*as without VR")
        yield


def rosenbrock(x: Tensor) -> Tensor:
    return (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2


def quadratic(p: Tensor, piece: int = 0) -> Tensor:
    """Another one for each piece of a batch."""
    place = torch.arange(1, p.numel() + 1).view_as(p)
    return ((p - 1 - 0.3 * torch.sin(piece * place)) ** 2 * place).sum()


def backward(optimizer: torch.optim.Optimizer, parameters: list[Tensor]) -> Tensor:
    """The mean of nine pieces; an optimizer that has an r sees them one by one."""
    losses: list[Tensor] = [sum(quadratic(p, k) for p in parameters) for k in range(9)]  # type: ignore[misc]
    mean = torch.stack(losses).mean()
    if isinstance(optimizer, VarianceReducedOptimizer):
        with optimizer.micro_batches() as collect:
            for loss in losses:
                loss.backward(retain_graph=True)
                collect()
    else:
        optimizer.zero_grad()
        mean.backward()
    return mean.detach()


def walk(optimizer: torch.optim.Optimizer, parameters: list[Tensor], steps: int = 5) -> list[Tensor]:
    for _ in range(steps):
        backward(optimizer, parameters)
        optimizer.step()
    if isinstance(optimizer, VarianceReducedOptimizer):
        assert all(one.mean_ratio < 1 for one in optimizer.statistics()), "or it is the rule without r"
    return [p.detach().clone() for p in parameters]


def fresh(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(s, generator=generator, dtype=dtype)) for s in ((3, 2), (4,), (2, 2, 2))]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@every
def test_a_loss_falls_with_every_scheduler(kind: Make) -> None:
    schedulers: list[Any] = [
        lambda o: LambdaLR(o, lambda epoch: 0.98**epoch),
        lambda o: ExponentialLR(o, 0.99),
        lambda o: CosineAnnealingLR(o, 100),
        lambda o: OneCycleLR(o, 0.05, total_steps=100),
        ReduceLROnPlateau,
    ]
    for make in schedulers:
        parameters = fresh()
        rate = {"lr": 0.05} if kind in (LAMB, VRLAMB, VRAdam) else {"lr": 5e-3}
        optimizer = kind(parameters, **rate, **({"eta": 0.5} if kind in (LARS, VRLARS) else {}))
        scheduler = make(optimizer)
        before = float(sum(quadratic(p).detach() for p in parameters))
        rates = set()
        for _ in range(100):
            walk(optimizer, parameters, 1)
            loss = sum(quadratic(p).detach() for p in parameters)
            scheduler.step(*([loss] if make is ReduceLROnPlateau else []))
            rates.add(optimizer.param_groups[0]["lr"])
        assert float(loss) < 0.7 * before
        assert len(rates) > 50 or make is ReduceLROnPlateau


@every
def test_the_rate_that_a_scheduler_sets_is_the_rate(kind: Make) -> None:
    one, other = fresh(), fresh()
    scheduled = kind(one, lr=0.1)
    LambdaLR(scheduled, lambda epoch: 0.25)
    assert same(walk(scheduled, one), walk(kind(other, lr=0.025), other))


@pytest.mark.parametrize("kind", WITH_MOMENTUM)
def test_one_cycle_moves_the_momentum(kind: Make) -> None:
    parameters = fresh()
    optimizer = kind(parameters, lr=0.1)
    scheduler = OneCycleLR(optimizer, 0.1, total_steps=10)
    key = "momentum" if "momentum" in optimizer.defaults else "betas"
    seen = []
    for _ in range(9):
        walk(optimizer, parameters, 1)
        scheduler.step()
        value = optimizer.param_groups[0][key]
        seen.append(value if key == "momentum" else value[0])
    assert min(seen) < 0.87 and max(seen) > 0.94


def test_a_state_of_vrsgd_from_before_it_had_momentum_is_loaded() -> None:
    one, other = fresh(), fresh()
    optimizer = VRSGD(one, lr=0.1)
    walk(optimizer, one, 1)
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        del group["momentum"]
    loaded = VRSGD(other, lr=0.3, momentum=0.9)
    loaded.load_state_dict(saved)
    assert (loaded.param_groups[0]["lr"], loaded.param_groups[0]["momentum"]) == (0.1, 0.0)
    walk(loaded, other, 1)


@every
def test_groups_have_their_own_settings(kind: Make) -> None:
    w, b, rest = fresh()
    alone_w, alone_b, _ = fresh()
    groups = [
        {"params": [w], "lr": 0.02, "weight_decay": 0.1},
        {"params": [b]},
        {"params": [rest], "lr": 0.0},
    ]
    optimizer = kind(groups, lr=0.05)
    start = rest.detach().clone()
    walk(optimizer, [w, b, rest])
    assert same([w.detach()], walk(kind([alone_w], lr=0.02, weight_decay=0.1), [alone_w]))
    assert same([b.detach()], walk(kind([alone_b], lr=0.05), [alone_b]))
    assert torch.equal(rest.detach(), start)


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        *itertools.product(
            (VRSGD, VRMomentum, VRAdam, VRLARS, VRLAMB),
            ({"floor": 0.6}, {"min_gradients": 20}, {"control": "layer_mean"}),
        ),
        (VRAdam, {"beta3": 0.5}),
        (VRLAMB, {"beta3": 0.5}),
    ],
)
def test_groups_have_an_r_of_their_own(kind: Make, own: dict[str, Any]) -> None:
    w, b, _ = fresh()
    collect_steps(kind([{"params": [w], **own}, {"params": [b]}], lr=0.02), [w, b], 4)
    (alone_w, alone_b, _), (plain_w, _, _) = fresh(), fresh()
    collect_steps(kind([alone_w, alone_b], lr=0.02, **own), [alone_w, alone_b], 4)
    assert torch.equal(w, alone_w) and not torch.equal(b, alone_b)
    collect_steps(kind([plain_w], lr=0.02), [plain_w], 4)
    assert not torch.equal(w, plain_w)


@pytest.mark.parametrize("kind", [VRAdam, VRLAMB])
def test_a_memory_of_r_may_begin_and_end_later(kind: Make) -> None:
    parameters = fresh()
    optimizer = kind(parameters, lr=0.02, beta3=0.0)
    for beta3, kept in ((0.0, False), (0.9, True), (0.0, True)):
        optimizer.param_groups[0]["beta3"] = beta3
        optimizer.load_state_dict(optimizer.state_dict())  # before there is one, and when it is used no more
        walk(optimizer, list(parameters), 2)
        assert ("ratio" in optimizer.state[parameters[0]]) is kept
    with pytest.raises(UserError, match="does not fit LAMB"):
        LAMB(parameters).load_state_dict(optimizer.state_dict())


def test_a_step_without_gradients_is_none() -> None:
    parameters = fresh()
    optimizer = VRAdam(parameters)
    before = [p.detach().clone() for p in parameters]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    assert optimizer.plain_steps == 0 and all(map(torch.equal, before, parameters))


@every
def test_a_hook_may_mend_a_saved_state_before_it_is_checked(kind: Make) -> None:
    parameters = fresh()
    optimizer = kind(parameters)
    walk(optimizer, list(parameters), 2)
    saved = optimizer.state_dict()
    del saved["param_groups"][0]["weight_decay"]
    again = kind(fresh())
    with pytest.raises(UserError, match="has no weight_decay"):
        again.load_state_dict(saved)

    def mend(_: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
        groups = [{"weight_decay": 0.5} | group for group in saved["param_groups"]]
        return saved | {"param_groups": groups}

    again.register_load_state_dict_pre_hook(mend)
    again.load_state_dict(saved)
    assert again.param_groups[0]["weight_decay"] == 0.5
    again.load_state_dict(saved)  # the check is last each time


@every
def test_a_group_added_later(kind: Make) -> None:
    w, b, _ = fresh()
    late = fresh()[2]
    optimizer = kind([w], lr=0.05)
    walk(optimizer, [w], 3)
    optimizer.add_param_group({"params": [late], "lr": 0.01})
    alone = fresh()[2]
    walk(optimizer, [w, late], 4)
    assert same([late.detach()], walk(kind([alone], lr=0.01), [alone], 4))
    with pytest.raises(UserError, match=r"lr must be 0 or more, not -1"):
        optimizer.add_param_group({"params": [b], "lr": -1})
    with pytest.raises(UserError, match="real parameters"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, dtype=torch.complex64))]})
    assert len(optimizer.param_groups) == 2, "refused groups are not kept"


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_state_dict_round_trip(kind: Make, dtype: torch.dtype) -> None:
    parameters = fresh(dtype)
    optimizer = kind(parameters, lr=0.03, weight_decay=0.01)
    collect_steps(optimizer, parameters, 4)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    clones = [nn.Parameter(p.detach().clone()) for p in parameters]
    other = kind(clones, lr=123.0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.param_groups[0]["lr"] == 0.03
    collect_steps(optimizer, parameters, 4)
    collect_steps(other, clones, 4)
    assert same(list(parameters), list(clones))


def collect_steps(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], steps: int) -> None:
    """Steps with r where the optimizer has one."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(steps):
        lists = [
            [torch.randn(p.shape, generator=generator).to(p.dtype) for p in parameters] for _ in range(9)
        ]
        if isinstance(optimizer, VarianceReducedOptimizer):
            optimizer.step(gradients=lists)
        else:
            for p, *g in zip(parameters, *lists, strict=True):
                p.grad = torch.stack(g).mean(0)
            optimizer.step()


@every
def test_a_deep_copy_goes_on_alone(kind: Make) -> None:
    layer = nn.Linear(3, 2)
    optimizer = kind(layer.parameters(), lr=0.05)
    collect_steps(optimizer, list(layer.parameters()), 3)
    layer2, optimizer2 = copy.deepcopy((layer, optimizer))
    collect_steps(optimizer, list(layer.parameters()), 3)
    assert not same(list(layer.parameters()), list(layer2.parameters()))
    collect_steps(optimizer2, list(layer2.parameters()), 3)
    assert same(list(layer.parameters()), list(layer2.parameters()))


@every
def test_closure_gives_the_loss_and_has_gradients_on(kind: Make) -> None:
    one, other = fresh(), fresh()
    optimizer = kind(one, lr=0.02)

    def closure() -> Tensor:
        return backward(optimizer, list(one))

    with torch.no_grad():
        losses = [float(optimizer.step(closure)) for _ in range(5)]  # type: ignore[arg-type]
    walk(kind(other, lr=0.02), other)
    assert same(list(one), list(other)) and losses[0] > losses[-1]
    assert optimizer.step() is None


@every
def test_parameters_without_gradient_are_left_alone(kind: Make) -> None:
    w, b, rest = fresh()
    optimizer = kind([w, b, rest], lr=0.1, weight_decay=0.1)
    start = b.detach().clone()
    walk(optimizer, [w, rest])
    assert torch.equal(b.detach(), start) and b not in optimizer.state
    assert kind([nn.Parameter(torch.ones(2))]).step() is None, "no gradient anywhere"


@every
def test_sparse_gradients_are_refused_before_anything_moves(kind: Make) -> None:
    first = nn.Parameter(torch.ones(2))
    table = nn.Embedding(10, 3, sparse=True)
    optimizer = kind([first, *table.parameters()], lr=0.1)
    (first.sum() + table(torch.tensor([1, 2])).sum()).backward()
    with pytest.raises(
        UserError, match=r"does not support sparse gradients, such as that of group 0, parameter 1: create"
    ):
        optimizer.step()
    assert torch.equal(first.detach(), torch.ones(2))
    named = kind(nn.Embedding(4, 2, sparse=True).named_parameters(), lr=0.1)
    named.param_groups[0]["params"][0].grad = torch.zeros(4, 2).to_sparse()
    with pytest.raises(UserError, match="such as that of weight: create"):
        named.step()


@every
def test_non_contiguous_parameters_equal_contiguous_ones(kind: Make) -> None:
    values = torch.randn(5, 4, 2)
    strided, plain = nn.Parameter(values[..., 0]), nn.Parameter(values[..., 0].contiguous())
    assert not strided.is_contiguous()
    optimizers = kind([strided], lr=0.05), kind([plain], lr=0.05)
    for _ in range(3):
        collect_steps(optimizers[0], [strided], 1)
        collect_steps(optimizers[1], [plain], 1)
    torch.testing.assert_close(strided, plain)


@every
@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"lr": -1.0}, "lr must be 0 or more, not -1.0"),
        ({"lr": float("inf")}, "lr must be 0 or more, not inf"),
        ({"lr": float("nan")}, "lr must be 0 or more, not nan"),
        ({"weight_decay": -1.0}, "weight_decay must be 0 or more"),
        ({"betas": (1.0, 0.9)}, "betas must be at least 0 and below 1, not 1.0"),
        ({"momentum": 1.5}, "momentum must be at least 0 and below 1"),
        ({"floor": 2.0}, "from 0 to 1, not 2.0"),
    ],
)
def test_bad_settings_are_refused(kind: Make, setting: dict[str, Any], sentence: str) -> None:
    known = kind(fresh()).defaults
    if set(setting) <= set(known):
        with pytest.raises(UserError, match=sentence):
            kind(fresh(), **setting)
    else:
        with pytest.raises(TypeError, match="unexpected keyword"):
            kind(fresh(), **setting)


@every
def test_complex_parameters_and_empty_lists_are_refused(kind: Make) -> None:
    with pytest.raises(UserError, match="real parameters"):
        kind([nn.Parameter(torch.randn(2, dtype=torch.complex64))])
    with pytest.raises(ValueError, match="empty parameter list"):
        kind([])


@every
def test_rosenbrock(kind: Make) -> None:
    """One 1-D parameter: trust is 1, so LARS is momentum and LAMB is Adam."""
    x = nn.Parameter(torch.tensor([1.5, 1.5]))
    optimizer = kind([x], lr=2e-2 if kind in (LAMB, VRLAMB, VRAdam) else 1e-4)
    scheduler = LambdaLR(optimizer, functools.partial(pow, 0.998))
    before = float(rosenbrock(x.detach()))
    for _ in range(600):
        optimizer.zero_grad()
        rosenbrock(x).backward()
        optimizer.step()
        scheduler.step()
    assert float(rosenbrock(x.detach())) < 0.01 * before
