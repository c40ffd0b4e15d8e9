"""One test per claim of the GBA paper (Global Batch gradients Aggregation, Alibaba 2022), and per fact derived from it.

N workers, M gradients of B examples each in a step of G = M * B. "(paper)" is what the paper states, "(reading)" our
reading of it, "(found)" what a simulation of it showed.
"""

from statistics import mean

import pytest

from gearshift.sync.events import Apply, Begin, WorkerJoined
from gearshift.sync.registry import local_batch, make_strategy
from tests.unit.sync.ledger import World

EXAMPLES = 100_000


class Gba(World):
    def __init__(self, workers, m, *, batch=1, examples=EXAMPLES, **settings):
        super().__init__("gba", {"global_batch": m * batch, "batch": batch, **settings})
        self.tokens = []  # of every lease, in the order of their numbers
        self.worker_of = []
        for _ in range(workers):
            self.join()
        self.supply(examples, batch)
        for worker in range(workers):
            self.ask(worker)

    def handle(self, event):
        actions = super().handle(event)
        begun = [action for action in actions if isinstance(action, Begin)]
        self.tokens += [begin.token for begin in begun]
        self.worker_of += [begin.worker for begin in begun]
        return actions

    def deliver(self, worker):
        (lease,) = self.work.flights_of[worker]
        actions = self.arrive(worker, lease)
        self.ask(worker)
        return actions

    def run(self, order, turns):
        for _ in range(turns):
            for worker in order:
                self.deliver(worker)

    def parts_of(self, worker):
        return [part for part in self.parts if self.worker_of[part.lease] == worker]


class TestTheGlobalBatch:
    @pytest.mark.parametrize(("workers", "m", "batch"), [(4, 4, 2), (3, 8, 1), (10, 4, 3)])
    def test_every_step_is_one_global_batch_whatever_the_workers(self, workers, m, batch):
        """(paper) G = B_s * N_s = B_a * M; M need not equal the number of workers."""
        run = Gba(workers, m, batch=batch)
        run.run(range(workers), 10)
        assert set(run.steps) == {m * batch}

    def test_it_is_the_global_batch_of_the_synchronous_run(self):
        """(paper) Nothing is re-tuned: 4 workers in sync and 16 smaller leases in gba step on as many examples."""
        sync = World("sync", {"global_batch": 64, "batch": local_batch("sync", 64, 4)})
        sync.supply(64, 16)
        for _ in range(4):
            sync.ask(sync.join())
        for worker in range(4):
            sync.arrive(worker, worker)
        gba = Gba(4, 16, batch=4)
        gba.run(range(4), 4)
        assert sync.steps == gba.steps == [64]

    def test_a_short_buffer_at_the_end_of_the_data_is_flushed_with_its_true_size(self):
        run = Gba(3, 4, examples=7)
        run.run(range(3), 2)
        run.exhaust()
        run.arrive(0, 6)
        assert run.steps == [4, 3]
        run.check_end()

    def test_in_lockstep_it_is_sync(self):
        """With M = N, and every pull of a step after the step before it, the same gradients form the same steps."""

        def steps(strategy):
            run = World(strategy, {"global_batch": 8, "batch": 2})
            run.supply(80, 2)
            for _ in range(4):
                run.join()
            applied = []
            for _ in range(10):
                for worker in range(4):
                    run.ask(worker)
                for worker, lease in reversed(run.flights):
                    applied += [action for action in run.arrive(worker, lease) if isinstance(action, Apply)]
            return applied

        assert steps("gba") == steps("sync")
        assert len(steps("gba")) == 10

    def test_with_one_worker_it_accumulates_m_gradients(self):
        run = Gba(1, 4)
        run.run([0], 12)
        assert [part.lease for part in run.parts] == list(range(12))
        assert run.steps == [4, 4, 4]


class TestWaiting:
    def test_workers_never_wait(self):
        """(paper) Every request is answered with work at once, however far ahead the worker is of the others."""
        run = Gba(4, 4)
        for turn in range(100):
            run.deliver(0 if turn % 3 else turn % 4)
            assert not run.work.parked


