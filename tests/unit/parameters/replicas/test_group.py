"""Replicas in one process: forked, updated, merged and folded; the equalities of k-step Adam."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import gearshift as gs
from gearshift.errors import UserError
from gearshift.optim.first_order import Adam
from gearshift.parameters.push import Push
from gearshift.parameters.replicas.group import Replicas, rule_for
from gearshift.parameters.server import Server
from gearshift.sync.exchange import Choices
from gearshift.sync.registry import make_strategy
from gearshift.sync.replicated import choices_of

SIZE = 40


def choices(name: str, **settings: object) -> Choices:
    found = choices_of(make_strategy(name, {"global_batch": 8, "batch": 2, **settings}))
    assert found is not None
    return found


def server(optimizer: gs.DenseOptimizer | None = None) -> Server:
    flat = torch.randn(SIZE, generator=torch.Generator().manual_seed(3))
    return Server(flat, (), optimizer or Adam(lr=0.01))


def gradients(count: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    # Elements that are silent most of the time, and others that shrink: what makes denominators differ.
    scale = torch.logspace(-3, 1, SIZE)
    often = torch.rand(count, SIZE, generator=generator) < torch.linspace(0.1, 1, SIZE)
    values = torch.randn(count, SIZE, generator=generator) * scale * often
    return [g / (1 + 0.2 * i) for i, g in enumerate(values)]


def push(gradient: Tensor, examples: float = 4.0) -> Push:
    return Push((), gradient * examples, examples, 0.0, np.zeros((4, 1), np.float32))


def trained(name: str, workers: int, steps: int, **settings: object) -> Replicas:
    """In rounds: each worker makes a step, and they meet where the boundary is."""
    replicas = Replicas(server(), choices(name, **settings))
    for worker in range(workers):
        replicas.join(worker)
    trigger = replicas.choices.trigger
    given = [gradients(steps, seed=worker) for worker in range(workers)]
    for step in range(steps):
        for worker in range(workers):
            replicas.step(worker, push(given[worker][step]), lr_scale=1.0)
        if trigger.ends_at(step + 1):  # type: ignore[union-attr]
            replicas.meet()
    return replicas


def by_adam(steps: int) -> Tensor:
    on, adam = server(), Adam(lr=0.01)
    for gradient in gradients(steps):
        adam.step(on.flat, (gradient * 4.0) / 4.0, on.optimizer_state)
    return on.flat


@pytest.mark.parametrize(
    ("mode", "k"), [("frozen_v", 1), ("params", 1), ("params", 7), ("params_m_v", 1), ("params_m_v", 7)]
)
def test_k_step_adam_of_one_worker_is_adam(mode: str, k: int) -> None:
    replicas = trained("k_step_adam", 1, 40, exchange=k, mode=mode, warmup_steps=0)
    replicas.fold()
    assert torch.equal(replicas.server.flat, by_adam(40))


def test_frozen_v_of_one_worker_between_merges_divides_by_no_less_than_adam() -> None:
    replicas = trained("k_step_adam", 1, 39, exchange=20, warmup_steps=0)
    replicas.fold()
    assert not torch.equal(replicas.server.flat, by_adam(39))


def test_an_element_silent_until_the_middle_of_a_period_makes_no_huge_step() -> None:
    replicas = Replicas(server(), choices("k_step_adam", exchange=20, warmup_steps=0))
    replicas.join(0)
    before = replicas.members[0].flat.clone()
    silent = torch.zeros(SIZE)
    for step in range(15):
        loud = silent.clone()
        loud[0] = 1.0 if step == 10 else 0.0
        replicas.step(0, push(loud), lr_scale=1.0)
    moved = (replicas.members[0].flat - before).abs().max()
    assert 0 < moved < 50 * 0.01, "a few rates, not thousands"


@pytest.mark.parametrize("mode", ["frozen_v", "params", "params_m_v"])
def test_replicas_are_bit_equal_after_a_merge_and_state_only_where_it_is_merged(mode: str) -> None:
    replicas = trained("k_step_adam", 4, 30, exchange=10, mode=mode, warmup_steps=0)
    first, *others = replicas.members.values()
    assert all(torch.equal(first.flat, other.flat) for other in others)
    equal = {name: all(torch.equal(first.state[name], o.state[name]) for o in others) for name in first.state}
    merged = {"frozen_v": {"shared"}, "params": set(), "params_m_v": {"mean", "square"}}[mode]
    assert {name for name, same in equal.items() if same} - {"step"} == merged


def test_with_several_workers_the_shared_denominator_is_that_of_the_mean() -> None:
    replicas = trained("k_step_adam", 4, 10, exchange=10, warmup_steps=0)
    squares = torch.stack([one.state["square"] for one in replicas.members.values()]).mean(0)
    expected = (squares / (1 - 0.999**10)).sqrt()
    assert torch.allclose(replicas.members[0].state["shared"], expected, rtol=1e-5)


def test_a_merge_that_nobody_expected_finishes_no_step_twice() -> None:
    """An evaluation merges in the middle of a period."""
    replicas = Replicas(server(), choices("k_step_adam", exchange=2, warmup_steps=0))
    replicas.join(0)
    (first, second, third) = gradients(3)
    replicas.step(0, push(first), lr_scale=1.0)
    replicas.show()
    replicas.step(0, push(second), lr_scale=1.0)  # the boundary: its weights wait for the merge
    waiting = replicas.members[0].flat.clone()
    replicas.show()
    assert not torch.equal(replicas.members[0].flat, waiting)
    once = replicas.members[0].flat.clone()
    replicas.meet()
    assert torch.equal(replicas.members[0].flat, once)
    replicas.step(0, push(third), lr_scale=1.0)
    assert replicas.members[0].counts.exchanges == 1, "what an evaluation forces is not counted"


def test_bmuf_without_momentum_is_model_averaging_on_the_same_schedule() -> None:
    bmuf = trained("bmuf", 3, 20, exchange=5, momentum=0.0, outer_rate=1.0 + 1e-7)
    averaging = trained("model_averaging", 3, 20, exchange=5)
    assert bmuf.choices.block_momentum
    for one, other in zip(bmuf.members.values(), averaging.members.values(), strict=True):
        assert torch.allclose(one.flat, other.flat, atol=2e-6)


def test_alpha_0_is_no_synchronisation() -> None:
    alone = Replicas(server(), choices("easgd", elasticity=0.0))
    synced = Replicas(server(), choices("easgd", elasticity=0.0))
    for step, gradient in enumerate(gradients(10)):
        for replicas in (alone, synced):
            for worker in (0, 1):
                replicas.join(worker)
                replicas.step(worker, push(gradient * (1 + worker)), lr_scale=1.0)
        synced.send(step % 2)
        synced.receive((step % 2,))
    for one, other in zip(alone.members.values(), synced.members.values(), strict=True):
        assert torch.equal(one.flat, other.flat)
    assert torch.equal(synced.common.centre, server().flat)


def test_a_fork_copies_weights_and_state_and_a_fold_takes_their_means_back() -> None:
    on = server()
    for gradient in gradients(3):
        on.optimizer.step(on.flat, gradient, on.optimizer_state)
    before, state = on.flat.clone(), {name: v.clone() for name, v in on.optimizer_state.items()}
    replicas = Replicas(on, choices("model_averaging"))
    for worker in (0, 1):
        replicas.join(worker)
        assert torch.equal(replicas.members[worker].flat, before)
        assert all(torch.equal(replicas.members[worker].state[name], state[name]) for name in state)
    replicas.step(0, push(gradients(1, 5)[0]), lr_scale=1.0)
    assert torch.equal(on.flat, before), "the server stands still"
    own = [(one.flat.clone(), one.state["mean"].clone()) for one in replicas.members.values()]
    replicas.fold()
    assert torch.allclose(on.flat, (own[0][0] + own[1][0]) / 2)
    assert torch.allclose(on.optimizer_state["mean"], (own[0][1] + own[1][1]) / 2)
    assert int(on.optimizer_state["step"]) == 4, "3.5 steps are rounded to even"
    assert not replicas.members


def test_another_replica_strategy_leaves_replicas_as_they_are() -> None:
    replicas = trained("bmuf", 3, 7, exchange=5)
    before = [(one.flat.clone(), one.state["mean"].clone()) for one in replicas.members.values()]
    seen = replicas.target().clone()
    replicas.rechoose(choices("k_step_adam"))
    for one, (flat, mean) in zip(replicas.members.values(), before, strict=True):
        assert torch.equal(one.flat, flat) and torch.equal(one.state["mean"], mean)
        assert "shared" in one.state
    replicas.rechoose(choices("easgd"))
    assert "shared" not in replicas.members[0].state
    assert torch.allclose(replicas.common.centre, torch.stack([flat for flat, _ in before]).mean(0))
    assert not torch.equal(replicas.common.centre, seen), (
        "the mean under k-step Adam, the global model under bmuf"
    )


def test_a_newcomer_begins_with_what_an_evaluation_sees() -> None:
    replicas = trained("easgd", 2, 5, exchange=5)
    replicas.send(0)
    replicas.receive((0,))
    replicas.join(7)
    assert torch.equal(replicas.members[7].flat, replicas.common.centre)
    assert torch.allclose(
        replicas.members[7].state["square"],
        (replicas.members[0].state["square"] + replicas.members[1].state["square"]) / 2,
    )
    replicas.leave(7)
    assert set(replicas.members) == {0, 1}
    replicas.leave(0)
    replicas.leave(1)
    assert set(replicas.members) == {1}, "what was learned waits for somebody"
    replicas.join(2)
    assert set(replicas.members) == {2}


def test_a_finished_trainer_moves_no_centre_and_its_exchanges_do_not_count() -> None:
    replicas = trained("easgd", 2, 5, exchange=100)
    centres = [replicas.common.centre.clone()]
    replicas.idle(0)
    for _ in range(2):  # the first time it gives what it has not given yet
        replicas.send(0)
        replicas.receive((0,))
        centres.append(replicas.common.centre.clone())
    assert not torch.equal(centres[1], centres[0]) and torch.equal(centres[2], centres[1])
    assert replicas.members[0].counts.exchanges == 1
    replicas.busy(0)
    replicas.send(0)
    replicas.receive((0,))
    assert not torch.equal(replicas.common.centre, centres[2])
    assert replicas.members[0].counts.exchanges == 2


def test_a_gradient_that_the_servers_held_at_the_switch_moves_all_replicas_alike() -> None:
    for name in ("easgd", "bmuf", "model_averaging"):
        replicas = trained(name, 2, 3, exchange=100)
        before = [one.flat.clone() for one in replicas.members.values()]
        change, seen = torch.full((SIZE,), 0.25), replicas.target().clone()
        replicas.shift(change)
        for one, flat in zip(replicas.members.values(), before, strict=True):
            assert torch.allclose(one.flat, flat + change)
        assert torch.allclose(replicas.target(), seen + change, atol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "settings", "sentence"),
    [
        (gs.SGD(), {"name": "k_step_adam"}, "k_step_adam merges Adam's state, but optimizer.dense is sgd"),
        (gs.optim.build("vr_adam"), {"name": "easgd"}, "vr_\\* needs several gradients per step"),
        (
            gs.optim.build("lamb"),
            {"name": "easgd", "workers_per_replica": 2},
            r"\(sgd, adagrad or adam\), not",
        ),
    ],
)
def test_optimizers_that_replicas_cannot_have(
    optimizer: gs.DenseOptimizer, settings: dict[str, object], sentence: str
) -> None:
    name = str(settings.pop("name"))
    with pytest.raises(UserError, match=sentence):
        rule_for(server(optimizer), choices(name, **settings))
