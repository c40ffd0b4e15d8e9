"""VR-x on the server: the same r wherever a step's gradients come from, and x itself at floor 1."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.cli import app as cli
from gearshift.data.dataset import Dataset
from gearshift.embedding.store import CowClip, RowPart
from gearshift.embedding.table_store import MemoryStore
from gearshift.engine.protocol.messages import Load
from gearshift.engine.protocol.shard import ShardRole
from gearshift.optim import LayerStatistics, build, spread_of
from gearshift.optim.row_ratios import PushedRows, RowPartColumns, touched
from gearshift.optim.trust_figures import from_figures, trust_figures
from gearshift.parameters.push import Push, RowPush
from gearshift.parameters.row_settings import RowPolicy
from gearshift.parameters.server import Server
from gearshift.run import folder as run_folder
from gearshift.run.prometheus import figures_by_role
from gearshift.run.report import closing_lines
from gearshift.training.requests import Switch
from gearshift.training.timing import Every
from tests.flat_trainer import flat_trainer

GLOBAL, PIECES = 160, 8


def trained(path: Path, name: str, **more):
    return run_of(path, name, **more).training.learner


def run_of(
    path: Path, name: str, *, workers: int = 1, strategy: str = "sync", batch: int = 20, examples=1600, **more
) -> gs.Run:
    torch.manual_seed(5)
    model = gs.models.DeepFM(PLAIN, dim=4, hidden=[8, 8])
    settings, resume, callbacks = (
        more.pop("settings", {}),
        more.pop("resume", None),
        more.pop("callbacks", ()),
    )
    valid = gs.read(make_batch(PLAIN, 200, 7), PLAIN) if more.pop("valid", False) else None
    trainer = flat_trainer(
        global_batch=GLOBAL,
        batch=batch,
        workers=workers,
        strategy=strategy,
        optimizer=build(name, lr=0.05, **settings),
        embeddings=more.pop("embeddings", gs.RowAdagrad(lr=0.1)),
        checkpoint=gs.CheckpointPolicy(Every(steps=5), keep=9, path=path),
        **more,
    )
    data = gs.read(make_batch(PLAIN, examples), PLAIN)
    run = trainer.start(model, data, valid, resume=resume, warm_start=True, callbacks=callbacks)
    run.wait(60)
    return run


def rows(learner) -> np.ndarray:
    blocks = list(learner.server.stores[0].blocks())
    order = np.argsort(np.concatenate([b.ids_U for b in blocks]))
    return np.concatenate([b.weights_UW for b in blocks])[order]


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "lars", "lamb"])
def test_with_floor_1_it_is_its_base_bit_for_bit(tmp_path: Path, name: str) -> None:
    plain, reduced = trained(tmp_path, name), trained(tmp_path, f"vr_{name}", settings={"floor": 1.0})
    assert torch.equal(plain.server.flat, reduced.server.flat)
    other = trained(tmp_path, f"vr_{name}")
    assert not torch.equal(plain.server.flat, other.server.flat), "r must do something for this to be a test"


@pytest.mark.parametrize("name", ["vr_sgd", "vr_momentum", "vr_adam", "vr_lars", "vr_lamb"])
@pytest.mark.parametrize("row_trust", ["dense_only", "touched", "row_wise"])
def test_micro_batches_workers_and_gbas_buffer_agree(tmp_path: Path, name: str, row_trust: str) -> None:
    """k micro-batches of one worker, k workers in sync, M = k waiting gradients of one worker in gba."""
    more = {"row_trust": row_trust}
    micro = trained(tmp_path, name, **more)
    workers = trained(tmp_path, name, workers=PIECES, **more)
    gba = trained(tmp_path, name, strategy="gba", **more)
    assert micro.server.step == workers.server.step == gba.server.step == 10
    for other in (workers, gba):
        torch.testing.assert_close(micro.server.flat, other.server.flat, rtol=1e-4, atol=2e-5)
        np.testing.assert_allclose(rows(micro), rows(other), rtol=1e-4, atol=2e-5)


def test_shards_agree_too(tmp_path: Path) -> None:
    one, three = trained(tmp_path, "vr_lamb"), trained(tmp_path, "vr_lamb", shards=3)
    assert torch.equal(one.server.flat, three.server.flat)


@pytest.mark.parametrize("name", ["vr_adam", "vr_lamb"])
def test_its_state_is_resumed_on_any_number_of_shards(tmp_path: Path, name: str) -> None:
    whole = run_of(tmp_path / "whole", name)
    wanted = whole.training.learner.server
    for shards in (1, 3):
        resumed = trained(tmp_path / f"on {shards}", name, shards=shards, resume=f"{whole.folder}@step-5")
        assert resumed.server.step == wanted.step == 10 and torch.equal(resumed.server.flat, wanted.flat)
        memory = resumed.server.optimizer_state["ratio"]
        assert torch.equal(memory, wanted.optimizer_state["ratio"]) and memory.any()


def test_a_switch_to_async_and_back_leaves_steps_of_one_gradient_plain(tmp_path: Path) -> None:
    class There(gs.Callback):
        def on_step(self, run: gs.Run) -> None:
            if (step := run.status().step) in (3, 19):
                run.ask_switch("async" if step == 3 else "sync")

        def on_switch(self, run: gs.Run, switch: Switch) -> None:
            seen.append((switch.step, switch.strategy))

    seen: list[tuple[int, str]] = []
    run = run_of(tmp_path, "vr_adam", callbacks=[There()])
    figures, server = run.wait().report, run.training.learner.server
    assert seen == [(3, "async"), (19, "sync")]
    assert figures["plain_steps"] == 16 and server.trust is not None and server.trust.values is not None


@pytest.mark.parametrize("shards", [1, 2])
def test_too_few_gradients_change_nothing_and_say_so(tmp_path: Path, shards: int) -> None:
    plain, reduced = (run_of(tmp_path, name, batch=40, shards=shards) for name in ("sgd", "vr_sgd"))
    assert torch.equal(plain.training.learner.server.flat, reduced.training.learner.server.flat)
    (said,) = [message for message in reduced.messages if "vr_*" in message]
    assert "4.0 effective gradients in this step, fewer than min_gradients = 8: r = 1" in said
    figures = reduced.wait().report
    assert figures["plain_steps"] == figures["global_steps"] == 10
    assert any("vr_* had no effect in 10 steps" in line for line in closing_lines(figures, tmp_path))
    assert plain.wait().report["plain_steps"] == 0 and not any("vr_*" in said for said in plain.messages)


@pytest.mark.parametrize("known", [True, False])
def test_the_rest_of_a_pass_is_counted_and_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Also where the number of examples is a guess."""
    if not known:
        monkeypatch.setattr(Dataset, "estimate", lambda self: 2000)
    run = run_of(tmp_path, "vr_sgd", examples=1620, epochs=2)
    figures = run.wait().report
    assert (figures["plain_steps"], figures["global_steps"]) == (2, 22)
    assert run.training.learner.server.trust.reason, "as the server saw it"
    assert not any("vr_*" in message for message in run.messages)


