"""Real gradients in virtual time: the equalities of threads hold here too; the same seed gives the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.cluster_model.cluster import ClusterModel, Compute, Crash, Lognormal, Slow, SlowPeriod
from gearshift.engine.simulation.learning import VirtualRun, train_in_virtual_time
from gearshift.parameters.server import RowSettings
from gearshift.sync.automatic import Auto, Automatic
from gearshift.sync.registry import STRATEGIES, resolve
from gearshift.training.learner import Learner
from gearshift.training.worker import Worker

EXAMPLES, GLOBAL = 1900, 80


def learner(rule: str = "sgd") -> Learner:
    torch.manual_seed(5)
    model = gs.models.DeepFM(PLAIN, dim=4, hidden=[8, 8])
    rows = RowSettings(gs.RowSGD(lr=0.1) if rule == "sgd" else gs.RowAdagrad())
    return Learner(Worker(model, PLAIN), rows=rows, optimizer=gs.SGD(lr=0.1) if rule == "sgd" else gs.Adam())


def data() -> gs.Dataset:
    return gs.read(make_batch(PLAIN, EXAMPLES), PLAIN)


def train(strategy: str, workers: int, on: Learner, **cluster) -> VirtualRun:
    described = ClusterModel(workers, Compute(per_batch=0.1), seed=3, **cluster)
    return train_in_virtual_time(on, data(), described, resolve(strategy, {}, GLOBAL, workers))


def state(on: Learner) -> tuple[np.ndarray, np.ndarray]:
    blocks = list(on.server.stores[0].blocks())
    ids = np.concatenate([b.ids_U for b in blocks])
    return on.server.flat.numpy().copy(), np.concatenate([b.weights_UW for b in blocks])[np.argsort(ids)]


def test_sync_with_eight_workers_equals_one_with_their_batch() -> None:
    one, many = learner(), learner()
    for batch in data().batches(GLOBAL):
        one.step(one.find(batch))
    run = train("sync", 8, many, slow=(Slow(5.0, (3,)),), lognormal=(Lognormal(0.5),))
    assert run.outcome is not None and run.outcome.steps == -(-EXAMPLES // GLOBAL)
    for mine, other in zip(state(one), state(many), strict=True):
        np.testing.assert_allclose(mine, other, atol=2e-6, rtol=0)


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_the_same_seed_gives_the_same_bits_and_every_example_is_measured_once(strategy: str) -> None:
    workers = 5 if strategy == "backup_workers" else 4
    jitter = {"lognormal": (Lognormal(0.5),), "crashes": (Crash(1.0, 0.7, (2,)),)}
    a, b = learner("adam"), learner("adam")
    runs = [train(strategy, workers, on, **jitter) for on in (a, b)]
    assert all(run.measures.examples == EXAMPLES for run in runs)
    for mine, other in zip(state(a), state(b), strict=True):
        assert np.array_equal(mine, other)


def test_a_stale_gradient_is_that_of_the_parameters_it_was_pulled_with() -> None:
    """async, two workers, equal speed: the second gradient is computed before the first is applied."""
    on, by_hand = learner(), learner()
    described = ClusterModel(2, Compute(per_batch=0.1))
    few = gs.read(make_batch(PLAIN, 2 * GLOBAL), PLAIN)
    chosen = resolve("async", {"batch": GLOBAL}, GLOBAL, 2)
    train_in_virtual_time(on, few, described, chosen)
    first, second = (by_hand.find(batch) for batch in few.batches(GLOBAL))
    pushes = [by_hand.compute(found, 0).kept() for found in (first, second)]
    for push in pushes:
        by_hand.server.apply(push, lr_scale=1.0)
    for mine, other in zip(state(on), state(by_hand), strict=True):
        assert np.array_equal(mine, other)


def test_auto_changes_by_itself_and_trains_every_example() -> None:
    """Until it moves to gba it is sync, bit for bit: a switch moves nothing."""
    described = ClusterModel(4, Compute(per_batch=0.1), slow_periods=(SlowPeriod(5.0, 0.45, workers=(2,)),))
    chosen = resolve("auto", {}, GLOBAL, 4)
    on = learner("adam")
    auto = Automatic(Auto(patience=2, window=4), GLOBAL)
    run = train_in_virtual_time(on, data(), described, chosen, automatic=auto)
    assert run.outcome is not None and run.measures.examples == EXAMPLES
    (change,) = run.outcome.automatic
    assert change.strategy == run.outcome.strategy == "gba" and change.realised is not None
    assert run.outcome.staleness.max > 0


def test_pieces_are_measured_apart_by_position_and_add_up_to_all() -> None:
    on = learner("adam")
    described = ClusterModel(8, Compute(per_batch=0.1), lognormal=(Lognormal(0.5),), seed=3)
    run = train_in_virtual_time(on, data(), described, resolve("gba", {}, GLOBAL, 8), piece=300)
    pieces = run.pieces.measures
    assert {piece: measures.examples for piece, measures in pieces.items()} == {
        **dict.fromkeys(range(6), 300),
        6: 100,
    }
    labels = make_batch(PLAIN, EXAMPLES).labels_BT[:, 0]
    for piece, measures in pieces.items():
        assert measures.positives == labels[300 * piece : 300 * (piece + 1)].sum()


def test_an_epoch_has_the_order_that_its_data_give_it() -> None:
    by_hand, on = learner(), learner()
    for batch in data().batches(GLOBAL, shuffle=(7, 2)):
        by_hand.step(by_hand.find(batch))
    described = ClusterModel(8, Compute(per_batch=0.1))
    train_in_virtual_time(on, data(), described, resolve("sync", {}, GLOBAL, 8), shuffle=(7, 2))
    for mine, other in zip(state(on), state(by_hand), strict=True):
        np.testing.assert_allclose(mine, other, atol=2e-6, rtol=0)


def test_a_rate_may_depend_on_how_many_examples_are_through() -> None:
    by_hand, on = learner(), learner()
    half = 10 * GLOBAL

    def rate(examples: int) -> float:
        return 0.5 if examples < half else 2.0

    for batch in data().batches(GLOBAL):
        by_hand.step(by_hand.find(batch), lr_scale=rate(batch.first))
    described = ClusterModel(8, Compute(per_batch=0.1))
    train_in_virtual_time(on, data(), described, resolve("sync", {}, GLOBAL, 8), lr_scale=rate)
    for mine, other in zip(state(on), state(by_hand), strict=True):
        np.testing.assert_allclose(mine, other, atol=2e-6, rtol=0)
