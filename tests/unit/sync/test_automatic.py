"""auto: it switches when it pays off, gives its reason, does not flap, and measures the outcome."""

from __future__ import annotations

import pytest

from gearshift.cluster_model.cluster import Bursts, ClusterModel, Compute, Crash, Slow, SlowPeriod
from gearshift.engine.simulation.simulator import simulate
from gearshift.engine.simulation.switch_plan import SimulatedSwitch
from gearshift.errors import UserError
from gearshift.sync.automatic import Auto, Automatic, Proposal
from gearshift.sync.events import (
    Apply,
    Begin,
    Discard,
    GradientArrived,
    GradientRefused,
    Lease,
    Part,
    Reissue,
    WorkerLost,
)
from gearshift.sync.registry import make_auto, resolve

WORKERS, BATCH = 8, 100


def watch(
    cluster: ClusterModel, strategy: str, steps: int = 200, **settings
) -> tuple[Automatic, list[Proposal]]:
    """What auto would say of a cluster that stays with `strategy`."""
    auto, proposals = Automatic(Auto(**settings), WORKERS * BATCH), []

    def log(event, actions) -> None:
        proposal = auto.observe(event, actions, strategy)
        if proposal is not None:
            proposals.append(proposal)

    chosen = resolve(strategy, {}, WORKERS * BATCH, WORKERS)
    simulate(cluster, chosen, steps * WORKERS * BATCH, log=log)
    return auto, proposals


def cluster(**more) -> ClusterModel:
    return ClusterModel(WORKERS, Compute(per_batch=0.1), **more)


def test_equal_workers_stay_in_sync() -> None:
    _, proposals = watch(cluster(), "sync")
    assert proposals == []


def test_a_slow_worker_makes_it_propose_gba_with_its_numbers() -> None:
    _, proposals = watch(cluster(slow=(Slow(5.0, (3,)),)), "sync", steps=30)
    first = proposals[0]
    assert first.strategy == "gba" and first.predicted == pytest.approx(4.5, rel=0.01)
    assert "worker 3 needs 5.0x the median time; predicted 1,600 -> 7,200 ex/s" in first.reason


def test_bursts_count_as_often_as_they_come() -> None:
    auto, _ = watch(cluster(bursts=(Bursts(0.1, 10.0),)), "sync", window=64)
    prediction = auto.predict()
    assert prediction is not None
    assert prediction.gain == pytest.approx(3.2, rel=0.35)  # the closed form; 64 batches of each worker


def test_when_workers_are_even_again_it_proposes_sync() -> None:
    _, proposals = watch(cluster(), "gba", steps=40)
    assert proposals[0].strategy == "sync" and "equally fast again" in proposals[0].reason


def test_a_worker_past_max_lag_adds_nothing_to_gba() -> None:
    """At 20x its gradients would all be too late: seven workers count."""
    auto, _ = watch(cluster(slow=(Slow(20.0, (3,)),)), "sync", steps=30)
    prediction = auto.predict()
    assert prediction is not None and prediction.gba == pytest.approx(7 * BATCH / 0.1)


def test_a_short_stumble_changes_nothing() -> None:
    """Slow for less than `patience` steps."""
    stumble = SlowPeriod(3.0, start=2.0, end=2.4, workers=(3,))
    _, proposals = watch(cluster(slow_periods=(stumble,)), "sync", patience=20)
    assert proposals == []


def test_the_more_staying_costs_the_sooner_it_moves() -> None:
    """One worker 5x slower is answered after half as many steps as one that passes the margin by a little."""
    after = {}
    for factor in (1.3, 5.0):
        turned = cluster(slow_periods=(SlowPeriod(factor, start=5.0, workers=(3,)),))
        auto, _ = watch(turned, "sync")
        after[factor] = auto.changes[0].step - 50
    assert after[5.0] <= 5 and after[1.3] >= 10


