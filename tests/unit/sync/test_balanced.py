"""balanced: shares by speed, certain or not; copies; and the same steps as sync."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from gearshift.errors import UserError
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.events import (
    Action,
    Apply,
    Begin,
    DataExhausted,
    Discard,
    Duplicate,
    Event,
    GradientArrived,
    GradientRefused,
    Reissue,
    Supplied,
    SwitchRequested,
    TimePassed,
    WorkerJoined,
    WorkerLost,
    WorkRequested,
)
from gearshift.sync.registry import make_strategy
from tests.unit.sync.ledger import World, check_books, check_waits
from tests.unit.sync.schedules import schedule_of
from tests.unit.sync.test_schedules import FEW

GLOBAL = 800


class Team:
    """Workers that take a known time for each lease, in virtual time. Copies and original leases are both computed."""

    def __init__(self, rates: list[float], *, cost: float = 0.0, factors: list[float] | None = None) -> None:
        """`factors` multiply the times of leases by their number; the last one is that of all later leases."""
        self.rates, self.cost, self.factors = rates, cost, factors or [1.0]
        settings = {"global_batch": GLOBAL, "batch": GLOBAL // len(rates)}
        self.coordinator = Coordinator(make_strategy("balanced", settings), make_strategy)
        self.at, self.supplied = 0.0, 0
        self.slow: dict[int, float] = {}
        self.ends: dict[int, float] = {}  # when a worker's lease arrives
        self.leases: dict[int, Begin] = {}  # by worker
        self.round: list[Begin] = []  # those since the last step
        self.rounds: list[list[Begin]] = []
        self.stepped_at: list[float] = []
        self.duplicates: list[int] = []
        for worker in range(len(rates)):
            self.tell(WorkerJoined(worker, self.at))
            self.tell(WorkRequested(worker, self.at))

    @property
    def work(self):
        return self.coordinator.work

    def tell(self, event: Event) -> list[Action]:
        actions = self.coordinator.handle(event)
        check_books(self.coordinator)
        check_waits(self.coordinator)
        for action in actions:
            match action:
                case Begin(worker, lease):
                    factor = self.factors[min(lease.number, len(self.factors) - 1)]
                    factor *= self.slow.pop(worker, 1.0) if lease.count > 50 else 1.0
                    seconds = (lease.count + self.cost) / self.rates[worker] * factor
                    self.ends[worker], self.leases[worker] = self.at + seconds, action
                    self.round.append(action)
                case Apply():
                    self.stepped_at.append(self.at)
                    self.rounds.append(self.round)
                    self.round = []
                case Duplicate(lease):
                    self.duplicates.append(lease)
        if self.coordinator.hungry:
            self.supplied += GLOBAL
            return actions + self.tell(Supplied(self.supplied - GLOBAL, GLOBAL, 100, self.at))
        return actions

    def next(self) -> list[Action]:
        """Until the next gradient arrives, or time alone lets a worker begin."""
        wakes = self.coordinator.wakes_at
        worker = min(self.ends, key=self.ends.__getitem__)
        if wakes is not None and wakes < self.ends[worker]:
            self.at = max(self.at, wakes)
            return self.tell(TimePassed(self.at))
        self.at = self.ends.pop(worker)
        lease = self.leases.pop(worker).lease.number
        return self.tell(GradientArrived(worker, lease, self.at)) + self.tell(WorkRequested(worker, self.at))

    def steps(self, number: int) -> None:
        events = 0
        while len(self.rounds) < number:
            self.next()
            events += 1
            assert events < 10_000, "no step is formed any more"

    def slow_down(self, worker: int, factor: float) -> None:
        """Its next lease of more than 50 examples takes so many times as long."""
        self.slow[worker] = factor

    def begun_by(self, worker: int) -> list[int]:
        """The sizes of its leases in the last round, in order."""
        return [begin.lease.count for begin in self.rounds[-1] if begin.worker == worker]


# ---- shares ----


def test_the_first_leases_are_the_smallest():
    team = Team([100.0] * 4)
    assert [begin.lease.count for begin in team.leases.values()] == [13] * 4, "a sixteenth of their share"


def test_even_workers_have_one_lease_each_when_that_is_known():
    team = Team([100.0] * 4)
    team.steps(20)
    assert [begin.lease.count for begin in team.rounds[-1]] == pytest.approx([200] * 4, abs=1)
    assert team.stepped_at[-1] - team.stepped_at[-2] == pytest.approx(2.0, rel=0.01)


def test_shares_are_proportional_to_speed():
    rates = [50.0, 100.0, 100.0, 150.0]
    team = Team(rates)
    team.steps(30)
    assert [sum(team.begun_by(worker)) for worker in range(4)] == pytest.approx([100, 200, 200, 300], abs=13)
    assert team.stepped_at[-1] - team.stepped_at[-2] == pytest.approx(GLOBAL / sum(rates), rel=0.03)


def test_a_cost_per_lease_is_counted_in_its_time():
    rates = [20.0, 100.0, 100.0, 100.0]
    team = Team(rates, cost=20.0)
    team.steps(40)
    assert team.stepped_at[-1] - team.stepped_at[-2] < 1.1 * (GLOBAL + 4 * 20) / sum(rates)


def test_a_part_stays_for_later_if_times_are_uncertain():
    team = Team([100.0] * 4, factors=[0.5 + 0.1 * ((7 * i) % 11) for i in range(1000)])
    team.steps(8)
    for sizes in map(team.begun_by, range(4)):
        assert sizes[0] < 200 and sizes[0] == max(sizes)
    assert len(team.rounds[-1]) > 8


def test_no_lease_is_below_the_smallest_except_the_last_of_all():
    settings = {"global_batch": GLOBAL, "batch": 200, "smallest": 70}
    world = World("balanced", settings)
    world.join(), world.join(), world.supply(2 * GLOBAL, 200)
    world.ask(0), world.ask(1)
    while world.work.step < 2:
        (lease,) = world.work.flights_of[0]
        world.arrive(0, lease)
        world.ask(0)
    sizes = [lease.count for lease in world.leases.values()]
    assert min(sizes) >= 70 and sum(s for s in sizes if s) >= 2 * GLOBAL


def test_the_smallest_lease_has_at_least_one_example():
    with pytest.raises(UserError, match="smallest"):
        make_strategy("balanced", {"global_batch": 8, "batch": 4, "smallest": 0})


def test_a_worker_that_still_computes_a_copy_gets_what_it_can_compute_afterwards():
    team = Team([100.0, 100.0, 100.0, 400.0])
    team.steps(10)
    before = max(team.begun_by(0))
    team.slow_down(0, 1.75)  # until the fast worker has ended a copy, and for a part of the next round
    number = team.work.supply.next_number
    while not any(lease >= number for lease in team.duplicates):
        team.next()
    assert [flight.worker for flight in team.work.copies.dropped.values()] == [0]
    team.steps(len(team.rounds) + 1)
    assert 0 < team.begun_by(0)[0] < 0.7 * before
    assert max(team.begun_by(1)) > 1.05 * before


def test_a_worker_that_is_busy_for_longer_than_the_round_has_no_share():
    team = Team([100.0] * 4)
    team.steps(10)
    team.slow_down(2, 20.0)
    step = len(team.rounds)
    team.steps(step + 3)
    (late,) = (flight.worker for flight in team.work.copies.dropped.values())
    assert late == 2 and team.begun_by(late) == []
    assert team.stepped_at[-1] - team.stepped_at[-2] == pytest.approx(GLOBAL / 300, rel=0.2)


# ---- copies ----


def late_worker() -> tuple[Team, Begin, list[Action]]:
    """A team whose round is leased; one worker is far too late, and another has just begun a copy of its lease."""
    team = Team([100.0] * 3)
    team.steps(10)
    team.slow_down(1, 100.0)
    while True:
        actions = team.next()
        for action in actions:
            if isinstance(action, Begin) and action.lease.attempt:
                return team, action, actions


def test_a_copy_covers_a_whole_open_lease():
    team, copy, _ = late_worker()
    original = team.work.copies.original_of[copy.lease.number]
    of = team.work.flying[original]
    assert (copy.lease.first, copy.lease.count) == (of.lease.first, of.lease.count)
    assert copy.worker != of.worker and copy.lease.attempt == of.lease.attempt + 1
    assert copy.version == of.version and copy.token == of.token, "it is computed on the same parameters"


def test_the_first_gradient_counts_and_the_other_lease_ends_as_a_duplicate():
    team, copy, _ = late_worker()
    original = team.work.copies.original_of[copy.lease.number]
    actions = []
    while team.work.copies.by_original:
        actions = team.next()
    assert Duplicate(original, "another worker has computed its examples") in actions
    (step,) = [action for action in actions if isinstance(action, Apply)]
    assert copy.lease.number in {part.lease for part in step.parts}
    assert original not in {part.lease for part in step.parts}


def test_if_the_original_is_first_the_copy_ends():
    team, copy, _ = late_worker()
    original = team.work.copies.original_of[copy.lease.number]
    late = team.work.flying[original].worker
    actions = team.tell(GradientArrived(late, original, team.at + 0.01))
    assert Duplicate(copy.lease.number, "another worker has computed its examples") in actions
    team.at += 0.02
    again = team.tell(GradientArrived(copy.worker, copy.lease.number, team.at))
    assert not any(isinstance(action, Discard | Apply) for action in again), (
        "the servers have dropped it already"
    )


def test_a_gradient_of_a_dropped_copy_only_tells_the_speed():
    team, copy, _ = late_worker()
    original = team.work.copies.original_of[copy.lease.number]
    late = team.work.flying[original].worker
    while team.work.copies.by_original:
        team.next()
    assert original in team.work.copies.dropped
    before = team.work.speeds.of(late)
    team.at += 50.0
    assert not any(isinstance(a, Discard) for a in team.tell(GradientArrived(late, original, team.at)))
    assert team.work.speeds.of(late) < before / 5
    assert original not in team.work.copies.dropped


def test_a_dropped_copy_that_cannot_be_used_is_forgotten():
    team, copy, _ = late_worker()
    original = team.work.copies.original_of[copy.lease.number]
    late = team.work.flying[original].worker
    while team.work.copies.by_original:
        team.next()
    assert not any(
        isinstance(action, Discard | Duplicate)
        for action in team.tell(GradientRefused(late, original, "not finite", team.at))
    )
    assert original not in team.work.copies.dropped


def test_no_copy_is_begun_before_it_is_likely_to_be_of_use():
    team = Team([100.0] * 4)
    team.steps(20)
    assert team.duplicates == []
    while not team.work.parked:
        team.next()
    (begun,) = (
        team.work.flying.values() if len(team.work.flying) == 1 else [next(iter(team.work.flying.values()))]
    )
    wakes = team.coordinator.wakes_at
    assert wakes > begun.began + begun.lease.count / 100.0, "the lease must be late"
    assert team.tell(TimePassed(team.at)) == []


def test_nothing_is_copied_before_a_time_is_known():
    world = World("balanced", {"global_batch": 4, "batch": 2, "smallest": 4})
    world.join(), world.join(), world.supply(8, 2)
    world.ask(0), world.ask(1)
    assert world.work.parked and world.work.flying
    assert world.coordinator.wakes_at is None
    assert world.handle(TimePassed()) == []


def test_time_alone_lets_a_copy_begin():
    team = Team([100.0] * 3)
    team.steps(10)
    team.factors = [100.0]
    for worker in list(team.ends)[1:]:  # all but one deliver
        team.at = max(team.at, 1e-6)
        lease = team.leases.pop(worker).lease.number
        team.at = team.ends.pop(worker)
        team.tell(GradientArrived(worker, lease, team.at))
        team.tell(WorkRequested(worker, team.at))
    wakes = team.coordinator.wakes_at
    assert wakes is not None
    team.at = wakes
    (begin,) = team.tell(TimePassed(wakes))
    assert begin.lease.attempt == 1


def test_the_lease_that_is_expected_last_is_copied():
    """Of two that are too late, it is the one that is later: who is late is expected to be as late again."""
    world = World("balanced", {"global_batch": 40, "batch": 10, "smallest": 1})
    for _ in range(3):
        world.join()
    world.supply(40, 10)
    world.supply(40, 10)
    while world.work.step < 1:
        for worker in world.idle:
            world.ask(worker)
        worker, lease = next((w, n) for w, n in world.flights)
        world.arrive(worker, lease)
    for worker in world.idle:
        world.ask(worker)
    while not world.work.copies.by_original:
        for worker in world.idle:
            world.ask(worker)
        late = world.work.flights_of[0] | world.work.flights_of[1]
        ready = [(w, n) for w, n in world.flights if n not in late]
        world.arrive(*ready[0]) if ready else world.wait()
    (original,) = world.work.copies.by_original
    planned = {
        number: flight.began + world.work.speeds.seconds(flight.worker, flight.lease.count)
        for number, flight in world.work.flying.items()
    }
    assert len(set(planned.values())) == 2 and max(planned.values()) < world.work.at
    assert original == min(planned, key=planned.__getitem__)


def test_a_worker_that_is_lost_computes_no_copy_any_more():
    team, copy, _ = late_worker()
    late = team.work.flying[team.work.copies.original_of[copy.lease.number]].worker
    while team.work.copies.by_original:
        team.next()
    assert team.work.copies.dropped
    team.tell(WorkerLost(late, "it died", team.at))
    assert not team.work.copies.dropped


def test_who_cannot_be_earlier_begins_no_copy_although_others_are_late():
    """Both leases are late, and one is copied; the other is expected sooner than another copy of it would end."""
    team, _, _ = late_worker()
    single = [f for number, f in team.work.flying.items() if number not in team.work.copies.by_original]
    assert all(flight.worker not in team.work.parked for flight in single)
    assert team.coordinator.strategy.copy(team.work) is None


@pytest.mark.parametrize("who", ["the worker of the original", "the worker of the copy"])
@pytest.mark.parametrize("how", ["is lost", "joins again", "has no usable gradient"])
def test_one_of_two_may_fail(who, how):
    team, copy, _ = late_worker()
    original = team.work.copies.original_of[copy.lease.number]
    late = team.work.flying[original].worker
    worker, lease = (
        (late, original) if who == "the worker of the original" else (copy.worker, copy.lease.number)
    )
    other = {original, copy.lease.number} - {lease}
    events = {
        "is lost": WorkerLost(worker, "it died", team.at),
        "joins again": WorkerJoined(worker, team.at),
        "has no usable gradient": GradientRefused(worker, lease, "not finite", team.at),
    }
    actions = team.tell(events[how])
    ends = [action for action in actions if isinstance(action, Duplicate | Reissue | Discard)]
    assert [(type(end), end.lease) for end in ends] == [(Duplicate, lease)]
    assert other <= team.work.flying.keys()


def test_if_both_fail_the_examples_are_leased_again():
    team, copy, _ = late_worker()
    original = team.work.copies.original_of[copy.lease.number]
    late = team.work.flying[original].worker
    team.tell(WorkerLost(late, "it died", team.at))
    actions = team.tell(WorkerLost(copy.worker, "it died too", team.at))
    assert Reissue(copy.lease.number, "it died too") in actions
    del team.ends[copy.worker], team.leases[copy.worker]
    team.ends.pop(late), team.leases.pop(late)
    step = len(team.rounds)
    team.steps(step + 1)
    assert team.rounds[-1]


def test_if_neither_gradient_can_be_used_the_examples_are_discarded_once():
    team, copy, _ = late_worker()
    original = team.work.copies.original_of[copy.lease.number]
    late = team.work.flying[original].worker
    team.tell(GradientRefused(late, original, "not finite", team.at))
    actions = team.tell(GradientRefused(copy.worker, copy.lease.number, "not finite", team.at))
    assert [action for action in actions if isinstance(action, Discard)] == [
        Discard(copy.lease.number, "not finite")
    ]


@pytest.mark.parametrize("to", ["sync", "gba", "async"])
def test_a_switch_keeps_open_copies(to):
    team, copy, _ = late_worker()
    original = team.work.copies.original_of[copy.lease.number]
    late = team.work.flying[original].worker
    team.tell(SwitchRequested(to, {"global_batch": GLOBAL, "batch": 100}, at=team.at))
    assert team.coordinator.wakes_at is None
    team.at += 0.1
    actions = team.tell(GradientArrived(copy.worker, copy.lease.number, team.at))
    assert Duplicate(original, "another worker has computed its examples") in actions
    assert not any(isinstance(a, Apply) for a in team.tell(GradientArrived(late, original, team.at + 0.1)))


# ---- the same as sync ----


def test_only_adopted_work_that_is_needed_is_copied():
    """After a switch, more may be under way than fits into a step: a copy of it could end after the step."""
    world = World("async", {"global_batch": 4, "batch": 4})
    for _ in range(4):
        world.join()
    world.supply(40, 4)
    for worker in range(4):
        world.ask(worker)
    world.switch("balanced", {"global_batch": 4, "batch": 1})
    (lease,) = world.work.flights_of[0]
    world.arrive(0, lease)
    world.ask(0)
    for _ in range(50):
        assert world.handle(TimePassed()) == []
    world.finish()


class OfWholeBatches(schedule_of("balanced")):
    """Every step is the next global batch, as in sync, whatever happens to workers."""

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.finish()
        world, size, at = self.world, self.world.strategy.global_batch, 0
        applied = [action for actions in world.answers for action in actions if isinstance(action, Apply)]
        refused = Counter(
            example
            for lease, how in world.ends.items()
            if how == "discarded"
            for example in range(
                world.leases[lease].first, world.leases[lease].first + world.leases[lease].count
            )
        )
        for step in applied:
            found = Counter(
                example
                for part in step.parts
                for example in range(
                    world.leases[part.lease].first,
                    world.leases[part.lease].first + world.leases[part.lease].count,
                )
            )
            assert len(found) == sum(found.values()), "no example is in a step twice"
            if not refused:
                assert set(found) == set(range(at, min(at + size, world.supplied)))
            at += size
        assert not refused & Counter(
            example for step in applied for part in step.parts for example in [world.leases[part.lease].first]
        )


def test_every_step_is_the_next_global_batch():
    run_state_machine_as_test(OfWholeBatches, settings=FEW)


@given(
    rates=st.lists(st.floats(1.0, 100.0), min_size=1, max_size=6),
    factors=st.lists(st.floats(0.2, 5.0), min_size=1, max_size=40),
    cost=st.floats(0.0, 20.0),
)
def test_with_workers_of_any_speed(rates, factors, cost):
    team = Team(rates, cost=cost, factors=factors)
    team.steps(4)
    team.tell(DataExhausted(team.at))
    for at, round_ in enumerate(team.rounds):
        examples = {e for b in round_ for e in range(b.lease.first, b.lease.first + b.lease.count)}
        assert examples == set(range(at * GLOBAL, (at + 1) * GLOBAL))
        counted = sum(b.lease.count for b in round_ if b.lease.number not in team.duplicates)
        assert counted == GLOBAL
