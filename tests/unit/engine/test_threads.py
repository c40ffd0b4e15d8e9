"""Several workers in threads: the equalities that strategies promise, accounts that balance, live switches."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import gearshift as gs
from examples import PLAIN, Steep, make_batch
from gearshift.cluster_model.cluster import Bursts, ClusterModel, Compute, Slow, SlowPeriod
from gearshift.engine.local_engine import LocalEpoch
from gearshift.errors import UserError
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.parameters.server import Server
from gearshift.run.replay import replay
from gearshift.sync.global_batch import GlobalBatch
from gearshift.sync.registry import REPLICATED, STRATEGIES
from gearshift.sync.strategy import Step
from gearshift.training.engine import NotFinite
from gearshift.training.plan import PlannedSwitch
from gearshift.training.timing import Every, When
from tests.flat_trainer import flat_trainer


def data(size: int = 2000, seed: int = 0) -> gs.Dataset:
    return gs.read(make_batch(PLAIN, size, seed), PLAIN)


def trainer(path: Path, **more) -> gs.Trainer:
    settings = {
        "global_batch": 80,
        "checkpoint": gs.CheckpointPolicy(None, path=path),
        "optimizer": gs.SGD(lr=0.1),
        "embeddings": gs.RowSGD(lr=0.1),
    }
    if more.get("strategy") == "k_step_adam":
        settings["optimizer"] = gs.Adam(lr=0.01)
    return flat_trainer(**settings | more)


def model(**more) -> nn.Module:
    torch.manual_seed(5)
    return gs.models.DeepFM(PLAIN, dim=4, hidden=[8, 8], **more)


def weights(run: gs.Run | gs.Result) -> tuple[np.ndarray, np.ndarray]:
    """Dense weights, and rows in the order of their ids."""
    learner = run.learner if isinstance(run, gs.Result) else run.training.learner
    blocks = list(learner.server.stores[0].blocks())
    ids = np.concatenate([b.ids_U for b in blocks])
    rows = np.concatenate([b.weights_UW for b in blocks])[np.argsort(ids)]
    return learner.server.flat.numpy().copy(), rows


def assert_close(a, b, tolerance: float) -> None:
    for mine, other in zip(a, b, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_sync_with_many_workers_equals_one_with_their_batch(tmp_path: Path, workers: int) -> None:
    one = trainer(tmp_path).fit(model(), data())
    many = trainer(tmp_path, workers=workers).fit(model(), data())
    assert many.report["global_steps"] == one.report["global_steps"] == 25
    assert many.report["applied"] == 25 * workers and many.report["discarded"] == 0
    assert many.report["staleness"]["max"] == 0
    assert_close(weights(one), weights(many), 2e-6)


def test_sync_gives_the_same_bits_however_fast_the_workers_are(tmp_path: Path) -> None:
    settings = {"workers": 4, "optimizer": gs.Adam(), "embeddings": gs.RowAdagrad()}
    made = [trainer(tmp_path, **settings).fit(model(dropout=0.2, batch_norm=True), data()) for _ in range(3)]
    for other in made[1:]:
        assert_close(weights(made[0]), weights(other), 0.0)
    buffers = [dict(result.learner.model.named_buffers()) for result in made]
    assert buffers[0] and all(torch.equal(value, buffers[1][name]) for name, value in buffers[0].items())


def test_gba_with_one_worker_equals_accumulation(tmp_path: Path) -> None:
    whole = trainer(tmp_path).fit(model(), data())
    pieces = trainer(tmp_path, strategy={"name": "gba", "batch": 20}).fit(model(), data())
    assert pieces.report["global_steps"] == 25 and pieces.report["applied"] == 100
    assert_close(weights(whole), weights(pieces), 2e-6)


@pytest.mark.parametrize("strategy", list(STRATEGIES))
@pytest.mark.parametrize("size", [1999, 37])
def test_every_example_is_applied_or_discarded_once(tmp_path: Path, strategy: str, size: int) -> None:
    settings = {"global_batch": 90} if strategy == "backup_workers" else {}
    result = trainer(tmp_path, workers=4, strategy=strategy, **settings).fit(model(), data(size), data(200))
    report = result.report
    assert report["strategy"] == strategy and report["workers"] == 4 and report["examples"] == size
    assert report["progressive"]["examples"] == size
    assert report["applied"] + report["discarded"] >= -(-size // 30)
    assert 0.4 < report["auc"] <= 1.0


def test_a_switch_in_a_live_run_loses_nothing(tmp_path: Path) -> None:
    ways = ["gba", "async", "backup_workers", "buffered_async", "bounded_staleness", "ringmaster", "sync"]

    class Switcher(gs.Callback):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def on_step(self, run: gs.Run) -> None:
            if ways and run.status().step % 10 == 5:
                run.training.requests.request_switch(ways.pop(0), {})

        def on_switch(self, run: gs.Run, switch: gs.Switch) -> None:
            self.seen.append(switch.strategy)

    asked, switcher = list(ways), Switcher()
    one = trainer(tmp_path, global_batch=60, workers=4)
    result = one.fit(model(), data(20_000), callbacks=[switcher])
    assert switcher.seen == asked
    assert result.report["examples"] == 20_000 and result.report["strategy"] == "sync"


def test_switch_from_another_thread_answers_when_it_is_done(tmp_path: Path) -> None:
    run = trainer(tmp_path, workers=4).start(model(), data(60_000))
    switch = run.switch("gba", max_lag=2, batch=10)
    assert (switch.before, switch.strategy, switch.discarded) == ("sync", "gba", 0)
    with pytest.raises(UserError, match="has no setting `max_lagg`"):
        run.switch("gba", max_lagg=2)
    assert run.wait(120).report["examples"] == 60_000
    assert any(m.startswith("switch sync -> gba") for m in run.messages)
    with pytest.raises(UserError, match="needs a live run"):
        run.switch("sync")


def test_a_switch_moves_no_parameter(tmp_path: Path) -> None:
    """Bit-identical between the last old and the first new step, optimizer state included."""
    seen = []

    class Watch(gs.Callback):
        def on_step(self, run: gs.Run) -> None:
            self.after = _state(run)
            if run.status().step == 7:
                run.training.requests.request_switch("gba", {})

        def on_switch(self, run: gs.Run, switch: gs.Switch) -> None:
            seen.append((self.after, _state(run)))

    def _state(run: gs.Run) -> list[np.ndarray]:
        state = run.training.learner.server.optimizer_state
        return [*weights(run), *(value.numpy().copy() for value in state.values())]

    settings = {"optimizer": gs.Adam(), "embeddings": gs.RowAdam(), "workers": 3, "global_batch": 60}
    trainer(tmp_path, **settings).fit(model(), data(), callbacks=[Watch()])
    (before, after), *others = seen
    assert not others
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_a_stopped_run_goes_on_with_what_it_had_begun(tmp_path: Path, strategy: str) -> None:
    class StopAt(gs.Callback):
        def on_step(self, run: gs.Run) -> None:
            if run.status().step >= 7:
                run.stop()

    made = {"workers": 4, "strategy": strategy, "global_batch": 60}
    folder = trainer(tmp_path, **made).fit(model(), data(), callbacks=[StopAt()]).folder
    facts = Checkpoint.open((folder / "checkpoints" / "last").resolve()).facts["progress"]
    begun = sum(count for _, count in facts["open"])
    assert facts["examples"] + begun == facts["position"] < 2000
    resumed = trainer(tmp_path, **made | {"workers": 2 if strategy != "backup_workers" else 4, "shards": 3})
    report = resumed.fit(model(), data(), resume=folder).report
    assert report["examples"] == 2000 == report["progressive"]["examples"]


def test_a_worker_that_raises_ends_the_run_with_its_error(tmp_path: Path) -> None:
    class Bomb(nn.Module):
        dim = 4

        def __init__(self) -> None:
            super().__init__()
            self.net = gs.models.DNN(PLAIN, dim=4, hidden=[4])

        def forward(self, x: gs.Inputs) -> torch.Tensor:
            if len(x.numeric) and threading.current_thread().name == "gearshift-worker-2":
                raise RuntimeError("boom")
            return self.net(x)

    run = trainer(tmp_path, workers=4).start(Bomb(), data())
    with pytest.raises(RuntimeError, match="boom"):
        run.wait(60)
    names = [thread.name for thread in threading.enumerate()]
    assert not [n for n in names if n.startswith("gearshift-worker")]


def test_a_batch_that_does_not_divide_gets_the_nearest_that_does(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"global_batch 80 does not divide among 6 workers. Nearest: workers="
    ):
        trainer(tmp_path, workers=6).start(model(), data())
    assert trainer(tmp_path, workers=6, strategy="gba").fit(model(), data()).report["examples"] == 2000


def test_an_unknown_strategy_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown strategy `gbaa`. Did you mean gba"):
        trainer(tmp_path, strategy="gbaa").start(model(), data())


def test_a_hanging_worker_is_fenced_and_its_examples_go_to_others(tmp_path: Path, monkeypatch) -> None:
    release = threading.Event()

    class Hangs(nn.Module):
        dim = 4

        def __init__(self) -> None:
            super().__init__()
            self.net = gs.models.DNN(PLAIN, dim=4, hidden=[4])

        def forward(self, x: gs.Inputs) -> torch.Tensor:
            if threading.current_thread().name == "gearshift-worker-1" and not release.is_set():
                release.wait(60)
            return self.net(x)

    monkeypatch.setattr("gearshift.engine.local_engine.PATIENCE", 1.0)
    try:
        run = trainer(tmp_path, workers=3, global_batch=60).start(Hangs(), data())
        assert run.wait(60).report["examples"] == 2000
        assert any("worker 1 has not answered" in message for message in run.messages)
    finally:
        release.set()
    deadline = time.monotonic() + 10
    while any(t.name == "gearshift-worker-1" for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_auto_goes_to_gba_for_a_slow_worker_and_back(tmp_path: Path) -> None:
    cluster = ClusterModel(
        4, Compute(per_batch=0.02), slow_periods=(SlowPeriod(8.0, start=0.2, end=3.0, workers=(2,)),)
    )
    seen = []

    class Watch(gs.Callback):
        def on_switch(self, run: gs.Run, switch: gs.Switch) -> None:
            seen.append(switch.strategy)

    auto = {"name": "auto", "patience": 3, "window": 4}
    made = trainer(tmp_path, workers=4, strategy=auto, inject=cluster)
    report = made.fit(model(), data(20_000), callbacks=[Watch()]).report
    assert seen[:2] == ["gba", "sync"]
    assert report["examples"] == 20_000 and report["injected"]["possible"] > 0
    assert report["automatic"][0].startswith("the change to gba at step ")


class SaveAndStopAt(gs.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, run: gs.Run) -> None:
        if run.status().step == self.step:
            run.stop()


def test_a_planned_switch_that_is_on_its_way_is_made_after_a_resume(tmp_path: Path) -> None:
    planned = (PlannedSwitch(When(examples=7 * 60), "gba"),)
    made = {"workers": 3, "global_batch": 60, "strategy": {"name": "sync", "switch": planned}}
    folder = trainer(tmp_path, **made).fit(model(), data(), callbacks=[SaveAndStopAt(7)]).folder
    assert trainer(tmp_path, **made).fit(model(), data(), resume=folder).report["strategy"] == "gba"


def test_a_planned_switch_keeps_the_global_batch(tmp_path: Path) -> None:
    planned = (PlannedSwitch(When(share=0.5), "gba", {"global_batch": 40}),)
    with pytest.raises(UserError, match=r"a switch keeps the global batch, 80, .*; leave global_batch out"):
        trainer(tmp_path, strategy={"switch": planned}).start(model(), data())


def test_a_planned_switch_that_never_came_is_told(tmp_path: Path) -> None:
    planned = (PlannedSwitch(When(share=0.5), "gba"), PlannedSwitch(When(examples=10**6), "async"))
    run = trainer(tmp_path, workers=2, strategy={"switch": planned}).start(model(), data())
    run.wait(60)
    assert [said for said in run.messages if "was not reached" in said] == [
        "the switch to async at 1,000,000 examples was not reached before the end"
    ]


def test_a_run_that_was_switched_resumes_as_it_was(tmp_path: Path) -> None:
    """gba with 3 workers has leases of 20; sync takes them over, though 80 does not divide by 3."""

    class Switcher(SaveAndStopAt):
        def on_step(self, run: gs.Run) -> None:
            if run.status().step == 3:
                run.ask_switch("sync")
            super().on_step(run)

    made = {"workers": 3, "strategy": "gba"}
    folder = trainer(tmp_path, **made).fit(model(), data(), callbacks=[Switcher(9)]).folder
    report = trainer(tmp_path, **made).fit(model(), data(), resume=folder).report
    assert report["strategy"] == "sync" and report["examples"] == 2000


def test_auto_is_on_after_a_resume_only_if_it_was_before(tmp_path: Path) -> None:
    class ToSync(SaveAndStopAt):
        def on_step(self, run: gs.Run) -> None:
            if run.status().step == 3:
                run.ask_switch("sync")
            super().on_step(run)

    made = {"workers": 2, "strategy": "auto"}
    for callback, expected in ((SaveAndStopAt(6), True), (ToSync(6), False)):
        folder = trainer(tmp_path, **made).fit(model(), data(), callbacks=[callback]).folder
        run = trainer(tmp_path, **made).start(model(), data(), resume=folder)
        assert (run.training.active_strategy.automatic is not None) == expected
        run.wait(60)


def test_a_refused_request_leaves_auto_as_it_was(tmp_path: Path) -> None:
    run = trainer(tmp_path, workers=2, strategy="auto").start(model(), data(20_000))
    for refused, sentence in (
        ({"strategy": "gbaa"}, "unknown strategy"),
        ({"strategy": "gba", "global_batch": 64}, "a switch keeps the global batch, 80, and with it"),
        ({"strategy": {"name": "gba"}}, 'write its name, "gba" or "module:Class", and settings next to it'),
    ):
        with pytest.raises(UserError, match=sentence):
            run.switch(**refused)
    assert run.training.active_strategy.automatic is not None
    run.wait(60)


def test_a_callback_is_told_not_to_wait_for_its_own_switch(tmp_path: Path) -> None:
    class Waits(gs.Callback):
        def on_step(self, run: gs.Run) -> None:
            run.switch("gba")

    run = trainer(tmp_path, workers=2).start(model(), data(), callbacks=[Waits()])
    with pytest.raises(UserError, match=r"call run\.ask_switch"):
        run.wait(60)


def test_fewer_workers_after_a_resume_train_what_more_had_begun(tmp_path: Path) -> None:
    """Saved again before all of it was given out: nothing is lost and nothing trained twice."""
    made = {"strategy": "gba", "global_batch": 80, "batch": 10}
    folder = trainer(tmp_path, workers=8, **made).fit(model(), data(), callbacks=[SaveAndStopAt(3)]).folder
    again = trainer(tmp_path, workers=1, **made)
    again.fit(model(), data(), resume=folder, callbacks=[SaveAndStopAt(4)])
    report = trainer(tmp_path, workers=2, **made).fit(model(), data(), resume=folder).report
    assert report["examples"] == 2000 == report["progressive"]["examples"]


def test_a_loss_of_the_model_itself_is_trained_by_every_worker(tmp_path: Path) -> None:
    class Weighted(nn.Module):
        dim = 4

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.net = gs.models.DNN(PLAIN, dim=4, hidden=[4])
            self.scale = nn.Parameter(torch.zeros(1))

        def forward(self, x: gs.Inputs) -> torch.Tensor:
            return self.net(x)

        def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            each = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(1)
            return each * torch.exp(-self.scale) + self.scale

    scales = []
    for workers in (1, 4):
        made = Weighted()
        trainer(tmp_path, workers=workers, loss=made.loss).fit(made, data())
        scales.append(made.scale.item())
    assert scales[0] != 0 and scales[1] == pytest.approx(scales[0], abs=1e-5)


def test_a_constant_buffer_stays_what_it_is(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        dim = 4

        def __init__(self) -> None:
            super().__init__()
            self.net = gs.models.DNN(PLAIN, dim=4, hidden=[4])
            self.register_buffer("constant", torch.tensor([0.1, 1 / 3, 0.7]))

        def forward(self, x: gs.Inputs) -> torch.Tensor:
            return self.net(x) * self.constant.sum()

    made = Scaled()
    before = made.constant.clone()
    trainer(tmp_path, workers=3, global_batch=60).fit(made, data())
    assert torch.equal(made.constant, before)


def test_a_strategy_of_ones_own_is_switched_to_and_resumed(tmp_path: Path) -> None:
    own = "gearshift.sync.buffered_async:BufferedAsync"

    class ToOwn(SaveAndStopAt):
        def on_step(self, run: gs.Run) -> None:
            if run.status().step == 3:
                run.ask_switch(own, gradients_per_step=2)
            super().on_step(run)

    folder = trainer(tmp_path, workers=2).fit(model(), data(), callbacks=[ToOwn(9)]).folder
    run = trainer(tmp_path, workers=2).start(model(), data(), resume=folder)
    assert run.training.active_strategy.name == own and run.training.strategy.gradients_per_step == 2
    assert run.wait(60).report["examples"] == 2000


def test_a_worker_that_loses_its_data_is_named_at_the_end(tmp_path: Path) -> None:
    cluster = ClusterModel(4, Compute(per_batch=0.01), slow=(Slow(40.0, (2,)),))
    strategy = {"name": "gba", "max_lag": 2}
    result = trainer(tmp_path, workers=4, strategy=strategy, inject=cluster).fit(model(), data(8000))
    report = result.report
    assert set(report["discarded_examples_by_worker"]) == {"2"}
    assert sum(report["examples_by_worker"].values()) == 8000
    share = report["discarded_examples_by_worker"]["2"] / report["examples_by_worker"]["2"]
    assert share > 0.3  # its last batch may still count: once the data end, no step leaves it behind
    said = f"data   worker 2 lost {100 * share:.0f} % of the examples"
    assert any(line.startswith(said) for line in result.lines)
    assert f"+ {report['discarded']} discarded (too late)" in result.lines[0]


def test_late_leases_are_computed_twice_and_each_example_counts_once(tmp_path: Path) -> None:
    """Also if the run is stopped while two workers compute the same examples, and resumed."""
    cluster = ClusterModel(4, Compute(per_example=2e-4), bursts=(Bursts(0.15, 20.0),))
    seen = []

    class StopAtCopy(gs.Callback):
        def on_step(self, run: gs.Run) -> None:
            progress = run.training.progress
            if progress.duplicated and run.status().step > 20:
                seen.append(progress.duplicated)
                run.stop()

    made = {"workers": 4, "strategy": "balanced", "inject": cluster}
    folder = trainer(tmp_path, **made).fit(model(), data(8000), callbacks=[StopAtCopy()]).folder
    assert seen and replay(folder).difference is None
    facts = Checkpoint.open((folder / "checkpoints" / "last").resolve()).facts["progress"]
    assert facts["examples"] + sum(count for _, count in facts["open"]) == facts["position"] < 8000
    result = trainer(tmp_path, **made).fit(model(), data(8000), resume=folder)
    report = result.report
    assert report["examples"] == 8000 == report["progressive"]["examples"]
    assert (report["discarded"], report["staleness"]["max"], report["global_steps"]) == (0, 0, 100)
    assert report["duplicated_examples"] > seen[0]
    assert f"{report['duplicated_examples']:,} examples were computed a second time" in result.lines[0]


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_workers_join_and_leave_a_live_run(tmp_path: Path, strategy: str) -> None:
    """From one to five, to two, to four, to one; the global batch stays and no example is lost."""
    sizes = {10: 5, 30: 2, 50: 4, 70: 1}

    class Resizer(gs.Callback):
        def on_step(self, run: gs.Run) -> None:
            if workers := sizes.pop(run.status().step, None):
                run.ask_resize(workers)

    made = {"strategy": strategy, "global_batch": 60, "batch": 20}
    begun_with = 4 if strategy == "backup_workers" else 1
    whole = trainer(tmp_path, workers=begun_with, **made)
    report = whole.fit(model(), data(9000), callbacks=[Resizer()]).report
    assert not sizes and report["workers"] == 1 and report["examples"] == 9000
    if strategy not in ("async", "bounded_staleness", "ringmaster", "backup_workers", *REPLICATED):
        assert report["global_steps"] == 150
    assert len(report["examples_by_worker"]) >= 5


def test_a_resize_divides_the_cpu_threads_anew(tmp_path: Path) -> None:
    class Resizer(gs.Callback):
        def on_step(self, run: gs.Run) -> None:
            if workers := {5: 4, 15: 1}.get(run.status().step):
                run.ask_resize(workers)

    seen: dict[str, list[int]] = {}

    class Watched(gs.models.DeepFM):
        def forward(self, x: gs.Inputs) -> torch.Tensor:
            name = threading.current_thread().name
            if name.startswith("gearshift-worker") and seen.get(name, [0])[-1] != torch.get_num_threads():
                seen.setdefault(name, []).append(torch.get_num_threads())
            return super().forward(x)

    torch.manual_seed(5)
    watched = Watched(PLAIN, dim=4, hidden=[8])
    trainer(tmp_path, workers=2, threads=4).fit(watched, data(), callbacks=[Resizer()])
    assert seen["gearshift-worker-0"] == [2, 1, 4]
    assert seen["gearshift-worker-2"][0] == 1


def test_resize_refuses_what_cannot_be(tmp_path: Path) -> None:
    run = trainer(tmp_path, workers=2, global_batch=60).start(model(), data(60_000))
    run.resize(3)
    with pytest.raises(UserError, match="workers=0: it must be at least 1"):
        run.resize(0)
    with pytest.raises(UserError, match=r"^workers=2.5: it must be a whole number$"):
        run.resize(2.5)
    with pytest.raises(UserError, match="global_batch 60 does not divide among 7 workers"):
        run.resize(7)
    assert run.wait(120).report["workers"] == 3
    assert "3 workers instead of 2; the global batch stays 60, cut into 20" in run.messages
    slow = trainer(tmp_path, workers=2, inject=ClusterModel(2, Compute(per_batch=0.001)))
    paced = slow.start(model(), data(400))
    with pytest.raises(UserError, match="injected slowness"):
        paced.training.requests.request_resize(3)
    paced.wait(120)


@pytest.mark.parametrize("strategy", ["sync", "gba"])
def test_more_workers_get_smaller_batches_so_that_all_can_work(tmp_path: Path, strategy: str) -> None:
    class Resizer(gs.Callback):
        def on_step(self, run: gs.Run) -> None:
            if run.status().step == 5:
                run.ask_resize(4)

    run = trainer(tmp_path, strategy=strategy).start(model(), data(8000), callbacks=[Resizer()])
    report = run.wait(60).report
    assert run.training.strategy.batch == 20 and report["global_steps"] == 100
    assert report["applied"] > 300, "most batches are a fourth of a step"
    assert report["staleness"]["mean"] <= 1.0, "as many at work as a step has batches, and no more"


def test_a_resize_counts_those_who_work(tmp_path: Path) -> None:
    """Of three workers one hangs and is fenced; four are then asked for, and four work."""
    hanging = threading.Event()

    class Hangs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.numeric, self.linear = model(), True, True
            self.dim = 4

        def forward(self, x: gs.Inputs) -> torch.Tensor:
            if threading.current_thread().name == "gearshift-worker-1" and not hanging.is_set():
                hanging.wait(20)
            return self.inner(x)

    class Resizer(gs.Callback):
        def on_step(self, run: gs.Run) -> None:
            if hanging.is_set():
                return
            if any("has not answered" in message for message in run.messages):
                hanging.set()
                run.ask_resize(4)
            else:
                time.sleep(0.05)  # 200 of them are longer than the patience

    from gearshift.engine import local_engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_engine, "PATIENCE", 3.0)  # a loaded machine is no hang
        made = {"workers": 3, "strategy": "gba", "global_batch": 60, "batch": 20}
        report = trainer(tmp_path, **made).fit(Hangs(), data(12_000), callbacks=[Resizer()]).report
    assert report["examples"] == 12_000
    assert {"0", "2", "3", "4"} <= report["examples_by_worker"].keys()


@pytest.mark.parametrize("workers", [1, 4])
def test_a_batch_without_a_finite_gradient_is_left_out_or_ends_the_run(tmp_path: Path, workers: int) -> None:
    bad = make_batch(PLAIN, 2000, 0)
    bad.numeric_BN[[95, 1130], 0] = np.nan
    made = {"workers": workers, "batch": 20, "shuffle": False}
    with pytest.raises(UserError, match=r"loss became NaN at step 2 .*train.bad_batches='\{skip: 10\}'"):
        trainer(tmp_path, **made).fit(model(), gs.read(bad, PLAIN))
    run = trainer(tmp_path, bad_batches=2, **made).start(model(batch_norm=True), gs.read(bad, PLAIN))
    report = run.wait(60).report
    assert report["discarded_by_reason"] == {"not finite": 2}
    assert report["examples"] == 2000 and report["progressive"]["examples"] == 1960
    assert sum(message.endswith(": the batch is skipped") for message in run.messages) == 2
    assert all(np.isfinite(values).all() for values in weights(run))
    assert all(values.isfinite().all() for values in run.training.learner.model.buffers())
    with pytest.raises(UserError, match="became NaN"):
        trainer(tmp_path, bad_batches=1, **made).fit(model(), gs.read(bad, PLAIN))


@pytest.mark.parametrize("workers", [1, 4])
def test_rows_too_large_to_square_are_a_bad_batch(tmp_path: Path, workers: int) -> None:
    made = {"workers": workers, "batch": 20, "shuffle": False}
    with pytest.raises(NotFinite, match=r"embedding gradient became .* too large to square at step 1 "):
        trainer(tmp_path, **made).fit(Steep(1e25), data())
    report = trainer(tmp_path, bad_batches=100, **made).fit(Steep(1e25), data()).report
    assert report["discarded_by_reason"] == {"not finite": 100}


@pytest.mark.parametrize(("workers", "shards"), [(1, 1), (2, 1), (2, 2)])
def test_a_sum_of_rows_too_large_to_square_ends_the_run(tmp_path: Path, workers: int, shards: int) -> None:
    """Each batch brings 1.5e19 to its rows, a step 3e19, whose square is beyond a float."""
    log = make_batch(PLAIN, 80)
    log.labels_BT[:], log.ids_BF[:] = 1.0, [1, 2, 3]
    made = {"workers": workers, "shards": shards, "global_batch": 40, "batch": 20, "embedding_reduce": "sum"}
    with pytest.raises(NotFinite, match=r"too large to square at step 1\. Lower"):
        trainer(tmp_path, **made).fit(Steep(1.5e18), gs.read(log, PLAIN))


def test_a_shard_that_fails_ends_the_run_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that wait for a step that never comes are let go."""
    real = Server.apply_group

    def apply_group(self: Server, *args: object, **more: object) -> None:
        if self.step == 4:
            raise RuntimeError("this shard is broken")
        real(self, *args, **more)

    monkeypatch.setattr(Server, "apply_group", apply_group)
    with pytest.raises(RuntimeError, match="this shard is broken"):
        trainer(tmp_path, workers=3, shards=2, global_batch=60).start(model(), data()).wait(30)
    assert not [
        t for t in threading.enumerate() if t.name.startswith(("gearshift-shard", "gearshift-worker"))
    ]


