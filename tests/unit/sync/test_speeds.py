"""What is learned from the times of leases: the speed of each worker, the cost of a lease, and how certain both are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gearshift.sync.speeds import Speeds

GLOBAL = 100


def speeds(workers: int) -> Speeds:
    it = Speeds()
    for worker in range(workers):
        it.join(worker)
    return it


def test_nothing_is_known_before_the_first_lease_has_ended():
    it = speeds(2)
    assert it.of(0) is it.seconds(0, 10) is it.of_all is None
    assert it.error == 1.0, "times count as unpredictable"


def test_a_worker_of_unknown_speed_counts_as_typical():
    it = speeds(3)
    it.note(0, 10, 1.0, GLOBAL)
    it.note(1, 30, 1.0, GLOBAL)
    assert [it.of(worker) for worker in range(3)] == [10.0, 30.0, 20.0]
    assert it.of_all == 60.0
    assert it.seconds(2, 40) == 2.0


def test_newer_times_count_more():
    it = speeds(1)
    for _ in range(20):
        it.note(0, 10, 1.0, 10)
    for _ in range(3):
        it.note(0, 10, 5.0, 10)
    assert it.of(0) < 4.0, "three slow rounds outweigh twenty that are past"


@pytest.mark.parametrize("overhead", [0.0, 0.3])
def test_the_cost_of_a_lease_is_told_apart_from_that_of_its_examples(overhead):
    it = speeds(2)
    for i in range(60):
        for worker, rate in ((0, 100.0), (1, 20.0)):
            examples = 10 + 10 * (i % 5)
            it.note(worker, examples, (examples + overhead * 30) / rate, GLOBAL)
    assert it.overhead == pytest.approx(overhead * 30, abs=0.5)
    assert it.of(1) == pytest.approx(20.0, rel=0.02)
    assert it.seconds(0, 200) == pytest.approx((200 + overhead * 30) / 100, rel=0.02)
    assert it.error < 0.05, "so times are predicted well, whatever the size"


def test_leases_of_one_size_tell_nothing_of_the_cost_of_a_lease():
    it = speeds(1)
    for _ in range(5):
        it.note(0, 10, 1.0, GLOBAL)
    assert it.overhead == 0.0 and it.error == pytest.approx(0.0)


def test_leases_of_nearly_one_size_tell_little_of_it():
    it = speeds(2)
    for i in range(40):
        it.note(i % 2, 100 + i % 3, 1.0 + 0.01 * ((5 * i) % 7), GLOBAL)  # times vary more than sizes
    assert it.overhead < 5.0


def test_the_error_is_the_mean_share_by_which_times_differ():
    it = speeds(1)
    for i in range(200):
        it.note(0, 10, 1.0 + 0.5 * (-1) ** i, 10_000)
    assert it.error == pytest.approx(0.5, rel=0.1)


def test_one_hopeless_time_does_not_count_for_ever():
    it = speeds(1)
    for _ in range(5):
        it.note(0, 10, 1.0, 10)
    it.note(0, 10, 1e6, 10)
    assert it.error < 3.0
    for _ in range(30):
        it.note(0, 10, 1.0, 10)
    assert it.error < 0.1 and it.of(0) == pytest.approx(10.0, rel=0.01)


def test_who_has_left_does_not_count():
    it = speeds(2)
    it.note(0, 10, 1.0, GLOBAL)
    it.note(1, 30, 1.0, GLOBAL)
    it.leave(1)
    assert it.of_all == 10.0
    it.note(1, 30, 1.0, GLOBAL)
    assert it.of_all == 10.0, "its last gradient tells nothing"
    it.join(1)
    assert it.of(1) == 10.0, "it may have come back as another machine"
    it.leave(0)
    it.leave(1)
    assert it.of_all is None


def test_a_time_of_zero_tells_nothing():
    it = speeds(1)
    it.note(0, 10, 0.0, GLOBAL)
    assert it.of(0) is None


TIMES = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 1000), st.floats(1e-5, 1e5), st.booleans()), max_size=40
)


@given(TIMES)
def test_the_rate_of_all_is_the_sum_and_everything_stays_positive(times):
    it = speeds(5)
    known = set(range(5))
    for worker, examples, seconds, leaves in times:
        it.note(worker, examples, seconds, GLOBAL)
        if leaves and worker in known:
            it.leave(worker)
            known.discard(worker)
        if it.of_all is not None:
            rates = [it.of(worker) for worker in known]
            assert all(rate > 0 for rate in rates)
            assert it.of_all == pytest.approx(sum(rates), rel=1e-6)
        assert it.overhead >= 0 and 0 <= it.error < 3.001
