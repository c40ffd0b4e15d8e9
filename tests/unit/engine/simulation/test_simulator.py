"""The simulator: what happens when, that the accounts balance, and that arithmetic agrees."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from gearshift.cluster_model.closed_forms import expected_slowest, possible_rate, sync_rate
from gearshift.cluster_model.cluster import (
    Bursts,
    ClusterModel,
    Compute,
    Crash,
    Failures,
    Lognormal,
    Network,
    Preemption,
    Slow,
    SlowPeriod,
)
from gearshift.engine.simulation.simulator import simulate
from gearshift.engine.simulation.switch_plan import SimulatedSwitch
from gearshift.engine.simulation.tally import Outcome
from gearshift.errors import UserError
from gearshift.sync.events import (
    Action,
    Apply,
    Begin,
    Discard,
    Duplicate,
    Event,
    Reissue,
    SwitchRequested,
)
from gearshift.sync.registry import STRATEGIES, make_strategy
from gearshift.sync.strategy import Strategy

B, N = 64, 8
G = B * N
NAMES = list(STRATEGIES)


def run(cluster: ClusterModel, name: str = "gba", examples: int = G * 200, **more: Any) -> Outcome:
    size = {"global_batch": G, "batch": B, **more.pop("settings", {})}
    return simulate(cluster, make_strategy(name, size), examples, **more)


def log_of(cluster: ClusterModel, name: str, **more: Any) -> list[tuple[Event, list[Action]]]:
    log: list[tuple[Event, list[Action]]] = []
    run(cluster, name, log=lambda event, actions: log.append((event, actions)), **more)
    return log


# ---- arithmetic ----


def test_one_slow_worker_of_eight_costs_sync_all_but_a_fifth_and_gba_nothing() -> None:
    cluster = ClusterModel(N, slow=(Slow(5, (3,)),))
    sync, gba = run(cluster, "sync"), run(cluster, "gba", G * 1000)
    assert sync.examples_per_second == pytest.approx(sync_rate(cluster, B)) == pytest.approx(G / 0.5)
    assert gba.possible == pytest.approx(7.2 * B / 0.1)
    assert gba.examples_per_second / sync.examples_per_second == pytest.approx(4.5, rel=0.01)
    assert sync.staleness.max == 0
    assert gba.discarded == 0


@pytest.mark.parametrize(
    "cluster",
    [
        ClusterModel(N),
        ClusterModel(N, bursts=(Bursts(0.1, 10),)),
        ClusterModel(N, lognormal=(Lognormal(0.5),)),
        ClusterModel(N, lognormal=(Lognormal(0.2), Lognormal(0.3, (1,))), slow=(Slow(2, (1, 2)),)),
        ClusterModel(N, lognormal=(Lognormal(0.3),), bursts=(Bursts(0.05, 4),)),
        ClusterModel(N, Compute(0.02, 0.001), network=Network(0.01, 1e8, 1e6, 2e6, all_reduce=0.05)),
    ],
)
def test_sync_and_gba_are_what_arithmetic_says(cluster: ClusterModel) -> None:
    sync, gba = run(cluster, "sync", G * 1200), run(cluster, "gba", G * 1200)
    assert sync.examples_per_second == pytest.approx(sync_rate(cluster, B), rel=0.02)
    computed = (gba.applied + gba.discarded) / gba.seconds
    assert computed == pytest.approx(gba.possible, rel=0.02)
    assert gba.discarded < 0.05 * gba.applied  # a batch of ten times the length may miss max_lag


def test_the_expected_slowest_of_a_round() -> None:
    assert expected_slowest(ClusterModel(8), B) == pytest.approx(0.1)
    some_burst = 1 - 0.9**8
    assert expected_slowest(ClusterModel(8, bursts=(Bursts(0.1, 10),)), B) == pytest.approx(
        0.1 + some_burst * 0.9
    )
    one = ClusterModel(1, lognormal=(Lognormal(0.8),))
    assert expected_slowest(one, B) == pytest.approx(0.1, rel=1e-3)  # the mean of one is its mean


def test_lag_averages_zero_and_staleness_n_minus_1_over_m() -> None:
    outcome = run(ClusterModel(N, lognormal=(Lognormal(0.4),)), examples=G * 1000)
    assert outcome.lag.mean == pytest.approx(0, abs=0.01)
    assert outcome.staleness.mean == pytest.approx((N - 1) / N, rel=0.02)


def test_a_worker_ten_times_slower_loses_all_its_data_to_max_lag() -> None:
    outcome = run(ClusterModel(N, slow=(Slow(10, (3,)),)), examples=G * 1000)
    assert outcome.discarded_by_worker[3] == outcome.discarded > 0
    assert outcome.discarded_by_worker[3] / (outcome.applied_by_worker[3] + outcome.discarded) > 0.97
    assert set(outcome.discarded_by_reason) == {"too late"}


# ---- the same seed, the same log ----


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_log(name: str) -> None:
    cluster = ClusterModel(
        N,
        lognormal=(Lognormal(0.4),),
        failures=(Failures(5, 1),),
        bursts=(Bursts(0.1, 5),),
        notice=0.3,
        seed=4,
    )
    once, again = (log_of(cluster, name, examples=G * 30) for _ in range(2))
    assert once == again


def test_paired_runs_see_the_same_durations() -> None:
    """Worker 2's n-th batch takes as long in sync as in async."""
    cluster = ClusterModel(4, lognormal=(Lognormal(0.5),), bursts=(Bursts(0.2, 5),), seed=11)

    def durations(name: str) -> list[float]:
        begun: dict[int, float] = {}
        found: list[float] = []
        for event, actions in log_of(cluster, name, examples=G * 20):
            if getattr(event, "lease", None) in begun:
                found.append(round(event.at - begun.pop(event.lease), 9))  # type: ignore[union-attr]
            begun |= {a.lease.number: event.at for a in actions if isinstance(a, Begin) and a.worker == 2}
        return found[:20]

    assert durations("sync") == durations("async") == durations("gba")


