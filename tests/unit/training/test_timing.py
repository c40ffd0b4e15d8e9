"""Intervals and points of a run, without a clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gearshift.training.timing import Every, Moment, When, parse_when, write_when


@given(st.integers(1, 50), st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_an_interval_of_steps_is_due_once_for_each_multiple_that_is_crossed(
    interval: int, strides: list[int]
) -> None:
    every, step, due = Every(steps=interval), 0, 0
    for stride in strides:
        before, step = Moment(step, 0.0, 0.0), step + stride
        crossed = step // interval - before.steps // interval
        assert every.due(before, Moment(step, 0.0, 0.0)) is (crossed > 0)
        due += crossed > 0
    assert due <= step // interval


@pytest.mark.parametrize(
    ("every", "early", "late"),
    [
        (Every(seconds=10.0), Moment(1, 9.9, 0.0), Moment(1, 10.0, 0.0)),
        (Every(share=0.1), Moment(1, 0.0, 0.09), Moment(1, 0.0, 0.1)),
    ],
)
def test_seconds_and_shares_are_intervals_too(every: Every, early: Moment, late: Moment) -> None:
    start = Moment(0, 0.0, 0.0)
    assert not every.due(start, early) and every.due(early, late) and not every.due(late, late)


def test_no_interval_is_never_due() -> None:
    assert not Every().due(Moment(0, 0.0, 0.0), Moment(10**6, 10.0**6, 1.0))


@pytest.mark.parametrize(
    ("when", "examples", "share", "seconds", "day"),
    [
        (When(examples=500), 500, 0.0, 0.0, 0),
        (When(share=0.5), 0, 0.5, 0.0, 0),
        (When(seconds=60.0), 0, 0.0, 60.0, 0),
        (When(day=3), 0, 0.0, 0.0, 3),
    ],
)
def test_a_point_is_reached_in_its_own_unit(
    when: When, examples: int, share: float, seconds: float, day: int
) -> None:
    assert when.reached(examples, share, seconds, day)
    assert not when.reached(examples - 1, share - 0.01, seconds - 1, day - 1)
    assert parse_when(write_when(when)) == when


def test_points_of_one_unit_have_an_order_and_others_are_not_compared() -> None:
    assert When(examples=2).after(When(examples=1)) and not When(examples=1).after(When(examples=1))
    assert When(examples=1).after(When(share=0.9)) and When(share=0.9).after(When(examples=1))
