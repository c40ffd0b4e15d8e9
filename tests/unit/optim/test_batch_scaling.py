from __future__ import annotations

import pytest

from gearshift.errors import UserError
from gearshift.optim.batch_scaling import SCALING_RULES, Rates, scaled

RATES = Rates(dense_lr=1e-3, row_lr=0.05, row_l2=1e-5, warmup=0.02)


def test_each_rule_at_sixteen_times_the_batch() -> None:
    assert scaled("linear", RATES, 16) == Rates(0.016, 0.8, 1e-5, 0.02)
    assert scaled("square_root", RATES, 16) == Rates(0.004, 0.2, 1e-5, 0.02)
    assert scaled("cowclip", RATES, 16) == Rates(0.004, 0.05, 16e-5, 0.1)
    assert scaled("constant", RATES, 16) == RATES


@pytest.mark.parametrize("rule", SCALING_RULES)
def test_twice_four_is_eight(rule: str) -> None:
    twice, at_once = scaled(rule, scaled(rule, RATES, 2), 4), scaled(rule, RATES, 8)
    for name in ("dense_lr", "row_lr", "row_l2", "warmup"):
        assert getattr(twice, name) == pytest.approx(getattr(at_once, name))


def test_mistakes_are_told_in_words() -> None:
    with pytest.raises(UserError, match="Did you mean `square_root`"):
        scaled("square_rot", RATES, 2)
    with pytest.raises(UserError, match="above 0, not -2"):
        scaled("linear", RATES, -2)
