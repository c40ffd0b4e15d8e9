"""Invalid settings of a strategy are refused at construction."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gearshift.errors import UserError
from gearshift.sync.registry import make_strategy


@pytest.mark.parametrize(
    ("name", "setting", "sentence"),
    [
        ("gba", {"max_lag": "4"}, "max_lag is '4': it must be a number of steps, 0 or more"),
        ("gba", {"max_lag": -1}, "max_lag is -1: it must be a number of steps"),
        ("gba", {"max_lag": math.nan}, "max_lag is nan: it must be"),
        ("gba", {"decay": "linear"}, "decay is 'linear': it must be one of cut, exponential, inverse"),
        ("gba", {"predicted_pull": "yes"}, "predicted_pull is 'yes': it must be true or false"),
        ("gba", {"staleness_rate": 1}, "staleness_rate is 1: it must be true or false"),
        ("gba", {"late_rows": "keep"}, "late_rows is 'keep': it must be one of drop, unchanged"),
        ("gba", {"batch": 0}, "batch is 0: it must be a whole number, 1 or more"),
        ("sync", {"batch": True}, "batch is True: it must be a whole number"),
        ("bounded_staleness", {"bound": 1.5}, "bound is 1.5: it must be a whole number, 0 or more"),
        ("backup_workers", {"backups": None}, "backups is None: it must be"),
    ],
)
def test_a_wrong_value_is_one_sentence(name: str, setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make_strategy(name, {"global_batch": 8, "batch": 4} | setting)


@pytest.mark.parametrize("lag", [0, 4, 2.5, math.inf, None])
def test_right_values_pass(lag: float | None) -> None:
    made: Any = make_strategy("gba", {"global_batch": 8, "batch": 4, "max_lag": lag, "decay": "inverse"})
    assert made.max_lag == lag