class TestTokens:
    @pytest.mark.parametrize(("workers", "m"), [(4, 4), (3, 8), (10, 4), (1, 4), (7, 3)])
    def test_each_value_is_issued_m_times(self, workers, m):
        """(paper) The i-th token is floor(i / M), in whatever order gradients arrive."""
        run = Gba(workers, m)
        for turn in range(200):
            run.deliver(turn * turn % workers)
        assert run.tokens == [i // m for i in range(len(run.tokens))]

    def test_a_worker_that_recovers_takes_new_work_and_a_new_token(self):
        """(paper) It forgets its batch and its token; its examples go to the first worker that requests work."""
        run = Gba(4, 4)
        run.run([0, 1, 2], 8)  # worker 3 is at its first lease all the while
        assert (run.work.flying[3].token, run.work.step) == (0, 6)
        run.lose(3)
        run.deliver(0)
        assert [(lease.first, lease.attempt) for lease in run.leases.values()][-1] == (3, 1)
        run.handle(WorkerJoined(3))
        run.ask(3)
        assert run.tokens[-1] == 7  # step 6 is applied and four are under way for the next
        assert run.parts_of(3) == []
        assert run.arrive(3, 3)[0].ended_before  # what it was at comes too late for anything

    def test_losses_do_not_shift_them(self):
        """(found) With a plain counter every lost token makes all later gradients look earlier, for ever.

        In 40 losses at M = 4 the counter runs 10 steps ahead: a cut-off of 4 steps has become one of 14.
        """
        run = Gba(4, 4)
        for _ in range(40):
            run.run(range(4), 1)
            run.lose(3)
            run.handle(WorkerJoined(3))
            run.alive.append(3)
            run.ask(3)
        run.run(range(4), 10)
        recent = run.parts[-16:]
        step_of = {part.lease: run.tokens[part.lease] + part.lag for part in recent}
        lag_by_a_counter = [step_of[part.lease] - part.lease // 4 for part in recent]
        assert mean(part.lag for part in recent) == pytest.approx(0, abs=0.5)
        assert mean(lag_by_a_counter) == pytest.approx(-10, abs=0.5)

    def test_short_flushes_do_not_shift_them(self):
        """(found) A counter falls behind the steps with every step that is short; here the end of each day is."""
        run = Gba(2, 4)
        for _ in range(30):
            run.run(range(2), 2)
            run.arrive(0, *run.work.flights_of[0])  # one gradient of four, made a step of its own by a switch
            run.switch("async", {"global_batch": 4, "batch": 1})
            run.switch("gba", {"global_batch": 4, "batch": 1})
            run.ask(0)
        lag_by_a_counter = [run.tokens[part.lease] + part.lag - part.lease // 4 for part in run.parts[-4:]]
        assert max(part.lag for part in run.parts) <= 1
        assert min(lag_by_a_counter) > 20


class TestDecay:
    def test_severely_stale_gradients_have_weight_0(self):
        """(paper) They are decayed; (reading) to 0 beyond max_lag, and they still fill their place in the step."""
        run = Gba(4, 4, max_lag=2)
        run.run([0, 1, 2], 12)  # 36 gradients, 9 steps; worker 3 was scheduled for step 0
        run.arrive(3, 3)
        run.run([0, 1, 2], 1)
        (part,) = run.parts_of(3)
        assert (part.lag, part.weight) == (9, 0.0)
        assert part.reason == "too late: 9 steps behind its schedule, max_lag is 2"
        assert run.steps[-1] == 4
        assert run.ends[3] == "discarded"

    @pytest.mark.parametrize(("lag", "weight"), [(-3, 1.0), (0, 1.0), (4, 1.0), (5, 0.0)])
    def test_cut(self, lag, weight):
        """(reading) 1 up to max_lag and then 0; ahead of schedule, where lag is negative, 1."""
        assert gba().weight(lag, 4) == weight

    @pytest.mark.parametrize(("decay", "weight"), [("exponential", 0.36787944), ("inverse", 0.5)])
    def test_other_forms(self, decay, weight):
        """(reading) Falling beyond max_lag instead of a cut, in units of max_lag."""
        strategy = gba(decay=decay)
        assert [strategy.weight(lag, 4) for lag in (-1, 0, 1, 4)] == [1.0] * 4
        assert strategy.weight(8, 4) == pytest.approx(weight)
        assert 1.0 > strategy.weight(5, 4) > strategy.weight(6, 4) > weight
        assert strategy.weight(1, 0) == pytest.approx(weight)  # only what is on schedule counts in full
        assert strategy.weight(9, float("inf")) == 1.0  # any lag is allowed

    @pytest.mark.parametrize(("workers", "limit"), [(4, 4), (8, 4), (9, 5), (32, 16)])
    def test_max_lag_by_default(self, workers, limit):
        """(reading) max(4, ceil(2 N / M)), with the workers of the moment."""
        run = Gba(workers, 4)
        assert run.strategy.limit(run.work) == limit

    def test_nothing_is_lost_while_speeds_are_even_and_n_is_at_most_m(self):
        run = Gba(4, 4)
        run.run(range(4), 50)
        assert "discarded" not in run.ends.values()

    @pytest.mark.parametrize(("divisor", "over_kept"), [("all", False), ("kept", True)])
    def test_the_divisor_is_m_or_what_was_kept(self, divisor, over_kept):
        """(reading) A dropped gradient shrinks the step, unless `divisor: kept`."""
        run = Gba(4, 4, divisor=divisor)
        run.run([0, 1, 2], 1)
        (step,) = [action for action in run.deliver(3) if isinstance(action, Apply)]
        assert step.over_kept == over_kept


class TestLag:
    @pytest.mark.parametrize(("workers", "m"), [(4, 4), (9, 4), (16, 4), (5, 8)])
    def test_lag_is_not_staleness(self, workers, m):
        """(found) In an even round-robin lag averages 0 and staleness (N - 1) / M: lag does not see N > M."""
        run = Gba(workers, m)
        run.run(range(workers), 10)
        first = len(run.parts)
        run.run(range(workers), 40)
        settled = run.parts[first:]
        assert mean(part.staleness for part in settled) == pytest.approx((workers - 1) / m, abs=0.05)
        assert mean(part.lag for part in settled) == pytest.approx(0, abs=0.05)

    def test_a_worker_more_than_max_lag_slow_loses_all_its_data(self):
        """(found) This is a bias if its data differs, so the discarded share must be reported per worker."""
        run = Gba(4, 4, max_lag=4)
        for _ in range(5):
            run.run([0, 1, 2], 10)  # ten leases of the others to one of its own: 7 to 8 steps
            run.deliver(3)
        run.run([0, 1, 2], 2)
        assert [part.weight for part in run.parts_of(3)] == [0.0] * 5
        assert {part.weight for worker in range(3) for part in run.parts_of(worker)} == {1.0}

    def test_one_that_is_slow_within_max_lag_loses_nothing(self):
        run = Gba(4, 4, max_lag=4)
        for _ in range(5):
            run.run([0, 1, 2], 4)
            run.deliver(3)
        assert {part.weight for part in run.parts_of(3)} == {1.0}


def gba(**settings):
    return make_strategy("gba", {"global_batch": 4, "batch": 1, **settings})