def test_batches_that_would_be_too_late_do_not_count_for_gba() -> None:
    """Half of worker 3's batches take 20x: those would be more than max_lag behind, the other half not."""
    auto, _ = watch(cluster(bursts=(Bursts(0.5, 20.0, (3,)),)), "sync", window=64)
    lenient, _ = watch(cluster(bursts=(Bursts(0.5, 20.0, (3,)),)), "sync", window=64, max_lag=1000)
    strict_one, all_of_it = auto.predict(), lenient.predict()
    assert strict_one is not None and all_of_it is not None
    of_worker_3 = all_of_it.gba - 7 * BATCH / 0.1
    assert all_of_it.gba - strict_one.gba == pytest.approx(of_worker_3 / 2, rel=0.3)


def test_between_the_two_thresholds_it_stays_where_it_is() -> None:
    uneven = cluster(slow=(Slow(1.18, (3,)),))  # gba is 15 % faster: less than the margin, more than its half
    assert watch(uneven, "sync")[1] == [] and watch(uneven, "gba")[1] == []


def test_bad_settings_are_named() -> None:
    with pytest.raises(UserError, match="auto has no setting `marginn`: it has margin"):
        make_auto({"marginn": 1})
    with pytest.raises(UserError, match="margin must be above 0"):
        make_auto({"margin": 0})


# ---- what it keeps ----


class Run:
    """Two workers in sync, driven event by event: in each round worker 0 takes 1 s and worker 1 `slow` seconds."""

    def __init__(self, **settings) -> None:
        self.auto = Automatic(Auto(**settings), 20)
        self.lease = self.steps = 0
        self.at = 0.0

    def round(self, slow: float, strategy: str = "sync") -> Proposal | None:
        first, second = self.begin(0), self.begin(1)
        self.at += 1
        self.auto.observe(GradientArrived(0, first, self.at), [], strategy)
        self.at += slow - 1
        self.steps += 1
        step = Apply(self.steps, (Part(first), Part(second)))
        return self.auto.observe(GradientArrived(1, second, self.at), [step], strategy)

    def begin(self, worker: int) -> int:
        self.lease += 1
        begin = Begin(worker, Lease(self.lease, 10 * self.lease, 10), self.steps, self.steps)
        self.auto.observe(GradientArrived(9, 0, self.at), [begin], "sync")
        return self.lease


def test_a_lost_worker_is_forgotten() -> None:
    run = Run()
    for _ in range(3):
        run.round(4.0)
    assert run.auto.predict() is not None
    run.auto.observe(WorkerLost(1, "it died", run.at), [], "sync")
    assert run.auto.predict() is None  # one worker: nothing to choose between
    run.auto.observe(WorkerLost(7, "never seen", run.at), [], "sync")


def test_a_lease_that_came_to_nothing_tells_no_time() -> None:
    run = Run()
    given_back, refused = run.begin(1), run.begin(1)
    run.auto.observe(WorkerLost(1, "it died", 9.0), [Reissue(given_back, "it died")], "sync")
    run.auto.observe(GradientRefused(1, refused, "nan", 9.0), [Discard(refused, "nan")], "sync")
    for lease in (given_back, refused):
        run.auto.observe(GradientArrived(1, lease, 100.0), [], "sync")
    run.at = 100.0
    for _ in range(2):
        run.round(1.0)
    prediction = run.auto.predict()
    assert prediction is not None and prediction.gain == pytest.approx(1.0)


def test_what_the_worker_says_of_its_time_counts_more_than_the_clock_of_the_run() -> None:
    run = Run()
    for _ in range(2):
        run.round(1.0)
        run.auto.observe(GradientArrived(1, run.begin(1), run.at + 50, seconds=3.0), [], "sync")
    prediction = run.auto.predict()
    assert prediction is not None and prediction.factor == pytest.approx(2.0 / 1.5)


def test_other_strategies_are_left_alone() -> None:
    run = Run(patience=1)
    assert [run.round(5.0, "async") for _ in range(9)] == [None] * 9


def test_a_change_and_what_came_of_it_is_told_once() -> None:
    run = Run(patience=4, window=4)
    while not (proposal := run.round(4.0)):
        pass
    (change,) = run.auto.changes
    assert (change.before, change.strategy, change.realised) == ("sync", "gba", None)
    assert proposal.settings == {"max_lag": 4.0} and proposal.predicted == change.predicted
    assert change.step == run.steps and change.at == run.at and run.auto.new_outcomes() == []
    for _ in range(4):
        run.round(2.0, "gba")
    (change,) = run.auto.changes
    assert change.realised == pytest.approx(2.0)
    (told,) = run.auto.new_outcomes()
    assert told.startswith("the change to gba at step 2 made it 2.00x as fast (predicted ")
    assert run.auto.new_outcomes() == []


