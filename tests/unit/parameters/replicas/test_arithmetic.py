"""The derived facts of replica strategies, on plain vectors."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from gearshift.parameters.replicas.arithmetic import GlobalStep, centre_step, mean_of, merge
from gearshift.sync.exchange import Choices, EverySteps

K = EverySteps(1)


def centre(a: float, merge: str = "elastic", *, simultaneous: bool = False) -> Choices:
    return Choices("centre", K, merge, a, simultaneous=simultaneous)  # type: ignore[arg-type]


def mean(merge: str = "elastic", a: float = 1.0, **momentum: float) -> Choices:
    return Choices("mean", K, merge, a, **momentum)  # type: ignore[arg-type]


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ---- one exchange ----


@pytest.mark.parametrize("a", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("simultaneous", [False, True])
def test_disagreement_with_the_centre_shrinks_as_derived(a: float, simultaneous: bool) -> None:
    choices, c, w = centre(a, simultaneous=simultaneous), vector(1.0, -2.0, 0.5), vector(3.0, 4.0, 0.0)
    before = w - c
    merge(w, w.clone(), centre_step(c, w.clone(), choices), choices)
    factor = 1 - 2 * a if simultaneous else (1 - a) ** 2
    assert torch.allclose(w - c, factor * before, rtol=1e-12)


def test_alpha_0_is_no_synchronisation() -> None:
    for choices in (centre(0.0), centre(0.0, "delta"), mean("elastic", 0.0), mean("delta", 0.0)):
        c, w = vector(1.0, 2.0), vector(3.0, 4.0)
        if choices.exchange == "centre":
            target = centre_step(c, w.clone(), choices)
            assert c.tolist() == [1.0, 2.0]
        else:
            target = GlobalStep(choices, c).step(mean_of([w, c]))
        merge(w, w.clone(), target, choices)
        assert w.tolist() == [3.0, 4.0]


def test_an_elastic_merge_uses_the_live_weights_and_a_delta_merge_keeps_what_was_trained_meanwhile() -> None:
    sent, target = vector(1.0), vector(5.0)
    live = vector(2.0)  # it moved by 1 since
    merge(live, sent, target, mean("elastic", 0.25))
    assert live.item() == 0.75 * 2 + 0.25 * 5
    live = vector(2.0)
    merge(live, sent, target, mean("delta", 1.0))
    assert live.item() == 6.0
    merge(live, sent, target, mean("overwrite"))
    assert live.item() == 5.0


def test_who_has_finished_counts_for_nothing_in_the_mean_unless_all_have() -> None:
    snapshots = [vector(1.0), vector(3.0), vector(100.0)]
    assert mean_of(snapshots, [1.0, 1.0, 0.0]).item() == 2.0
    assert mean_of(snapshots, [0.0, 0.0, 0.0]).item() == pytest.approx(104 / 3)


def test_bmuf_without_momentum_is_model_averaging() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=generator, dtype=torch.float64)
    replicas = {kind: [start.clone() for _ in range(4)] for kind in ("bmuf", "averaging")}
    choices = {"bmuf": mean("elastic", 0.7, momentum=0.0, outer_rate=1.0), "averaging": mean("elastic", 0.7)}
    # A rate so near to 1 that bmuf's own arithmetic is done.
    almost = Choices("mean", K, "elastic", 0.7, momentum=0.0, outer_rate=1.0 + 1e-15)
    steps = {"bmuf": GlobalStep(almost, start), "averaging": GlobalStep(choices["averaging"], start)}
    assert almost.block_momentum and not choices["bmuf"].block_momentum
    for _ in range(30):
        moves = torch.randn(4, 50, generator=generator, dtype=torch.float64)
        for kind, own in replicas.items():
            for w, move in zip(own, moves, strict=True):
                w.add_(move)
            target = steps[kind].step(mean_of(own))
            for w in own:
                merge(w, w.clone(), target, choices[kind])
    for one, other in zip(replicas["bmuf"], replicas["averaging"], strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


def test_bmuf_with_nesterov_and_overwrite_is_diloco() -> None:
    """The outer optimizer of DiLoCo: torch's SGD with Nesterov momentum on the way that the mean has gone."""
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(20, generator=generator, dtype=torch.float64)
    outer = start.clone().requires_grad_()
    sgd = torch.optim.SGD([outer], lr=0.7, momentum=0.9, nesterov=True)
    ours = GlobalStep(Choices("mean", K, "overwrite", momentum=0.9, outer_rate=0.7, nesterov=True), start)
    at = start.clone()
    for _ in range(10):
        mean_now = at + torch.randn(20, generator=generator, dtype=torch.float64)
        outer.grad = outer.detach() - mean_now
        sgd.step()
        at = ours.step(mean_now)
        assert torch.allclose(at, outer.detach(), rtol=1e-12)


