"""The average of the dense weights: the same on every engine; its age counts global batches under each strategy."""

from __future__ import annotations

import numpy as np
import pytest

import gearshift as gs
from tests.on_ray.fixtures import ON_RAY

from .engines import ENGINES, GLOBAL, data, learner, state, threads

EXAMPLES = 10 * GLOBAL + 35
on_other_engines = pytest.mark.parametrize(
    "train", ["virtual time", pytest.param("ray", marks=[ON_RAY, pytest.mark.slow])], indirect=True
)


@on_other_engines
@pytest.mark.parametrize("workers", [1, 4])
def test_in_sync_it_is_that_of_threads_bit_for_bit(train, workers: int) -> None:
    here, there = learner(), learner()
    threads(here, data(EXAMPLES), "sync", workers)
    train(there, data(EXAMPLES), "sync", workers)
    mine, theirs = state(here.server), state(there.server)
    assert mine["age"] == theirs["age"] == pytest.approx(EXAMPLES / GLOBAL)
    assert np.array_equal(mine["dense"], theirs["dense"])
    assert np.array_equal(mine["average"], theirs["average"])
    assert not np.array_equal(mine["average"], mine["dense"])


@pytest.mark.parametrize("train", list(ENGINES), indirect=True)
@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("async", {"batch": 20}),
        ("bounded_staleness", {"batch": 20}),
        ("gba", {"batch": 20}),
        ("buffered_async", {"batch": 20, "gradients_per_step": 2}),
        ("balanced", {"batch": 20}),
        ("k_step_adam", {"batch": 20, "exchange": {"every": 5}}),
        ("model_averaging", {"batch": 20, "exchange": {"every": 5}}),
        ("easgd", {"batch": 20, "exchange": {"every": 5}}),
    ],
)
@pytest.mark.parametrize("workers", [1, 4])
def test_its_age_is_the_examples_applied_however_they_were_cut(
    train, strategy: str, settings: dict, workers: int
) -> None:
    on = learner((gs.Adam(), gs.RowAdagrad()))
    counted = train(on, data(EXAMPLES), strategy, workers, **settings)
    if counted.discarded == 0:
        assert on.server.average.clock.age == pytest.approx(EXAMPLES / GLOBAL)
        assert on.server.average.clock.waiting == 0.0
    assert 0 < np.abs(state(on.server)["average"] - state(on.server)["dense"]).max() < 0.1


@pytest.mark.parametrize("train", [pytest.param("ray", marks=[ON_RAY, pytest.mark.slow])], indirect=True)
@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("async", {"batch": 20}),
        ("model_averaging", {"batch": 20, "exchange": {"every": 5}}),
        ("easgd", {"batch": 20, "exchange": {"every": 5}}),
    ],
)
def test_on_ray_too(train, strategy: str, settings: dict) -> None:
    on = learner((gs.Adam(), gs.RowAdagrad()))
    train(on, data(EXAMPLES), strategy, 2, **settings)
    assert on.server.average.clock.age == pytest.approx(EXAMPLES / GLOBAL)
    assert on.server.average.clock.waiting == 0.0
    assert 0 < np.abs(state(on.server)["average"] - state(on.server)["dense"]).max() < 0.1