def test_the_gain_of_a_change_that_is_followed_by_another_is_not_known() -> None:
    run = Run(patience=1, window=8)
    while not run.round(4.0):
        pass
    run.auto.observe(WorkerLost(1, "it died", run.at), [], "gba")  # forgets the slow batches
    while not run.round(1.0, "gba"):
        pass
    assert [(c.strategy, c.realised) for c in run.auto.changes] == [("gba", None), ("sync", None)]


def test_another_epoch_begins_with_its_own_clock() -> None:
    """The clock restarts: no rate is computed across it, and earlier leases are forgotten."""
    run = Run(patience=4, window=4)
    while not run.round(4.0):
        pass
    lost = run.begin(0)
    run.at = 0.0
    for _ in range(6):
        run.round(4.0, "gba")
    run.auto.observe(GradientArrived(0, lost, run.at + 1000), [], "gba")
    assert run.auto.changes[0].realised is None and run.auto.new_outcomes() == []
    prediction = run.auto.predict()
    assert prediction is not None and prediction.slowest == 1


def test_steps_that_take_no_time_have_no_rate() -> None:
    """All steps of a change's time at one instant: its gain is not known, and nothing is divided by zero."""
    run = Run(patience=4, window=4)
    while not run.round(4.0):
        pass
    for step in range(10):
        run.auto.observe(GradientArrived(9, 0, run.at), [Apply(100 + step, ())], "gba")
    assert run.auto.changes[0].realised is None


# ---- and on a cluster ----


def test_auto_goes_there_and_back_on_a_simulated_cluster() -> None:
    turning = cluster(slow_periods=(SlowPeriod(5.0, start=10.0, end=30.0, workers=(3,)),))
    examples = 500 * WORKERS * BATCH
    auto = Automatic(Auto(), WORKERS * BATCH)
    chosen = resolve("auto", {}, WORKERS * BATCH, WORKERS)
    outcome = simulate(turning, chosen, examples, automatic=auto)
    there, back = outcome.automatic
    assert (there.before, there.strategy, back.strategy) == ("sync", "gba", "sync")
    assert 10 < there.at < 13 and 30 < back.at < 34
    assert there.realised == pytest.approx(4.5, rel=0.05) and back.realised == pytest.approx(1.0, rel=0.05)
    assert outcome.strategy == "sync" and outcome.applied == examples
    fixed = simulate(turning, resolve("gba", {}, WORKERS * BATCH, WORKERS), examples)
    assert outcome.examples_per_second > 0.95 * fixed.examples_per_second
    assert outcome.as_json()["automatic"][0]["reason"] == there.reason


def test_a_planned_switch_ends_auto() -> None:
    slow = cluster(slow=(Slow(5.0, (3,)),))
    sizes = {"global_batch": WORKERS * BATCH, "batch": BATCH}
    planned = [SimulatedSwitch("sync", sizes, examples=100 * WORKERS * BATCH)]
    auto = Automatic(Auto(), WORKERS * BATCH)
    chosen = resolve("auto", {}, WORKERS * BATCH, WORKERS)
    outcome = simulate(slow, chosen, 200 * WORKERS * BATCH, switches=planned, automatic=auto)
    assert outcome.strategy == "sync" and [change.strategy for change in outcome.automatic] == ["gba"]


def test_auto_does_not_mind_workers_that_die_and_return() -> None:
    dying = cluster(slow=(Slow(5.0, (3,)),), crashes=(Crash(2.0, 3.0, (3,)), Crash(8.0, 3.0, (1,))))
    auto = Automatic(Auto(), WORKERS * BATCH)
    chosen = resolve("auto", {}, WORKERS * BATCH, WORKERS)
    outcome = simulate(dying, chosen, 300 * WORKERS * BATCH, automatic=auto)
    assert outcome.strategy == "gba" and outcome.applied + outcome.discarded == 300 * WORKERS * BATCH
