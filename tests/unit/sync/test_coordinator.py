"""Corner cases of the coordinator and of each strategy, including past bugs."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gearshift.errors import UserError
from gearshift.sync.coordinator import state
from gearshift.sync.events import (
    Apply,
    Begin,
    Discard,
    GradientArrived,
    GradientRefused,
    Lease,
    Part,
    Reissue,
    SwitchRequested,
    WorkerJoined,
    WorkerLost,
    WorkRequested,
)
from gearshift.sync.strategy import Step
from gearshift.sync.work import Supply
from tests.unit.sync.ledger import World


def world(strategy, workers, examples=1000, *, batch=1, global_batch=4, **settings):
    """Workers that have all asked, and more to do than they can."""
    it = World(strategy, {"global_batch": global_batch, "batch": batch, **settings})
    for _ in range(workers):
        it.join()
    it.supply(examples, batch)
    for worker in range(workers):
        it.ask(worker)
    return it


def deliver(it, worker):
    """The worker's gradient arrives and it asks for more, as in one message."""
    (lease,) = it.work.flights_of[worker]
    return [*it.arrive(worker, lease), *it.handle(WorkRequested(worker))]


@dataclass(frozen=True)
class Forming:
    """Forms this step whenever it is asked."""

    parts: tuple
    name = "forming"
    global_batch = 1

    def start(self, work):
        return None

    def refuse(self, work, flight):
        return ""

    def form(self, work):
        return Step(self.parts)


def kinds(actions):
    return [type(action).__name__ for action in actions]


class TestWhatIsToldTwice:
    def test_a_gradient_that_waits_is_not_thrown_away_when_it_is_reported_again(self):
        it = world("gba", 2)
        it.arrive(0, 0)
        assert it.arrive(0, 0) == []
        assert 0 in it.work.waiting

    def test_a_gradient_of_an_ended_lease_is_dropped_and_not_counted_again(self):
        it = world("async", 1)
        it.arrive(0, 0)
        assert it.arrive(0, 0) == [Discard(0, "its lease had ended before it arrived", ended_before=True)]

    def test_a_refused_gradient_of_an_ended_lease_is_nothing(self):
        it = world("async", 1)
        it.arrive(0, 0)
        assert it.handle(GradientRefused(0, 0, "not finite")) == []

    def test_a_loss_is_one_loss(self):
        it = world("async", 2)
        assert kinds(it.handle(WorkerLost(1, "it hung"))) == ["Reissue"]
        assert it.handle(WorkerLost(1, "it hung")) == []

    def test_one_that_was_given_up_must_join_before_it_asks(self):
        it = world("async", 2)
        it.lose(1)
        assert it.handle(WorkRequested(1)) == []
        assert it.handle(GradientArrived(1, 1))[0].ended_before
        it.handle(WorkerJoined(1))
        assert it.handle(WorkRequested(1)) == [Begin(1, it.leases[2], 0, 0)]
        assert it.leases[2].attempt == 1

    def test_a_worker_that_joins_again_forgets_what_it_had_begun(self):
        it = world("async", 1)
        assert it.handle(WorkerJoined(0)) == [Reissue(0, "its worker joined again")]
        assert it.work.workers == 1

    def test_a_worker_that_joins_again_while_parked_must_ask_again(self):
        """Its earlier request is void: a lease issued for it would be lost."""
        it = world("sync", 2, global_batch=1)
        assert list(it.work.parked) == [1]
        it.handle(WorkerJoined(1))
        assert not it.work.parked


class TestWhatAStrategyMayNot:
    @pytest.mark.parametrize("parts", [(), (Part(0, -1.0),), (Part(0, float("nan")),)])
    def test_form_a_step_of_nothing_or_with_a_negative_weight(self, parts):
        it = world("async", 1)
        it.coordinator.strategy = Forming(parts)
        with pytest.raises(ValueError, match="a step needs at least one gradient"):
            it.coordinator.handle(GradientArrived(0, 0))


class TestStaleness:
    def test_it_counts_from_what_the_pull_saw_if_that_was_newer(self):
        it = world("async", 2)
        deliver(it, 1)
        deliver(it, 1)
        (applied, *_) = it.handle(GradientArrived(0, 0, version=1))
        assert [(part.lease, part.staleness) for part in applied.parts] == [(0, 1)]


class TestAskingEarly:
    """A worker may ask for its next lease while one of its own is still on the way."""

    def test_it_keeps_its_place_in_the_queue(self):
        it = world("sync", 2, global_batch=2)
        it.ask(0)
        it.ask(1)
        it.arrive(0, 0)
        assert list(it.work.parked) == [0, 1]
        assert [a.worker for a in it.arrive(1, 1) if isinstance(a, Begin)] == [0, 1]

    def test_it_holds_several(self):
        it = world("async", 1)
        it.ask(0)
        assert it.work.flights_of[0] == {0, 1}
        it.lose(0)
        assert it.ends == {0: "reissued", 1: "reissued"}


