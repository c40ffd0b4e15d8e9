"""Replica strategies as values: what users write, the five choices it means, and what is refused."""

import re
from typing import get_args

import pytest

from gearshift.errors import UserError
from gearshift.settings.units import Unit
from gearshift.sync.exchange import Background, EverySeconds, EverySteps, Exchange, exchange_of, trigger_of
from gearshift.sync.registry import REPLICATED, make_strategy
from gearshift.sync.replicated import choices_of

SIZES = {"global_batch": 8, "batch": 2}


def choices(name, **settings):
    return choices_of(make_strategy(name, {**SIZES, **settings}))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("background", "background"),
        ({"every": 5}, {"every": 5}),
        (5, {"every": 5}),
        ("5", {"every": 5}),
        ("2s", {"every": "2s"}),
        ({"every": "500 ms"}, {"every": "500ms"}),
    ],
)
def test_an_exchange_has_one_form(written, meant):
    assert exchange_of(written) == meant == exchange_of(meant)


@pytest.mark.parametrize(
    "wrong", ["sometimes", 0, -3, True, {"every": 0}, {"each": 5}, "0s", "2 weeks", None, 2.5]
)
def test_an_exchange_that_is_none_is_refused(wrong):
    with pytest.raises(UserError, match=r"it must be background, \{every: 5\} \(batches\) or \{every: 2s\}"):
        exchange_of(wrong)


def test_an_exchange_in_a_config():
    (unit,) = (part for part in get_args(Exchange) if isinstance(part, Unit))
    assert unit.parse("2s") == {"every": "2s"}
    with pytest.raises(ValueError, match="expected background"):
        unit.parse("often")


def test_a_trigger_from_an_exchange():
    assert trigger_of("background", pause=0.5) == Background(0.5)
    assert trigger_of({"every": 7}, warmup=3) == EverySteps(7, 3)
    assert trigger_of({"every": "1.5min"}) == EverySeconds(90.0)


def test_merges_fall_on_their_boundaries():
    trigger = EverySteps(10, warmup=3)
    assert [trigger.boundary(merges) for merges in range(6)] == [1, 2, 3, 13, 23, 33]
    assert [step for step in range(35) if trigger.ends_at(step)] == [1, 2, 3, 13, 23, 33]
    assert [EverySteps(2).boundary(merges) for merges in range(3)] == [2, 4, 6]


def test_names_are_values_of_the_five_choices():
    easgd, averaging, bmuf, k_step = (
        choices(name) for name in ("easgd", "model_averaging", "bmuf", "k_step_adam")
    )
    assert (easgd.exchange, easgd.merge, easgd.elasticity) == ("centre", "elastic", 0.5)
    assert (averaging.exchange, averaging.merge, averaging.block_momentum) == ("mean", "elastic", False)
    assert bmuf.exchange == "mean" and bmuf.block_momentum and bmuf.momentum == 0.5
    assert (k_step.merge, k_step.snapshot, k_step.trigger) == ("overwrite", "frozen_v", EverySteps(10, 20))
    assert choices("k_step_adam", exchange=50).trigger == EverySteps(50, 50)
    assert choices("k_step_adam", exchange=50, warmup_steps=0).trigger == EverySteps(50)
    assert choices("easgd", order="simultaneous").simultaneous


def test_in_the_training_loop_the_mean_replaces_the_replicas_unless_asked_otherwise():
    assert choices("model_averaging", exchange=5).merge == choices("bmuf", exchange=5).merge == "overwrite"
    assert choices("bmuf", exchange=5, merge="delta").merge == "delta"
    assert choices("model_averaging", exchange=5, merge="elastic", elasticity=0.2).elasticity == 0.2
    assert choices("model_averaging", merge="delta", elasticity=0.2).elasticity == 1.0


def test_who_meets_in_rounds():
    assert [choices(name, exchange=5).in_rounds for name in REPLICATED] == [False, True, True, True]
    assert not any(choices(name).in_rounds for name in ("easgd", "bmuf", "model_averaging"))


def test_workers_of_a_replica():
    assert [choices("easgd", workers_per_replica=2).replica_of(worker) for worker in range(5)] == [
        0,
        0,
        1,
        1,
        2,
    ]


def test_a_gradient_strategy_has_no_replicas():
    assert choices_of(make_strategy("gba", SIZES)) is None


@pytest.mark.parametrize("name", REPLICATED)
def test_settings_survive_a_log(name):
    from dataclasses import asdict
    from json import dumps, loads

    strategy = make_strategy(name, SIZES)
    assert make_strategy(name, loads(dumps(asdict(strategy)))) == strategy


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("easgd", {"elasticity": 1.5}, "elasticity is 1.5: it must be a number from 0 to 1"),
        ("easgd", {"elasticity": True}, "elasticity is True: it must be a number"),
        ("easgd", {"merge": "overwrite"}, "merge is 'overwrite': it must be one of elastic, delta"),
        ("easgd", {"order": "random"}, "it must be one of sequential, simultaneous"),
        ("easgd", {"workers_per_replica": 0}, "workers_per_replica is 0"),
        ("bmuf", {"momentum": 1.0}, "momentum is 1.0: it must be a number from 0 to 0.999"),
        ("bmuf", {"outer_rate": -1}, "outer_rate is -1"),
        ("bmuf", {"merge": "average"}, "it must be one of elastic, delta, overwrite"),
        ("model_averaging", {"merge": "overwrite"}, "which would lose all training during an exchange"),
        ("model_averaging", {"pause": "long"}, "pause is 'long'"),
        (
            "k_step_adam",
            {"exchange": "background"},
            "k_step_adam merges every k batches: exchange must be {every: 10}",
        ),
        ("k_step_adam", {"exchange": "2s"}, "not a time or background"),
        ("k_step_adam", {"mode": "all"}, "it must be one of frozen_v, params, params_m_v"),
        ("k_step_adam", {"warmup_steps": -1}, "warmup_steps is -1"),
        ("k_step_adam", {"workers_per_replica": 2}, "needs mode: params of k_step_adam"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(name, settings, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        make_strategy(name, {**SIZES, **settings})


def test_workers_of_a_cluster_share_no_replica():
    from gearshift.config import config_from

    shared = {"to": "easgd", "at": "50%", "workers_per_replica": 2}
    for strategy in ({"name": "easgd", "workers_per_replica": 2}, {"name": "sync", "switch": [shared]}):
        with pytest.raises(UserError, match="strategy easgd with workers_per_replica above 1 shares memory"):
            config_from({"data": {"train": "a.csv"}, "strategy": strategy, "cluster": {"engine": "ray"}})
    config_from({"data": {"train": "a.csv"}, "strategy": "easgd", "cluster": {"engine": "ray"}})