def test_async_is_plain_to_the_end(tmp_path: Path) -> None:
    run = run_of(tmp_path, "vr_sgd", strategy="async")
    assert run.wait().report["plain_steps"] == 80
    assert sum("1.0 effective gradients" in message for message in run.messages) == 1


@pytest.mark.parametrize(("shards", "row_trust"), [(1, "touched"), (2, "touched"), (3, "row_wise")])
def test_the_log_has_every_layer_on_any_number_of_shards(tmp_path: Path, shards: int, row_trust: str) -> None:
    run = run_of(tmp_path, "vr_sgd", shards=shards, row_trust=row_trust, valid=True)
    (line,) = [line for line in run_folder.metrics(run.folder) if "valid_auc" in line]
    layers = {told["layer"]: told for told in line["trust_layers"]}
    names = run.training.learner.worker.dense.names
    assert set(layers) == {*names, "rows embedding[4]", "rows linear[1]"}
    assert all(0.1 <= told["mean_ratio"] <= 1 and 0 <= told["at_floor"] <= 1 for told in layers.values())
    assert (layers["rows embedding[4]"]["noise_scale"] is None) == (row_trust == "row_wise")
    sizes = {layer.name: layer.size for layer in run.training.learner.server.layers.layers}
    trust = sum(layers[name]["mean_ratio"] * sizes[name] for name in names) / sum(sizes.values())
    assert line["trust"] == pytest.approx(trust) and line["plain_steps"] == 0


def test_the_noise_scale_of_all_is_not_that_of_the_smallest_layer() -> None:
    """tr(Sigma) / |G|^2 over all: a bias whose gradient is hardly above 0 does not rule it, nor is it left out."""
    lines = [
        LayerStatistics("weight", 100, 0.5, 0.2, noise=50.0, signal=1.0),
        LayerStatistics("bias", 1, 1.0, 0.0, noise=10.0, signal=1e-9),
    ]
    assert trust_figures(lines)["noise_scale"] == pytest.approx(60.0)
    lines[1] = replace(lines[1], signal=-0.5)
    found = trust_figures(lines)
    assert found["noise_scale"] == pytest.approx(120.0) and found["trust"] == pytest.approx(51 / 101)
    assert [told["noise_scale"] for told in found["trust_layers"]] == [50.0, None]