# ---- the speed of the consensus ----


def speed(choices: Choices, n: int, f: float, cycles: int = 4000) -> float:
    """How far the consensus moves per cycle, if each replica trains by 1 in it, a share f while it exchanges."""
    live = [vector(0.0) for _ in range(n)]
    c = vector(0.0)
    together = GlobalStep(choices, vector(0.0))
    positions = []
    for _ in range(cycles):
        for w in live:
            w.add_(1 - f)
        sent = [w.clone() for w in live]
        if choices.exchange == "centre":
            targets = [centre_step(c, s, choices) for s in sent]
        else:
            targets = [together.step(mean_of(sent))] * n
        for w, s, target in zip(live, sent, targets, strict=True):
            w.add_(f)
            merge(w, s, target, choices)
        positions.append((c if choices.exchange == "centre" else mean_of(live)).item())
    steps = [b - a for a, b in pairwise(positions[cycles // 2 :])]
    return sum(steps) / len(steps)


@pytest.mark.parametrize("f", [0.0, 0.5, 1.0])
class TestConsensusSpeed:
    @pytest.mark.parametrize(("n", "a"), [(20, 0.5), (8, 0.3), (1, 0.9)])
    def test_easgd(self, f: float, n: int, a: float) -> None:
        assert speed(centre(a), n, f) == pytest.approx(n * (1 - a * f) / (n + 1 - a), rel=0.02)
        assert speed(centre(a, "delta"), n, f) == pytest.approx(n / (n + 1 - a), rel=0.02)

    def test_model_averaging(self, f: float) -> None:
        assert speed(mean("elastic", 0.3), 5, f) == pytest.approx(1 - 0.3 * f, rel=1e-6)
        assert speed(mean("delta", 1.0), 5, f) == pytest.approx(1.0, rel=1e-6)
        assert speed(mean("overwrite"), 5, f) == pytest.approx(1 - f, abs=1e-6)

    @pytest.mark.parametrize(("momentum", "rate"), [(0.9, 1.0), (0.5, 0.7), (0.0, 1.4)])
    def test_bmuf(self, f: float, momentum: float, rate: float) -> None:
        a = 0.5
        elastic = mean("elastic", a, momentum=momentum, outer_rate=rate)
        delta = mean("delta", 1.0, momentum=momentum, outer_rate=rate)
        expected = (1 - a * f) / (1 - a + a * (1 - momentum) / rate)
        assert speed(elastic, 4, f) == pytest.approx(expected, rel=1e-3)
        assert speed(delta, 4, f) == pytest.approx(rate / (1 - momentum), rel=1e-3)


@pytest.mark.parametrize(
    ("a", "rate", "stable"), [(0.5, 2.9, True), (0.5, 3.1, False), (0.2, 2.2, True), (0.2, 2.3, False)]
)
def test_bmuf_without_momentum_is_stable_up_to_its_bound(a: float, rate: float, stable: bool) -> None:
    """Without momentum iff (1-a)|1-eta| < 1, in cycles that begin at the merge."""
    choices = mean("elastic", a, momentum=0.0, outer_rate=rate)
    together, w = GlobalStep(choices, vector(0.0)), vector(1.0)
    for _ in range(400):
        merge(w, w.clone(), together.step(w.clone()), choices)
    distance = (w - together.position).abs().item()
    assert (distance < 1e-3) == stable
    assert ((1 - a) * abs(1 - rate) < 1) == stable
