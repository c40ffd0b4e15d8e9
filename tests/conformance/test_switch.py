"""A switch in a live run of eight workers, one of them 5x slower: it moves nothing and loses nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import gearshift as gs
from examples import PLAIN
from gearshift.cluster_model.cluster import ClusterModel, Compute, Slow
from gearshift.parameters.server import Server
from gearshift.run.event_log import Decision, files, read
from gearshift.sync.events import (
    Action,
    Apply,
    Begin,
    Discard,
    Duplicate,
    Event,
    GradientArrived,
    SwitchRequested,
)
from gearshift.sync.registry import STRATEGIES
from gearshift.training.request_queue import RequestQueue

from .engines import data, state

WORKERS, GLOBAL, EXAMPLES = 8, 80, 80 * 20 + 33


class Seen(gs.Callback):
    """The switches that were made."""

    def __init__(self) -> None:
        self.ways: list[tuple[str, str]] = []

    def on_switch(self, run: gs.Run, switch: gs.Switch) -> None:
        self.ways.append((switch.before, switch.strategy))


def live_run(path: Path, monkeypatch: pytest.MonkeyPatch, start: str, to: str) -> gs.Result:
    """It is switched in the middle of a global batch: when three gradients of the sixth have arrived."""
    observe, arrived, seen = RequestQueue.observe, 0, Seen()

    def watched(requests: RequestQueue, event: Event, actions: list[Action]) -> None:
        nonlocal arrived
        observe(requests, event, actions)
        arrived += isinstance(event, GradientArrived)
        if isinstance(event, GradientArrived) and arrived == 5 * WORKERS + 3:
            requests.request_switch(to, {})

    monkeypatch.setattr(RequestQueue, "observe", watched)
    trainer = gs.Trainer(
        global_batch=GLOBAL,
        workers=gs.WorkerSettings(
            WORKERS, inject=ClusterModel(WORKERS, Compute(per_batch=0.002), slow=(Slow(5.0, (3,)),))
        ),
        strategy={"name": start, "batch": GLOBAL // WORKERS},
        checkpoint=gs.CheckpointPolicy(None, path=path),
        optimizer=gs.OptimizerSettings(gs.Adam(), rows=gs.RowAdam()),
    )
    result = trainer.fit(gs.models.DNN(PLAIN, dim=4, hidden=[8]), data(EXAMPLES), callbacks=[seen])
    assert seen.ways == [(start, to)]
    return result


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict, dict]]:
    """All that training moves, before and after every step."""
    found, apply_group = [], Server.apply_group

    def watched(server: Server, *args, **more) -> None:
        before = state(server)
        apply_group(server, *args, **more)
        found.append((before, state(server)))

    monkeypatch.setattr(Server, "apply_group", watched)
    return found


def log_of(result: gs.Result) -> list[Decision]:
    return [said for _, said in read(files(result.folder)) if isinstance(said, Decision)]


@pytest.mark.parametrize(
    ("start", "to"), [("sync", "gba"), ("gba", "sync"), ("gba", "async"), ("async", "sync")]
)
def test_nothing_moves_between_the_last_old_and_the_first_new_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: list, start: str, to: str
) -> None:
    log = log_of(live_run(tmp_path, monkeypatch, start, to))
    steps, last_old = 0, None
    for one in log:
        if isinstance(one.event, SwitchRequested):
            last_old = steps
        steps += sum(isinstance(action, Apply) for action in one.actions)
    assert last_old is not None and 5 <= last_old < steps == len(states)
    (_, after_old), (before_new, after_new) = states[last_old - 1], states[last_old]
    assert set(after_old) == set(before_new) and len(after_old) > 6
    for name, values in after_old.items():
        # A row is born when it is pulled: those of the last old step are there as they were.
        known = (
            np.isin(before_new["ids_U"], after_old["ids_U"]) if name.endswith(("_U", "_UW", "_US")) else ...
        )
        assert np.array_equal(values, before_new[name][known]), name
    assert not np.array_equal(before_new["dense"], after_new["dense"])


@pytest.mark.parametrize("start", list(STRATEGIES))
@pytest.mark.parametrize("to", list(STRATEGIES))
def test_no_example_is_lost_and_none_trained_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, to: str
) -> None:
    result = live_run(tmp_path, monkeypatch, start, to)
    leases, ended = {}, Counter()
    for one in log_of(result):
        for action in one.actions:
            match action:
                case Begin(lease=lease):
                    leases[lease.number] = lease
                case Apply(parts=parts):
                    ended.update(part.lease for part in parts)
                case Discard(number, ended_before=False):
                    ended[number] += 1
                case Duplicate(number):
                    del leases[number]
    assert set(ended) == set(leases) and set(ended.values()) == {1}
    position = 0
    for lease in sorted(leases.values(), key=lambda lease: lease.first):
        assert lease.first == position
        position += lease.count
    assert position == EXAMPLES == result.report["examples"] == result.report["progressive"]["examples"]