class TestSync:
    def test_a_round_of_uneven_leases_is_one_step_and_nothing_of_it_is_stale(self):
        it = World("sync", {"global_batch": 8, "batch": 4})
        it.supply(3, 4)  # a short piece, then longer ones
        it.supply(20, 4)
        for worker in range(3):
            it.join()
            it.ask(worker)
        assert it.arrive(1, 1) == []
        assert it.arrive(2, 2) == []  # 8 examples wait, and the round's 3 are still to come
        (step,) = it.arrive(0, 0)
        assert [(part.lease, part.staleness) for part in step.parts] == [(0, 0), (1, 0), (2, 0)]

    def test_adopted_gradients_make_steps_of_a_global_batch(self):
        it = world("gba", 6, global_batch=8)
        for worker in range(6):
            it.arrive(worker, worker)
        actions = it.handle(SwitchRequested("sync", {"global_batch": 2, "batch": 1}))
        assert [len(a.parts) for a in actions if isinstance(a, Apply)] == [2, 2, 2]


class TestBoundedStaleness:
    def test_what_was_delivered_before_a_switch_holds_nobody_back(self):
        it = world("async", 2)
        for _ in range(50):
            deliver(it, 0)
        it.switch("bounded_staleness", {"global_batch": 4, "batch": 1, "bound": 2})
        assert [kinds(deliver(it, 0)) for _ in range(3)] == [
            ["Apply", "Begin"],
            ["Apply", "Begin"],
            ["Apply"],
        ]
        assert list(it.work.parked) == [0]  # three ahead of the other, counted from the switch
        assert kinds(it.arrive(1, 1)) == ["Apply", "Begin"]

    def test_a_worker_with_bad_gradients_does_not_hold_back_the_others(self):
        it = world("bounded_staleness", 2, bound=0)
        for _ in range(5):
            deliver(it, 0)
            it.refuse(1, *it.work.flights_of[1])
            it.ask(1)
        assert it.work.pace.counts == {0: 5, 1: 5}

    def test_a_joiner_starts_at_the_slowest_count(self):
        it = world("bounded_staleness", 2, bound=1)
        for worker in (0, 0, 1):
            deliver(it, worker)
        it.join()
        assert it.work.pace.counts == {0: 2, 1: 1, 2: 1}

    def test_who_is_lost_holds_nobody_back(self):
        it = world("bounded_staleness", 2, bound=0)
        deliver(it, 0)
        assert list(it.work.parked) == [0]
        assert kinds(it.handle(WorkerLost(1, "it hung"))) == ["Reissue", "Begin"]

    def test_the_one_furthest_behind_is_first(self):
        it = world("bounded_staleness", 2, examples=3, bound=5)
        deliver(it, 0)
        deliver(it, 0)  # asks first, with two delivered; nothing is left
        deliver(it, 1)
        assert list(it.work.parked) == [0, 1]
        it.supply(1, 1)
        assert it.work.flights_of[1] and not it.work.flights_of[0]


class TestBackupWorkers:
    def test_the_last_of_a_round_is_discarded_with_its_reason(self):
        it = world("backup_workers", 3, global_batch=2, backups=1)
        it.arrive(0, 0)
        assert kinds(it.arrive(1, 1)) == ["Apply"]
        assert it.arrive(2, 2) == [Discard(2, "too late: its step 1 was made without it")]

    def test_what_it_adopts_does_not_push_out_work_of_its_own(self):
        it = world("gba", 4, global_batch=4)
        it.switch("backup_workers", {"global_batch": 3, "batch": 1, "backups": 1})
        assert [kinds(deliver(it, worker)) for worker in (0, 1)] == [[], []]  # the round is given out already
        assert kinds(deliver(it, 2)) == ["Apply", "Begin", "Begin", "Begin"]
        assert {flight.token for flight in it.work.flying.values() if not it.work.adopted(flight)} == {1}

    def test_an_adopted_gradient_is_never_too_late(self):
        it = world("async", 3)
        it.switch("backup_workers", {"global_batch": 1, "batch": 1, "backups": 2})
        it.arrive(0, 0)
        assert kinds(it.arrive(1, 1))[0] == "Apply"


class TestGba:
    def test_a_switch_from_async_loses_nothing_that_is_under_way(self):
        """Steps of async are short: counted in them, everything in flight would be far behind its schedule."""
        it = world("async", 8, global_batch=8)
        for _ in range(50):
            deliver(it, 0)  # the seven others began fifty steps ago
        it.switch("gba", {"global_batch": 8, "batch": 1, "max_lag": 4})
        for worker in range(8):
            it.arrive(worker, *it.work.flights_of[worker])
        assert {part.lag for part in it.parts[-8:]} == {0}
        assert [part.weight for part in it.parts[-8:]] == [1.0] * 8
        assert max(part.staleness for part in it.parts) == 50  # lag is forgiven, staleness is told as it is