def test_figures_of_shards_elsewhere_come_to_the_same(tmp_path: Path) -> None:
    server = trained(tmp_path, "vr_sgd", shards=2, row_trust="row_wise").server
    processes = {}
    for number, part in enumerate(server.split_into):
        role = ShardRole(number, 1, lambda name, done, part=part: done(part), lambda *_: None)
        role.handle(Load(1, 1, "step-0"))
        processes[f"shard-{number}"] = {"sent_bytes": 1.0, **role.figures()}
    there, here = trust_figures(from_figures(processes)), trust_figures(server.statistics())
    assert there == here and len(here["trust_layers"]) > 4
    assert figures_by_role(processes).keys() == {
        "shard_sent_bytes", "shard_parked_pulls", "shard_gradients_waiting"}  # fmt: skip


def test_a_push_counts_by_its_weight_and_one_of_weight_0_not_at_all() -> None:
    """As gba decays and cuts: dense and rows, against the same sums by hand."""
    rng = np.random.default_rng(1)
    rule = build("vr_sgd", lr=0.1, min_gradients=1)
    part = RowPart("embedding", 4, gs.RowSGD(lr=0.1))
    server = Server(torch.zeros(40), (MemoryStore((part,), seed=1),), rule, rows=RowPolicy(trust="touched"))
    ids_U, sizes, weights = np.arange(6), (4.0, 6.0, 5.0, 4.0, 7.0), (1.0, 0.5, 0.0, 0.125, 1.0)
    born_UW = server.stores[0].pull(ids_U)
    pushes = [
        Push(
            (RowPush(ids_U, rng.normal(1, 1, (6, 4)).astype(np.float32), np.ones(6, np.uint32)),),
            torch.from_numpy(rng.normal(1, 1, 40).astype(np.float32)),
            examples,
            1.0,
            np.zeros((1, 1), np.float32),
        )
        for examples in sizes
    ]
    server.apply_group(list(zip(pushes, weights, strict=True)), lr_scale=1.0)
    spread = spread_of([(p.dense, p.examples, w) for p, w in zip(pushes, weights, strict=True)])
    gradient = sum(w * p.dense for p, w in zip(pushes, weights, strict=True)) / sum(sizes)
    ratio = rule.gsnr.ratios(spread, server.layers).values
    torch.testing.assert_close(server.flat, -0.1 * ratio * gradient)
    assert server.trust.spread.gradients == 4
    rows = [PushedRows(ids_U, p.rows[0].sums_UW, w, p.examples) for p, w in zip(pushes, weights, strict=True)]
    of_rows = touched(rows, rule.gsnr, [RowPartColumns("embedding", 0, 4)]).values_UW
    sums_UW = sum(w * p.rows[0].sums_UW for p, w in zip(pushes, weights, strict=True)) / sum(sizes)
    moved_UW = server.stores[0].pull(ids_U) - born_UW
    np.testing.assert_allclose(moved_UW, -0.1 * of_rows * sums_UW, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("row_trust", ["touched", "row_wise"])
def test_rows_of_several_shards_have_an_r_of_their_own_shard_and_stay_close(
    tmp_path: Path, row_trust: str
) -> None:
    one, three, plain = (
        rows(trained(tmp_path, name, shards=shards, **more))
        for name, shards, more in (
            ("vr_sgd", 1, {"row_trust": row_trust}),
            ("vr_sgd", 3, {"row_trust": row_trust}),
            ("vr_sgd", 1, {}),
        )
    )
    assert not np.array_equal(one, three)
    assert np.linalg.norm(three - one) < 0.5 * np.linalg.norm(plain - one), "of what r itself does"


def test_rows_are_clipped_by_their_length(tmp_path: Path) -> None:
    by_length = {"embeddings": gs.RowSGD(lr=1.0)}
    plain = trained(tmp_path, "sgd", **by_length)
    clipped = trained(tmp_path, "sgd", row_clip=CowClip(ratio=1e-3), **by_length)
    moved = [np.abs(rows(learner)[:, :4]).max() for learner in (plain, clipped)]
    assert moved[1] < moved[0]


def test_from_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("vr.yaml").write_text(
        """\
data: {synthetic: {examples: 8000, days: 2}}
model: {name: deepfm, dim: 4, hidden: [8]}
optimizer:
  dense: {name: vr_lamb, lr: 1e-3, floor: 0.2, beta3: 0.5}
  row_trust: row_wise
  row_clip: cowclip
train: {global_batch: 1000, batch: 100, baseline: false}
"""
    )
    assert cli.run(["train", "vr.yaml"]) == 0
    lines = [json.loads(line) for line in Path("runs/last/metrics.jsonl").read_text().splitlines()]
    assert all(0.2 <= line["trust"] <= 1 for line in lines if "trust" in line)
    assert any("trust" in line for line in lines)
    assert cli.run(["train", "vr.yaml", "optimizer.dense={name: vr_sgd, beta3: 0.5}"]) == 2
