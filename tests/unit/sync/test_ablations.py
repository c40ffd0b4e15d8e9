"""The strategies of benchmarks/switching satisfy the common invariants and behave as the benchmark describes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from gearshift.cluster_model.cluster import ClusterModel, Failures, Lognormal, Slow
from gearshift.engine.simulation.simulator import simulate
from gearshift.sync.events import Action, Apply, Event
from gearshift.sync.registry import make_strategy
from tests.unit.sync.schedules import NAMES, schedule_of

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
MODULE = "switching.ablations"
OWN = {
    f"{MODULE}:RandomDrops": {"share": st.floats(0, 1), "seed": st.integers(0, 9)},
    f"{MODULE}:StalenessCut": {"max_staleness": st.integers(0, 3)},
}
FEW = settings(max_examples=20, stateful_step_count=40, deadline=None)
JITTER = ClusterModel(8, slow=(Slow(8.0, (5,)),), lognormal=(Lognormal(0.3),), seed=1)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])


def steps(name: str, examples: int = 8 * 200, cluster: ClusterModel = JITTER, **own: object) -> list[Apply]:
    found: list[Apply] = []

    def log(_: Event, actions: list[Action]) -> None:
        found.extend(action for action in actions if isinstance(action, Apply))

    simulate(
        cluster, make_strategy(f"{MODULE}:{name}", {"global_batch": 8, "batch": 1, **own}), examples, log=log
    )
    return found


@pytest.mark.parametrize("name", list(OWN))
def test_it_keeps_the_laws(name: str) -> None:
    run_state_machine_as_test(schedule_of(name, [*NAMES, name], own=OWN), settings=FEW)


def test_delayed_sync_is_one_step_late_always_and_in_the_order_of_the_data() -> None:
    first, *others = steps("DelayedSync")
    assert {part.staleness for part in first.parts} == {0}
    assert {part.staleness for step in others for part in step.parts} == {1}
    leases = [part.lease for step in (first, *others) for part in step.parts]
    assert leases == list(range(8 * 200))


def test_delayed_sync_comes_to_an_end_when_workers_die() -> None:
    """The schedules are not for it: it lets two rounds wait, where they allow one."""
    dying = ClusterModel(3, lognormal=(Lognormal(0.5),), failures=(Failures(1.0, 0.3),), seed=2)
    counted = sum(len(step.parts) for step in steps("DelayedSync", 333, dying))
    assert counted == 333


def test_random_drops_drop_the_share_they_are_given_and_others_with_another_seed() -> None:
    def dropped(seed: int) -> set[int]:
        taken = steps("RandomDrops", share=0.1, seed=seed)
        return {part.lease for step in taken for part in step.parts if part.weight == 0}

    assert 100 < len(dropped(1)) < 220
    assert len(dropped(1) & dropped(2)) < 60


def test_the_staleness_cut_drops_exactly_what_is_staler() -> None:
    parts = [part for step in steps("StalenessCut", max_staleness=2) for part in step.parts]
    assert any(part.weight == 0 for part in parts)
    assert all((part.weight == 0) == (part.staleness > 2) for part in parts)
