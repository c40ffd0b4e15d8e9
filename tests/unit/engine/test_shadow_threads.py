"""Replicas under threads: shadows, rounds whose members come and die, holds, and whole runs."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.engine.live_replicas import LiveReplicas, PauseGate
from gearshift.engine.shadow_threads import LocalCentre, LocalMean
from gearshift.optim.first_order import SGD
from gearshift.parameters.push import AppliedPush, Push
from gearshift.parameters.replicas.arithmetic import mean_of
from gearshift.parameters.replicas.group import Replicas
from gearshift.parameters.server import Server
from gearshift.sync.exchange import Choices
from gearshift.sync.registry import REPLICATED, make_strategy
from gearshift.sync.replicated import choices_of
from tests.flat_trainer import flat_trainer

WAIT = 60.0  # seconds after which a test gives up


def choices(name: str, **settings: object) -> Choices:
    found = choices_of(make_strategy(name, {"global_batch": 8, "batch": 2, **settings}))
    assert found is not None
    return found


def in_threads(*targets: object) -> list[threading.Thread]:
    threads = [threading.Thread(target=target, daemon=True) for target in targets]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    return threads


def joined(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive(), "it hangs"


# ---- partners ----


def test_a_round_ends_when_all_have_come_and_gives_all_the_same() -> None:
    mean, got = LocalMean(lambda sent, weights: mean_of(sent, weights)), {}
    for member in range(3):
        mean.join(member)

    def take_part(member: int) -> None:
        weight = 0.0 if member == 2 else 1.0
        got[member] = [mean.exchange(member, torch.tensor([float(member + r)]), weight) for r in range(5)]

    joined(in_threads(*(lambda m=m: take_part(m) for m in range(3))))
    for member in range(3):
        assert [t.item() for t in got[member]] == [0.5, 1.5, 2.5, 3.5, 4.5], "who has weight 0 does not count"


def test_a_member_that_dies_in_the_middle_of_an_exchange_stops_nobody() -> None:
    mean, got = LocalMean(lambda sent, weights: mean_of(sent, weights)), {}
    for member in range(3):
        mean.join(member)

    def survive(member: int) -> None:
        got[member] = [mean.exchange(member, torch.tensor([1.0 + member]), 1.0) for _ in range(4)]

    threads = in_threads(lambda: survive(0), lambda: survive(1))  # both wait for the third, which never comes
    mean.leave(2)
    joined(threads)
    assert [t.item() for t in got[0]] == [1.5] * 4


def test_a_collective_that_is_closed_lets_everybody_go() -> None:
    mean, got = LocalMean(lambda sent, weights: mean_of(sent, weights)), []
    mean.join(0)
    mean.join(1)
    threads = in_threads(lambda: got.append(mean.exchange(0, torch.zeros(1), 1.0)))
    mean.close()
    joined(threads)
    assert got == [None]


@pytest.mark.parametrize("parts", [(slice(0, 6),), (slice(0, 2), slice(2, 6))])
def test_a_centre_is_the_same_on_one_sync_server_and_on_several(parts: tuple[slice, ...]) -> None:
    centre, sent = torch.arange(6.0), torch.full((6,), 10.0)
    partner = LocalCentre(centre, parts, choices("easgd", elasticity=0.25))
    target = partner.exchange(0, sent, 1.0)
    expected = 0.75 * torch.arange(6.0) + 2.5
    assert torch.equal(centre, expected) and torch.equal(target, expected)
    assert torch.equal(partner.exchange(0, sent, 0.0), expected) and torch.equal(centre, expected)
    partner.leave(0)


def test_a_gate_waits_for_those_inside_and_holds_the_others() -> None:
    gate, entered, leave = PauseGate(), threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        with gate.inside():
            entered.set()
            leave.wait(WAIT)
            order.append("inside")

    def second() -> None:
        with gate.inside():
            order.append("later")

    threads = in_threads(first)
    entered.wait(WAIT)
    closing = in_threads(gate.close)
    leave.set()
    joined(threads + closing)
    threads = in_threads(second)
    with gate.closed():
        order.append("alone")
    order.append("still shut")
    gate.open()
    joined(threads)
    assert order == ["inside", "alone", "still shut", "later"]


# ---- live replicas ----


def live(name: str, told: list[str] | None = None, workers: int = 2, **settings: object) -> LiveReplicas:
    server = Server(torch.zeros(8), (), SGD(lr=0.1))
    replicas = Replicas(server, choices(name, **settings))
    for worker in range(workers):
        replicas.join(worker)
    return LiveReplicas(replicas, (slice(0, 4), slice(4, 8)), (told if told is not None else []).append)


def push() -> Push:
    return Push((), torch.ones(8), 1.0, 0.0, np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("name", ["easgd", "bmuf", "model_averaging"])
def test_trainers_with_once_and_three_times_the_data_end_without_a_hang(name: str) -> None:
    both = live(name)

    def train(worker: int, batches: int) -> None:
        for lease in range(batches):
            both.flat(worker)
            both.step(worker, 100 * worker + lease, push(), lr_scale=1.0)
            threading.Event().wait(0.002)
        both.replicas.idle(worker)

    joined(in_threads(lambda: train(0, 20), lambda: train(1, 60)))
    counts = both.replicas.counts
    assert (counts[0].batches, counts[1].batches) == (20, 60)
    assert both.replicas.members[0].finished and both.replicas.members[1].finished
    both.fold()
    assert not [t for t in threading.enumerate() if t.name.startswith("gearshift-shadow")]
    assert float(both.replicas.server.flat.max()) < 0, "they have learned"


def test_a_trainer_whose_exchange_fails_is_out_and_the_others_go_on() -> None:
    told: list[str] = []
    both = live("model_averaging", told)
    receive = both.replicas.members[0].receive
    failed = threading.Event()

    def broken(*args: object) -> None:
        failed.set()
        raise ConnectionError("the link is down")

    both.replicas.members[0].receive = broken  # type: ignore[method-assign]
    assert failed.wait(WAIT) and receive is not None
    with pytest.raises(RuntimeError, match="replica 0 can no longer exchange: the link is down"):
        for lease in range(1000):
            both.step(0, lease, push(), lr_scale=1.0)
            threading.Event().wait(0.01)
    assert told == ["replica 0 can no longer exchange (the link is down); the others continue"]
    before = both.replicas.counts[1].exchanges
    for lease in range(1000, 3000):
        both.step(1, lease, push(), lr_scale=1.0)
        threading.Event().wait(0.005)
        if both.replicas.counts[1].exchanges > before + 2:
            break
    assert both.replicas.counts[1].exchanges > before + 2
    both.fold()


def test_after_a_fold_the_gradient_in_flight_goes_to_the_servers_as_it_is() -> None:
    both = live("easgd")
    assert isinstance(both.step(0, 1, push(), lr_scale=1.0), AppliedPush)
    both.fold()
    late = push()
    assert both.step(0, 2, late, lr_scale=1.0) is late and both.flat(0) is None


def test_a_hold_is_settled_when_all_that_was_stepped_is_accounted_for() -> None:
    both = live("easgd", exchange=5)
    assert both.hold()
    both.release()
    both.step(0, 7, push(), lr_scale=1.0)
    assert not both.hold()
    waiting = in_threads(lambda: both.step(1, 8, push(), lr_scale=1.0))
    both.ended([7])
    assert both.hold() and both.replicas.counts[1].batches == 0
    both.release()
    joined(waiting)
    assert not both.settled
    both.fold()


# ---- whole runs ----


def data(examples: int = 2400) -> gs.Dataset:
    return gs.read(make_batch(PLAIN, examples), PLAIN)


def model() -> torch.nn.Module:
    torch.manual_seed(5)
    return gs.models.DeepFM(PLAIN, dim=4, hidden=[8, 8])


def fit(path: Path, strategy: object, workers: int = 4, examples: int = 2400, **more: object) -> gs.Result:
    made = {"optimizer": gs.Adam(lr=0.01), "embeddings": gs.RowAdam(), "global_batch": 80, **more}
    policy = gs.CheckpointPolicy(None, path=path)
    callbacks = made.pop("callbacks", ())
    trainer = flat_trainer(workers=workers, strategy=strategy, checkpoint=policy, **made)
    return trainer.fit(model(), data(examples), callbacks=callbacks)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["easgd", "bmuf", "model_averaging"])
def test_the_measured_gap_of_every_k_is_k(tmp_path: Path, name: str) -> None:
    # 120 batches of 20; with a centre it is each trainer's own count that decides, and speeds may differ.
    result = fit(tmp_path, {"name": name, "exchange": {"every": 5}})
    gap = result.report["sync_gap"]
    assert gap["elp"] == 80 and gap["bytes"] > 0 and gap["in_flight"] == 0
    assert f"a replica exchanged every {gap['mean']:.1f} batches" in result.lines[0]
    if name == "easgd":
        assert 5 <= gap["mean"] < 6
    else:
        assert gap["mean"] == gap["max"] == 5.0 and gap["exchanges"] == 24


def test_every_so_many_seconds(tmp_path: Path) -> None:
    for name in ("easgd", "model_averaging"):
        report = fit(tmp_path, {"name": name, "exchange": {"every": "1ms"}}).report
        assert report["examples"] == 2400 and report["sync_gap"]["exchanges"] > 4


def test_k_step_adam_of_one_worker_is_a_run_with_adam(tmp_path: Path) -> None:
    runs = [
        fit(tmp_path, strategy, workers=1, batch=20, global_batch=20)
        for strategy in (
            "sync",
            {"name": "k_step_adam", "exchange": 1},
            {"name": "k_step_adam", "mode": "params"},
        )
    ]
    flats = [run.learner.server.flat for run in runs]
    assert torch.equal(flats[0], flats[1]) and torch.equal(flats[0], flats[2])
    assert runs[0].report["progressive"]["auc"] == runs[1].report["progressive"]["auc"]


@pytest.mark.parametrize("optimizer", [gs.SGD(lr=0.05), gs.Adagrad(lr=0.05), gs.Adam(lr=0.01)])
def test_hogwild_workers_share_a_replica_and_its_weights_stay_bounded(
    tmp_path: Path, optimizer: gs.DenseOptimizer
) -> None:
    strategy = {"name": "easgd", "workers_per_replica": 3}
    result = fit(tmp_path, strategy, 6, 9600, optimizer=optimizer, batch=10)
    assert result.report["examples"] == 9600
    assert len(result.report["examples_by_worker"]) == 6
    assert float(result.learner.server.flat.abs().max()) < 20


def test_hogwild_workers_exchange_in_the_training_loop_one_at_a_time(tmp_path: Path) -> None:
    """Both of a replica may come to the end of a round at once; one of them exchanges, and none is left out."""
    strategy = {"name": "easgd", "exchange": {"every": 2}, "workers_per_replica": 3, "merge": "delta"}
    report = fit(tmp_path, strategy, 6, 9600, batch=10).report
    assert report["examples"] == 9600
    assert report["sync_gap"]["exchanges"] >= 0.9 * 960 / 6 and 6 <= report["sync_gap"]["mean"] < 9


@pytest.mark.parametrize("name", REPLICATED)
def test_replicas_learn_what_sync_learns(tmp_path: Path, name: str) -> None:
    log = gs.read(gs.ClickLog(examples=12_000, days=1))

    def auc(strategy: str) -> float:
        torch.manual_seed(1)
        trainer = gs.Trainer(
            global_batch=256,
            workers=4,
            strategy=strategy,
            optimizer=gs.Adam(lr=5e-3),
            checkpoint=gs.CheckpointPolicy(None, path=tmp_path),
        )
        return trainer.fit(gs.models.DNN(log.schema, dim=4, hidden=[16]), log).auc

    assert auc(name) > 0.58 and auc(name) > auc("sync") - 0.03


def test_a_live_run_goes_through_all_kinds_and_loses_nothing(tmp_path: Path) -> None:
    ways = ["gba", "easgd", "k_step_adam", "sync", "model_averaging", "bmuf", "async", "k_step_adam", "sync"]

    class Switcher(gs.Callback):
        seen: list[str] = []  # noqa: RUF012
        flats: list[torch.Tensor] = []  # noqa: RUF012

        def on_step(self, run: gs.Run) -> None:
            if ways and run.status().step % 25 == 12:
                run.training.requests.request_switch(ways.pop(0), {})

        def on_switch(self, run: gs.Run, switch: gs.Switch) -> None:
            self.seen.append(switch.strategy)
            self.flats.append(run.training.learner.server.flat.clone())

    asked, switcher = list(ways), Switcher()
    result = fit(tmp_path, "sync", 4, 24_000, callbacks=[switcher])
    assert switcher.seen == asked and result.report["examples"] == 24_000
    assert result.report["discarded"] == 0
    assert all(torch.isfinite(flat).all() for flat in switcher.flats)
    assert result.report["strategy"] == "sync" and result.report["sync_gap"]["mean"] is not None
    from gearshift.run.replay import replay

    assert replay(result.folder).difference is None