@dataclass(frozen=True)
class Faulty(GlobalBatch):
    """A strategy of a user's own, with a fault."""

    how: str = ""

    def form(self, work):
        if self.how == "raises" and work.step == 3:
            raise KeyError("oops")
        if self.how == "empty" and work.step == 3:
            return Step(())
        return None if self.how == "still" else super().form(work)

    def start(self, work):
        return None if self.how == "nobody" and work.step == 3 else super().start(work)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "Faulty failed: KeyError: 'oops'"),
        ("empty", "Faulty failed: ValueError: a step needs at least one gradient"),
        ("nobody", "lets no worker begin"),
        ("still", "lets no worker begin"),
    ],
)
def test_a_fault_in_a_strategy_of_ones_own_is_told_as_such(
    tmp_path: Path, workers: int, how: str, said: str
) -> None:
    name = f"{Faulty.__module__}:Faulty"
    made = {"workers": workers, "global_batch": 60, "strategy": {"name": name, "how": how, "batch": 20}}
    with pytest.raises(UserError, match=said):
        trainer(tmp_path, **made).start(model(), data()).wait(60)


def test_a_resume_with_another_strategy_takes_it(tmp_path: Path) -> None:
    class StopAt(gs.Callback):
        def on_step(self, run: gs.Run) -> None:
            if run.status().step == 5:
                run.stop()

    folder = trainer(tmp_path, workers=2).fit(model(), data(), callbacks=[StopAt()]).folder
    run = trainer(tmp_path, workers=2, strategy="gba").start(model(), data(), resume=folder)
    assert run.wait(60).report["strategy"] == "gba"
    assert "the run continues with gba, as requested; before, it used sync" in run.messages


