"""Random schedules for a strategy: a Hypothesis state machine that sends a coordinator all possible events.

`Schedule` is the machine; `schedule_of("gba")` one that begins with gba, for any name that `make_strategy` knows.
At the end of every schedule the data end, what flies lands, and the accounts must balance (see ledger.py).
"""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gearshift.sync.events import Begin
from tests.unit.sync.ledger import World

EXCHANGE = st.sampled_from(["background", {"every": 1}, {"every": 3}, {"every": "5s"}])
OWN: dict[str, dict[str, Any]] = {
    "bounded_staleness": {"bound": st.integers(0, 3)},
    "ringmaster": {"max_staleness": st.none() | st.integers(0, 3)},
    "buffered_async": {"gradients_per_step": st.none() | st.integers(1, 5)},
    "backup_workers": {"backups": st.integers(0, 2)},
    "gba": {
        "max_lag": st.none() | st.integers(0, 3),
        "decay": st.sampled_from(["cut", "exponential", "inverse"]),
        "divisor": st.sampled_from(["all", "kept"]),
        "predicted_pull": st.booleans(),
        "staleness_rate": st.booleans(),
        "late_rows": st.sampled_from(["drop", "unchanged"]),
    },
    "easgd": {"exchange": EXCHANGE},
    "bmuf": {"exchange": EXCHANGE},
    "model_averaging": {"exchange": EXCHANGE, "workers_per_replica": st.integers(1, 3)},
    "k_step_adam": {"exchange": st.integers(1, 4), "warmup_steps": st.none() | st.integers(0, 3)},
}
NAMES = [
    "sync", "balanced", "async", "bounded_staleness", "ringmaster", "buffered_async", "backup_workers", "gba",
    "easgd", "bmuf", "model_averaging", "k_step_adam",
]  # fmt: skip


class Schedule(RuleBasedStateMachine):
    starts_with: ClassVar[str] = "sync"
    switches_to: ClassVar[list[str]] = NAMES
    own: ClassVar[dict[str, dict[str, Any]]] = OWN  # by strategy, what its settings are drawn from

    def settings_of(self, name: str) -> st.SearchStrategy[dict[str, Any]]:
        sizes = {"global_batch": st.integers(1, 12), "batch": st.integers(1, 4)}
        return st.fixed_dictionaries({**sizes, **self.own.get(name, {})})

    @initialize(data=st.data(), workers=st.integers(0, 5), supply=st.integers(0, 60))
    def begin(self, data: st.DataObject, workers: int, supply: int) -> None:
        self.world = World(self.starts_with, data.draw(self.settings_of(self.starts_with)))
        for _ in range(workers):
            self.world.join()
        self.world.supply(supply, data.draw(st.integers(1, 4)))
        for worker in self.world.idle:
            self.world.ask(worker)

    @precondition(lambda self: len(self.world.alive) < 8)
    @rule()
    def join(self) -> None:
        self.world.ask(self.world.join())

    @precondition(lambda self: self.world.idle)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        self.world.ask(data.draw(st.sampled_from(self.world.idle)))

    @precondition(lambda self: self.world.flights)
    @rule(data=st.data(), then_ask=st.booleans())
    def arrive(self, data: st.DataObject, then_ask: bool) -> None:
        worker, lease = data.draw(st.sampled_from(self.world.flights))
        self.world.arrive(worker, lease)
        if then_ask:
            self.world.ask(worker)

    @precondition(lambda self: self.world.flights)
    @rule(data=st.data(), turns=st.integers(1, 4))
    def run_on(self, data: st.DataObject, turns: int) -> None:
        """One worker is quick and does several leases while the others do none."""
        worker, _ = data.draw(st.sampled_from(self.world.flights))
        for _ in range(turns):
            for lease in sorted(self.world.work.flights_of[worker]):
                self.world.arrive(worker, lease)
                self.world.ask(worker)

    @precondition(lambda self: self.world.flights)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        self.world.refuse(*data.draw(st.sampled_from(self.world.flights)))

    @precondition(lambda self: self.world.alive)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.world.lose(data.draw(st.sampled_from(self.world.alive)))

    @precondition(lambda self: self.world.alive)
    @rule(data=st.data())
    def join_again(self, data: st.DataObject) -> None:
        self.world.join_again(data.draw(st.sampled_from(self.world.alive)))

    @precondition(lambda self: self.world.lost_pushes)
    @rule(data=st.data())
    def late_push(self, data: st.DataObject) -> None:
        self.world.arrive(*data.draw(st.sampled_from(self.world.lost_pushes)))

    @precondition(lambda self: self.world.work.waiting)
    @rule(data=st.data())
    def same_push_again(self, data: st.DataObject) -> None:
        flight = data.draw(st.sampled_from(list(self.world.work.waiting.values())))
        actions = self.world.arrive(flight.worker, flight.lease.number)
        assert all(isinstance(action, Begin) for action in actions), "at most a copy, because time has passed"

    @precondition(lambda self: self.world.work.parked)
    @rule(data=st.data())
    def ask_twice(self, data: st.DataObject) -> None:
        self.world.ask(data.draw(st.sampled_from(list(self.world.work.parked))))

    @precondition(lambda self: not self.world.work.exhausted)
    @rule(count=st.integers(0, 30), batch=st.integers(1, 4))
    def supply(self, count: int, batch: int) -> None:
        self.world.supply(count, batch)

    @rule()
    def exhaust(self) -> None:
        self.world.exhaust()

    @rule(times=st.integers(1, 5))
    def wait(self, times: int) -> None:
        for _ in range(times):
            self.world.wait()

    @precondition(lambda self: self.world.work.merges.under_way)
    @rule()
    def exchanged(self) -> None:
        self.world.exchanged()

    @precondition(lambda self: self.switches_to)
    @rule(data=st.data())
    def switch(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.switches_to))
        self.world.switch(name, data.draw(self.settings_of(name)))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


def schedule_of(
    name: str, switches_to: list[str] | None = None, own: dict[str, dict[str, Any]] | None = None
) -> type[Schedule]:
    """Schedules that begin with this strategy; `own` has settings of strategies outside the package."""
    of = {"starts_with": name, "switches_to": switches_to or [], "own": {**OWN, **(own or {})}}
    return type("ScheduleOf" + "".join(filter(str.isalnum, name)), (Schedule,), of)