# ---- accounts ----

DISTURBED = st.builds(
    ClusterModel,
    workers=st.just(N),
    slow=st.lists(st.builds(Slow, st.floats(0.5, 20), st.just((3,))), max_size=1).map(tuple),
    lognormal=st.lists(st.builds(Lognormal, st.floats(0, 1)), max_size=1).map(tuple),
    bursts=st.lists(st.builds(Bursts, st.floats(0, 1), st.floats(1, 10)), max_size=1).map(tuple),
    slow_periods=st.lists(st.builds(SlowPeriod, st.floats(1, 9), st.floats(0, 3)), max_size=1).map(tuple),
    crashes=st.lists(
        st.builds(Crash, st.floats(0, 5), st.floats(0, 3), st.sampled_from([(1,), (0, 3), None])), max_size=2
    ).map(tuple),
    failures=st.lists(st.builds(Failures, st.floats(2, 20), st.floats(0, 2)), max_size=1).map(tuple),
    preemptions=st.lists(st.builds(Preemption, st.just(0.0), st.floats(0, 3)), max_size=1).map(tuple),
    network=st.sampled_from([Network(), Network(0.01, 1e6, 1e4, 1e4, 0.02)]),
    notice=st.sampled_from([0.0, 0.5]),
    cores=st.sampled_from([None, 2.0]),
    cpu=st.sampled_from([None, Compute(0.02)]),
    seed=st.integers(0, 1 << 70),
)
SWITCHES = st.lists(
    st.builds(
        lambda name, batch, at, by: SimulatedSwitch(name, {"global_batch": G, "batch": batch}, **{by: at}),
        st.sampled_from(NAMES),
        st.sampled_from([B, B // 2, 100]),
        st.integers(0, G * 20),
        st.just("examples"),
    )
    | st.builds(
        lambda name, at: SimulatedSwitch(name, {"global_batch": G, "batch": B}, seconds=at),
        st.sampled_from(NAMES),
        st.floats(0, 5),
    ),
    max_size=3,
)


@given(DISTURBED, st.sampled_from(NAMES), SWITCHES, st.integers(1, G * 20))
def test_every_example_is_applied_or_discarded_once(
    cluster: ClusterModel, name: str, switches: list[SimulatedSwitch], examples: int
) -> None:
    ended: Counter[tuple[int, int]] = Counter()
    open_leases: dict[int, Begin] = {}

    def log(_: Event, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Begin(lease=lease):
                    open_leases[lease.number] = action
                case Apply(parts=parts):
                    for part in parts:
                        lease = open_leases.pop(part.lease).lease
                        ended[lease.first, lease.count] += 1
                case Discard(number, ended_before=False):
                    lease = open_leases.pop(number).lease
                    ended[lease.first, lease.count] += 1
                case Reissue(number) | Duplicate(number):
                    del open_leases[number]

    try:
        outcome = run(cluster, name, examples, switches=switches, log=log)
    except UserError as error:
        assert "workers die before they finish a batch" in str(error)
        reject()
    assert not open_leases
    assert set(ended.values()) == {1}
    position = 0
    for first, count in sorted(ended):
        assert first == position
        position += count
    assert position == examples == outcome.applied + outcome.discarded
    assert sum(outcome.applied_by_worker) == outcome.applied
    assert sum(outcome.discarded_by_worker) == sum(outcome.discarded_by_reason.values()) == outcome.discarded


# ---- what happens when ----


def test_a_switch_by_examples_and_by_seconds() -> None:
    cluster = ClusterModel(N, slow=(Slow(5, (3,)),))
    gba = {"global_batch": G, "batch": B}
    for switch in (SimulatedSwitch("gba", gba, examples=G * 50), SimulatedSwitch("gba", gba, seconds=24.9)):
        outcome = run(cluster, "sync", G * 100, switches=[switch])
        assert outcome.strategy == "gba"
        assert outcome.seconds == pytest.approx(50 * 0.5 + 50 * 0.5 / 4.5, rel=0.03)
        log = log_of(cluster, "sync", examples=G * 100, switches=[switch])
        (at,) = [event.at for event, _ in log if isinstance(event, SwitchRequested)]
        assert at == pytest.approx(25, abs=0.11)


def test_switches_planned_for_one_moment_happen_in_their_order() -> None:
    size = {"global_batch": G, "batch": B}
    planned = (SimulatedSwitch(name, size, examples=G * 5) for name in ("gba", "sync", "async"))
    log = log_of(ClusterModel(N), "sync", examples=G * 10, switches=planned)
    assert [e.strategy for e, _ in log if isinstance(e, SwitchRequested)] == ["gba", "sync", "async"]


def test_a_switch_to_another_batch_cuts_what_is_left_anew() -> None:
    switch = SimulatedSwitch("gba", {"global_batch": G, "batch": B // 2}, examples=G * 5)
    log = log_of(ClusterModel(N), "sync", examples=G * 10, switches=[switch])
    sizes = Counter(a.lease.count for _, actions in log for a in actions if isinstance(a, Begin))
    assert sizes[B] + sizes[B // 2] == sum(sizes.values())
    assert sizes[B // 2] >= 2 * N * 3


def test_a_dead_worker_is_missed_when_it_is_noticed_and_its_examples_go_to_others() -> None:
    cluster = ClusterModel(2, crashes=(Crash(0.25, workers=(1,)),), notice=1.0)
    log = log_of(cluster, "async", examples=B * 30)
    ((lost, actions),) = [(e, a) for e, a in log if type(e).__name__ == "WorkerLost"]
    assert lost.at == pytest.approx(1.25)
    assert [type(action) for action in actions][:1] == [Reissue]
    assert all(e.worker == 0 for e, _ in log if type(e).__name__ == "GradientArrived" and e.at > 0.25)  # type: ignore[union-attr]


def test_one_that_is_back_before_it_was_missed_starts_afresh() -> None:
    log = log_of(ClusterModel(2, crashes=(Crash(0.25, 0.5, (1,)),), notice=9.0), "sync", examples=B * 40)
    story = [(type(e).__name__, round(e.at, 3)) for e, _ in log if getattr(e, "worker", 0) == 1]
    assert story[story.index(("WorkerLost", 0.75)) + 1] == ("WorkerJoined", 0.75)


def test_a_parked_worker_that_died_unseen_may_be_given_work_and_it_is_reissued() -> None:
    """Worker 0 waits for slow worker 1 when it dies; the next round counts on it until it is missed."""
    cluster = ClusterModel(2, slow=(Slow(10, (1,)),), crashes=(Crash(0.5, 5, (0,)),), notice=2.0)
    outcome = run(cluster, "sync", B * 8, settings={"global_batch": 2 * B})
    assert outcome.applied == B * 8
    assert outcome.reissued == B


def test_one_that_joins_late_works_from_then_on() -> None:
    cluster = ClusterModel(2, preemptions=(Preemption(0, 5.0, (1,)),))
    outcome = run(cluster, "async", B * 200)
    assert outcome.seconds == pytest.approx(12.5)
    assert outcome.examples_per_second == pytest.approx(outcome.possible)


def test_a_slow_period_slows_and_ends() -> None:
    cluster = ClusterModel(N, slow_periods=(SlowPeriod(5, 2, 4, (3,)),))
    assert run(cluster, "sync", G * 100).seconds == pytest.approx(2 + 2 + (100 - 20 - 4) * 0.1, abs=0.2)


def test_few_cores_are_shared() -> None:
    shared = run(ClusterModel(N, cores=2), "async", G * 50)
    assert shared.examples_per_second == pytest.approx(2 * B / 0.1, rel=0.01)
    assert shared.possible == pytest.approx(2 * B / 0.1)
    waiting = run(
        ClusterModel(N, cores=2, cpu=Compute(0.01)), "async", G * 50
    )  # the rest of 0.1 s is waiting
    assert waiting.examples_per_second == pytest.approx(N * B / 0.1, rel=0.01)
    crowded = run(ClusterModel(N, cores=1, cpu=Compute(0.05)), "async", G * 50)
    assert crowded.examples_per_second == pytest.approx(B / 0.05, rel=0.02) == pytest.approx(crowded.possible)


def test_all_reduce_is_paid_once_a_step_and_by_sync_only() -> None:
    cluster = ClusterModel(N, network=Network(all_reduce=0.05))
    assert run(cluster, "sync", G * 10).seconds == pytest.approx(1.5)
    assert run(cluster, "gba", G * 10).seconds == pytest.approx(1.0)


def test_idle_time_is_what_workers_wait() -> None:
    cluster = ClusterModel(N, slow=(Slow(5, (3,)),))
    assert run(cluster, "sync", G * 10).idle_seconds == pytest.approx(10 * 7 * 0.4)
    assert run(cluster, "async", G * 100).idle_seconds < 7 * 0.5


def test_if_all_have_left_it_says_so() -> None:
    with pytest.raises(UserError, match=r"every worker has left permanently, and .* are not trained"):
        run(ClusterModel(2, preemptions=(Preemption(3.0),)))
    with pytest.raises(UserError, match="left permanently, and 102,400 of 102,400"):
        run(ClusterModel(2, preemptions=(Preemption(0.0),)))


def test_if_nobody_lives_long_enough_it_says_so() -> None:
    with pytest.raises(UserError, match=r"workers die before they finish a batch: after .* 0 of 1,024"):
        run(ClusterModel(2, failures=(Failures(0.0001, 0.1),)), examples=1024)


# ---- gradients in virtual time ----


class Diary:
    """Learning that learns nothing, and writes down what it is asked."""

    def __init__(self) -> None:
        self.version, self.kept, self.pulled = 0, set[int](), dict[int, int]()
        self.refused = 0  # examples
        self.staleness: list[int] = []

    def switched(self, strategy: Strategy) -> None:
        """It has no replicas to learn with."""

    def begin(self, begin: Begin) -> None:
        assert begin.version == self.version
        self.pulled[begin.lease.number] = self.version
        self.refused += begin.lease.count * (begin.lease.number == 5)

    def arrive(self, worker: int, lease: int) -> str | None:
        if lease == 5:
            return "not finite"
        self.kept.add(lease)
        return None

    def act(self, action: Action) -> None:
        if isinstance(action, Apply):
            for part in action.parts:
                self.kept.remove(part.lease)
                self.staleness.append(self.version - self.pulled[part.lease])
                assert part.staleness == self.staleness[-1]
            self.version = action.step


@pytest.mark.parametrize("name", NAMES)
def test_learning_sees_pull_arrival_and_step_in_order(name: str) -> None:
    diary = Diary()
    outcome = run(ClusterModel(N, lognormal=(Lognormal(0.4),)), name, G * 20, learning=diary)
    assert outcome.discarded_by_reason["not finite"] == diary.refused > 0
    assert outcome.steps == diary.version
    assert sum(diary.staleness) / len(diary.staleness) == pytest.approx(outcome.staleness.mean)


def test_possible_is_averaged_over_the_run() -> None:
    cluster = ClusterModel(
        2, slow_periods=(SlowPeriod(2, 0, 5, (0,)),), preemptions=(Preemption(5, 20, (1,)),), failures=()
    )
    assert possible_rate(cluster, 10, until=10) == pytest.approx((50 * 5 + 100 * 5 + 100 * 5) / 10)


# ---- replicas ----


def network(**more: Any) -> Network:
    return Network(
        **{"latency": 0.0005, "bandwidth": 1e9, "dense_bytes": 4e6, "sync_bandwidth": 40e6, **more}
    )


def rate(name: str, trainers: int, exchange: Any = "background", **more: Any) -> float:
    cluster = ClusterModel(trainers, Compute(per_batch=0.1), network=network(**more))
    strategy = make_strategy(name, {"global_batch": B * trainers, "batch": B, "exchange": exchange})
    return simulate(cluster, strategy, B * trainers * 250).examples_per_second


@pytest.mark.parametrize("name", ["easgd", "model_averaging", "bmuf"])
def test_background_exchange_costs_no_time_however_slow_the_link(name: str) -> None:
    assert rate(name, 16) == pytest.approx(16 * B / 0.101, rel=0.01)
    assert rate(name, 16, bandwidth=1e6) == pytest.approx(16 * B / 0.101, rel=0.01)


def test_sync_servers_saturate_in_the_training_loop_and_more_of_them_help() -> None:
    one = rate("easgd", 1, 5)
    assert one == pytest.approx(5 * B / (5 * 0.101 + 0.2 + 0.001), rel=0.02)
    # An exchange keeps a server busy for .2 s: sixteen trainers do five batches each in the time of sixteen exchanges.
    assert rate("easgd", 16, 5) == pytest.approx(5 * B / 0.2, rel=0.05)
    assert rate("easgd", 16, 5, sync_servers=32) > 0.9 * 16 * B / 0.101


def test_a_merge_of_all_takes_a_ring_and_everybody_waits_for_it() -> None:
    ring = network(bandwidth=40e6).reduce(8)
    assert ring == pytest.approx(2 * (0.1 * 7 / 8 + 3 * 0.0005))
    expected = 8 * 5 * B / (5 * 0.101 + ring)
    assert rate("model_averaging", 8, 5, bandwidth=40e6) == pytest.approx(expected, rel=0.02)
    frozen_v = make_strategy("k_step_adam", {"global_batch": G, "batch": B, "exchange": 5, "warmup_steps": 0})
    cluster = ClusterModel(8, Compute(per_batch=0.1), network=network(bandwidth=40e6))
    outcome = simulate(cluster, frozen_v, G * 200)
    assert outcome.examples_per_second == pytest.approx(8 * 5 * B / (5 * 0.101 + 2 * ring), rel=0.03)
    assert outcome.sync_gap is not None and outcome.sync_gap["in_flight"] == 0
    assert sync_rate(cluster, B) == pytest.approx(G / (0.101 + ring))


@pytest.mark.parametrize("name", ["easgd", "model_averaging", "bmuf"])
def test_in_the_background_training_is_always_in_flight_and_the_gap_is_the_time_of_an_exchange(
    name: str,
) -> None:
    cluster = ClusterModel(
        8, Compute(per_batch=0.1), network=network(bandwidth=16e6, sync_bandwidth=1e9, latency=0.0)
    )
    strategy = make_strategy(name, {"global_batch": G, "batch": B})
    gap = simulate(cluster, strategy, G * 100).sync_gap
    assert gap is not None and gap["in_flight"] > 0.97 and gap["elp"] == G
    seconds = 0.5 if name == "easgd" else 0.5 * 7 / 8
    assert gap["mean"] == pytest.approx(seconds / 0.1, rel=0.1)


@pytest.mark.parametrize("name", ["easgd", "model_averaging", "bmuf", "k_step_adam"])
@pytest.mark.parametrize("other", ["sync", "gba", "easgd", "k_step_adam"])
def test_replicas_that_die_and_switches_lose_no_example(name: str, other: str) -> None:
    sizes = {"global_batch": G, "batch": B}
    switches = [SimulatedSwitch(other, sizes, examples=G * 10), SimulatedSwitch(name, sizes, seconds=3.0)]
    cluster = ClusterModel(
        N,
        crashes=(Crash(0.55, 0.7, (2,)), Crash(1.5, workers=(3,))),
        network=network(),
        lognormal=(Lognormal(0.3),),
    )
    outcome = run(cluster, name, G * 40, switches=switches)
    assert outcome.applied == G * 40 and outcome.strategy == name


def test_a_slow_worker_holds_back_a_merge_of_all_and_no_centre() -> None:
    cluster = ClusterModel(N, slow=(Slow(5, (3,)),))
    settings = {"exchange": 5}
    assert run(cluster, "model_averaging", settings=settings).examples_per_second == pytest.approx(
        G / 0.5, rel=0.02
    )
    assert run(cluster, "easgd", settings=settings).examples_per_second == pytest.approx(
        7.2 * B / 0.1, rel=0.02
    )