class _ResizeThenStop(gs.Callback):
    def on_step(self, run: gs.Run) -> None:
        if run.training.step == 2:
            run.ask_resize(4)
        if run.training.step == 6:
            run.stop()


def test_a_resized_run_goes_on_with_as_many_workers(tmp_path: Path) -> None:
    stopped = trainer(tmp_path, workers=2).fit(model(), data(), callbacks=[_ResizeThenStop()])
    assert stopped.report["workers"] == 4
    again = trainer(tmp_path, workers=2).fit(model(), data(), resume=stopped.folder)
    assert again.report["workers"] == 4


def test_whoever_resumes_with_another_number_of_workers_gets_it(tmp_path: Path) -> None:
    stopped = trainer(tmp_path, workers=2).fit(model(), data(), callbacks=[_ResizeThenStop()])
    assert trainer(tmp_path, workers=1).fit(model(), data(), resume=stopped.folder).report["workers"] == 1


def test_a_resumed_bmuf_run_keeps_its_momentum(tmp_path: Path) -> None:
    class StopAfter(gs.Callback):
        def on_step(self, run: gs.Run) -> None:
            if run.training.step >= 12:
                run.stop()

    bmuf = {"workers": 2, "strategy": {"name": "bmuf", "exchange": {"every": 2}, "momentum": 0.9}}
    stopped = trainer(tmp_path, **bmuf).fit(model(), data(), callbacks=[StopAfter()])
    saved = Checkpoint.open((stopped.folder / "checkpoints" / "last").resolve())
    velocity = saved.arrays("replicas")["velocity"]
    assert np.abs(velocity).max() > 0
    run = trainer(tmp_path, **bmuf).prepare(model(), data(), resume=stopped.folder)
    observer = SimpleNamespace(began=lambda first_lease: None, notify=print)
    epoch = LocalEpoch(run.training, observer)
    with closing(epoch.batches), closing(epoch.shards):
        assert epoch.replicas.live is not None
        begun = epoch.replicas.live.replicas.common.global_step
        np.testing.assert_array_equal(begun.velocity.numpy(), velocity)
        np.testing.assert_array_equal(begun.target.numpy(), run.training.learner.server.flat.numpy())


def test_open_leases_are_listed_only_for_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = []
    position = LocalEpoch._position
    monkeypatch.setattr(LocalEpoch, "_position", lambda self: listed.append(self) or position(self))
    made = trainer(tmp_path, workers=2, checkpoint=gs.CheckpointPolicy(Every(steps=10), path=tmp_path)).fit(
        model(), data()
    )
    assert made.report["global_steps"] == 25 and len(listed) == 2