class TestLoss:
    def test_one_that_waits_leaves_the_queue(self):
        it = world("bounded_staleness", 2, bound=0)
        deliver(it, 0)
        assert list(it.work.parked) == [0]
        assert it.handle(WorkerLost(0, "it left")) == []
        assert not it.work.parked

    def test_a_gradient_that_arrived_before_the_loss_is_used(self):
        it = world("gba", 2, global_batch=2)
        it.arrive(0, 0)
        it.lose(0)
        it.arrive(1, 1)
        assert it.steps == [2]

    def test_all_may_be_lost_and_another_finishes(self):
        it = world("bounded_staleness", 2, 3, bound=0)
        it.lose(0)
        it.lose(1)
        it.finish()


class TestSwitch:
    def test_what_is_still_to_be_cut_is_cut_to_the_new_batch(self):
        it = world("gba", 1, 100, batch=2, global_batch=8)
        it.switch("gba", {"global_batch": 8, "batch": 4})
        deliver(it, 0)
        assert [lease.count for lease in it.leases.values()] == [2, 4]

    def test_a_range_of_one_lease_stays_whole(self):
        it = world("gba", 1, 4, batch=4, global_batch=8)
        it.supply(4, 4)
        it.switch("gba", {"global_batch": 8, "batch": 1})
        deliver(it, 0)
        assert [lease.count for lease in it.leases.values()] == [4, 4]

    def test_a_switch_that_cannot_be_changes_nothing(self):
        it = world("gba", 2)
        before = state(it.coordinator)
        with pytest.raises(UserError, match="unknown strategy"):
            it.coordinator.handle(SwitchRequested("gbaa", {}))
        assert state(it.coordinator) == before


class TestEnd:
    @pytest.mark.parametrize("name", ["sync", "buffered_async", "backup_workers", "gba"])
    def test_what_waits_when_the_data_end_is_a_short_step(self, name):
        it = world(name, 2, 2)
        it.arrive(0, 0)
        it.arrive(1, 1)
        assert not it.work.done
        it.exhaust()
        assert it.steps == [2]
        it.check_end()

    def test_a_loss_at_the_end_is_made_good_before_the_last_step(self):
        it = world("sync", 2, 2)
        it.exhaust()
        it.arrive(0, 0)
        it.ask(0)
        assert kinds(it.handle(WorkerLost(1, "it hung"))) == ["Reissue", "Begin"]
        it.arrive(0, 2)
        it.check_end()

    def test_the_last_gradient_may_be_a_bad_one(self):
        it = world("sync", 2, 2)
        it.exhaust()
        it.arrive(0, 0)
        it.refuse(1, 1)
        assert it.steps == [1]
        it.check_end()

    def test_nothing_at_all_is_done_at_once(self):
        it = World("sync", {"global_batch": 4, "batch": 1})
        it.supply(0, 1)
        it.exhaust()
        assert it.work.done


def test_the_state_tells_settings_apart():
    strict, loose = (world("gba", 1, max_lag=lag) for lag in (1, 9))
    assert state(strict.coordinator) != state(loose.coordinator)


def test_what_is_no_event_is_our_mistake():
    with pytest.raises(AssertionError):
        world("gba", 1).coordinator.handle(SimpleNamespace(at=0.0))


def test_leases_of_no_examples_are_our_mistake():
    with pytest.raises(AssertionError, match="never end"):
        world("gba", 1).supply(10, 0)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), max_size=5),
    st.integers(0, 3),
)
def test_upcoming_leases_are_those_that_are_taken(ranges, returned):
    supply = Supply()
    for count, batch in ranges:
        supply.add(100 * supply.next_number, count, batch)
    for n in range(returned):
        supply.give_back(Lease(n, 1000 + n, n + 1))
    upcoming = list(supply.upcoming())
    assert upcoming == [(lease.first, lease.count) for lease in (supply.take() for _ in upcoming)]
    assert not supply


class TestRingmaster:
    def test_a_gradient_that_is_too_old_is_discarded_with_its_reason(self):
        it = world("ringmaster", 2, max_staleness=1)
        deliver(it, 0)
        deliver(it, 0)
        (lease,) = it.work.flights_of[1]
        (discard,) = it.arrive(1, lease)
        reason = "too stale: 2 versions behind, max_staleness is 1"
        assert discard == Discard(lease, reason)

    def test_without_a_setting_it_allows_two_versions_per_worker(self):
        it = world("ringmaster", 2)
        for _ in range(4):
            deliver(it, 0)
        assert kinds(deliver(it, 1)) == ["Apply", "Begin"]  # four versions old
        for _ in range(5):
            deliver(it, 0)
        assert kinds(deliver(it, 1)) == ["Discard", "Begin"]

    def test_nobody_waits_for_a_slow_worker(self):
        it = world("ringmaster", 3, max_staleness=0)
        for _ in range(20):
            assert kinds(deliver(it, 0)) == ["Apply", "Begin"]
        assert not it.work.parked
