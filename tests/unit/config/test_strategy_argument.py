"""A strategy and its settings in one word."""

import pytest

from gearshift.config.strategy_argument import parse_strategy
from gearshift.errors import UserError


@pytest.mark.parametrize(
    ("word", "name", "settings"),
    [
        ("sync", "sync", {}),
        ("gba:max_lag=2", "gba", {"max_lag": "2"}),
        ("gba:decay=inverse:max_lag=2", "gba", {"decay": "inverse", "max_lag": "2"}),
        ("mine:LateBus", "mine:LateBus", {}),
        ("mine.buses:LateBus:seats=2:doors=a=b", "mine.buses:LateBus", {"seats": "2", "doors": "a=b"}),
        ("gbaa", "gbaa", {}),  # whether there is one, others know
        (":", ":", {}),
    ],
)
def test_what_it_says(word, name, settings):
    assert parse_strategy(word) == (name, settings)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("gba:max_lag", "strategy `gba:max_lag`: settings are written gba:key=value"),
        ("auto:20", "strategy `auto:20`: settings are written auto:key=value"),
        ("max_lag=2", "strategy `max_lag=2`: settings are written gba:key=value"),
        (
            "gba:max_lag=",
            "strategy `gba:max_lag=`: `max_lag=` is not a setting; write key=value, after the name",
        ),
        ("gba:=2", "strategy `gba:=2`: `=2` is not a setting"),
        ("mine:seats=2:LateBus", "`LateBus` is not a setting; write key=value, after the name"),
        ("gba:max_lag=2:max_lag=3", "`max_lag` is set twice; remove one"),
    ],
)
def test_mistakes_are_one_sentence(word, sentence):
    with pytest.raises(UserError) as refused:
        parse_strategy(word)
    assert sentence in str(refused.value)
