"""Every strategy under random schedules, alone and with switches to any other."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from gearshift.sync.registry import STRATEGIES
from tests.unit.sync.schedules import NAMES, schedule_of

FEW = settings(max_examples=20, stateful_step_count=40, deadline=None)
MANY = settings(max_examples=500, stateful_step_count=60, deadline=None)


def test_every_strategy_of_the_package_is_scheduled():
    assert list(STRATEGIES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_alone(name):
    run_state_machine_as_test(schedule_of(name), settings=FEW)


@pytest.mark.parametrize("name", NAMES)
def test_with_switches(name):
    run_state_machine_as_test(schedule_of(name, NAMES), settings=FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many(name):
    run_state_machine_as_test(schedule_of(name, NAMES), settings=MANY)
