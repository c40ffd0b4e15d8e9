"""Rules without locks: alone they are the stock rules, and together they keep weights bounded."""

from __future__ import annotations

import threading

import pytest
import torch

from gearshift.optim.first_order import SGD, Adagrad, Adam, DenseOptimizer
from gearshift.optim.hogwild import without_locks


@pytest.mark.parametrize("stock", [SGD(lr=0.1), Adagrad(lr=0.1, l2=1e-3), Adam(lr=0.01, l2=1e-3)])
def test_one_thread_steps_as_the_stock_rule(stock: DenseOptimizer) -> None:
    generator = torch.Generator().manual_seed(1)
    ours, theirs = torch.ones(50), torch.ones(50)
    rule = without_locks(stock)
    assert rule.lr == stock.lr
    state, other = rule.init(50), stock.init(50)
    for _ in range(30):
        gradient = torch.randn(50, generator=generator)
        rule.step(ours, gradient, state, lr_scale=0.5)
        stock.step(theirs, gradient, other, lr_scale=0.5)
    assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-7)


def test_a_step_counts_its_own_square_even_if_the_shared_sum_has_lost_it() -> None:
    """What a race does: another thread has just written back the sum of before."""
    rule, state = without_locks(Adagrad(lr=0.1)), Adagrad().init(1)

    class Losing(dict):  # type: ignore[type-arg]
        def __getitem__(self, name: str) -> torch.Tensor:
            found: torch.Tensor = super().__getitem__(name)
            found.zero_()
            return found

    flat = torch.zeros(1)
    rule.step(flat, torch.tensor([1e-3]), Losing(state), lr_scale=1.0)
    assert abs(flat.item()) <= 0.1 * (1 + 1e-6), "at most one rate"


@pytest.mark.parametrize("stock", [Adagrad(lr=0.05), Adam(lr=0.01)])
def test_threads_on_the_same_weights_stay_bounded(stock: DenseOptimizer) -> None:
    """A quadratic bowl, four threads; a step that divides by nearly nothing would throw the weights far out."""
    size, rule = 20_000, without_locks(stock)
    flat, state, far = torch.full((size,), 3.0), rule.init(size), []
    torch.set_num_threads(1)

    def train(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(150):
            noise = torch.randn(size, generator=generator)
            silent = torch.rand(size, generator=generator) < 0.8
            rule.step(flat, (flat + noise).masked_fill(silent, 0.0), state)
            far.append(float(flat.abs().max()))

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(far) < 5.0 and float(flat.abs().mean()) < 2.5
