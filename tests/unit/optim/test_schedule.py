from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gearshift.errors import UserError
from gearshift.optim import Schedule

SHARES = st.floats(0, 1)
SCHEDULES = st.builds(
    Schedule, SHARES, st.sampled_from(["none", "linear", "cosine", "step"]), SHARES, drop=SHARES
)


def test_the_default_is_a_constant() -> None:
    assert [Schedule().factor(s) for s in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]


def test_warmup_is_a_straight_line() -> None:
    schedule = Schedule(warmup=0.2)
    assert [schedule.factor(s) for s in (0.0, 0.05, 0.1, 0.2, 0.9)] == [0.0, 0.25, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("decay", "wanted"),
    [("linear", [1.0, 0.55, 0.1]), ("cosine", [1.0, 0.55, 0.1]), ("none", [1.0, 1.0, 1.0])],
)
def test_decay_runs_from_the_end_of_warmup_to_the_floor(decay: str, wanted: list[float]) -> None:
    schedule = Schedule(0.2, decay, 0.1)  # type: ignore[arg-type]
    assert [schedule.factor(s) for s in (0.2, 0.6, 1.0)] == pytest.approx(wanted)


def test_cosine_is_not_a_line() -> None:
    assert Schedule(decay="cosine").factor(0.25) == pytest.approx(0.5 * (1 + 2**-0.5))


def test_step_drops_at_its_milestones() -> None:
    schedule = Schedule(decay="step", floor=0.05)
    assert [schedule.factor(s) for s in (0.49, 0.5, 0.75, 1.0)] == pytest.approx([1.0, 0.1, 0.05, 0.05])


@settings(deadline=None)
@given(SCHEDULES, SHARES, SHARES)
def test_never_above_one_and_after_warmup_never_rising(schedule: Schedule, a: float, b: float) -> None:
    early, late = sorted((a, b))
    assert 0.0 <= schedule.factor(late) <= 1.0 + 1e-12
    if early >= schedule.warmup:
        assert schedule.factor(early) >= schedule.factor(late) - 1e-12 >= min(schedule.floor, 1.0) - 1e-9
    if late < schedule.warmup:
        assert schedule.factor(early) <= schedule.factor(late)


def test_a_share_outside_the_run_counts_as_its_end() -> None:
    schedule = Schedule(0.1, "linear")
    assert schedule.factor(1.7) == 0.0 and schedule.factor(-1.0) == 0.0


def test_bad_values_are_refused_in_words() -> None:
    with pytest.raises(UserError, match="Did you mean `cosine`"):
        Schedule(decay="cosin")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"schedule.warmup must be a fraction between 0 and 1, not 500"):
        Schedule(warmup=500)
