from collections.abc import Callable
from math import inf

import pytest

from gearshift.cluster_model.cluster import Bursts, Crash, Failures, Lognormal, Preemption, Slow, SlowPeriod
from gearshift.config.disturbances import (
    parse_bursts,
    parse_failure,
    parse_lognormal,
    parse_preemption,
    parse_slow,
)
from gearshift.errors import UserError


@pytest.mark.parametrize(
    ("parse", "text", "meant"),
    [
        (parse_slow, "3=5x", Slow(5, (3,))),
        (parse_slow, "0-2,7 = 1.5x", Slow(1.5, (0, 1, 2, 7))),
        (parse_slow, "all=2x", Slow(2)),
        (parse_slow, "3=5x@60s-2min", SlowPeriod(5, 60, 120, (3,))),
        (parse_slow, "3=5x@0s", SlowPeriod(5, 0, inf, (3,))),
        (parse_lognormal, "0.3", Lognormal(0.3)),
        (parse_lognormal, "3:.5", Lognormal(0.5, (3,))),
        (parse_bursts, "10%=10x", Bursts(0.1, 10)),
        (parse_bursts, "0-1:0.1=10x", Bursts(0.1, 10, (0, 1))),
        (parse_failure, "3@60s+30s", Crash(60, 30, (3,))),
        (parse_failure, "all@60s", Crash(60)),
        (parse_failure, "1h+30s", Failures(3600, 30)),
        (parse_failure, "2:1h+0s", Failures(3600, 0, (2,))),
        (parse_preemption, "3@1min-2min", Preemption(60, 120, (3,))),
        (parse_preemption, "3@0-60s", Preemption(0, 60, (3,))),
        (parse_preemption, "3@60s", Preemption(60, inf, (3,))),
    ],
)
def test_words(parse: Callable[[str], object], text: str, meant: object) -> None:
    assert parse(text) == meant


@pytest.mark.parametrize(
    ("parse", "text", "sentence"),
    [
        (parse_slow, "3=5", "slow `3=5` is not understood; write it like 3=5x"),
        (parse_slow, "3=fivex", "slow `3=fivex`: expected a factor such as 5x, not `fivex`"),
        (parse_slow, "3=0x", "a factor is more than 0"),
        (parse_slow, "3=infx", "a factor is more than 0"),
        (parse_slow, "5-3=2x", "`5-3` names no worker; the smaller number comes first"),
        (parse_slow, "0-99999999999=2x", "worker numbers `0-99999999999` are too large"),
        (parse_slow, "3=5x@2min-60s", "slow `3=5x@2min-60s`: the end is before the start"),
        (parse_slow, "3=5x@soon", "slow `3=5x@soon`: expected a duration, such as 30s"),
        (parse_lognormal, "much", "lognormal `much`: expected a number"),
        (parse_lognormal, "30", "sigma lies between 0 and 3"),
        (parse_bursts, "10x", "bursts `10x` is not understood; write it like 10%=10x"),
        (parse_bursts, "110%=10x", "bursts `110%=10x`: a share lies between 0 and 1"),
        (parse_failure, "often", "fail `often` is not understood; write it like 3@60s+30s"),
        (parse_failure, "0s+3s", "must be more than 0"),
        (parse_preemption, "3", "preempt `3` is not understood; write it like 3@60s-120s"),
    ],
)
def test_mistakes_are_told(parse: Callable[[str], object], text: str, sentence: str) -> None:
    with pytest.raises(UserError) as told:
        parse(text)
    assert sentence in str(told.value)
