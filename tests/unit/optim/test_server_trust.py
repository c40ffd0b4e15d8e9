"""VR-x on the server: the same r wherever a step's gradients come from, and x itself at floor 1."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift import cli
from gearshift.embedding.store import CowClip
from gearshift.optim import build
from gearshift.report import closing_lines

GLOBAL, PIECES = 160, 8


def trained(path: Path, name: str, **more):
    return run_of(path, name, **more).training.learner


def run_of(
    path: Path, name: str, *, workers: int = 1, strategy: str = "sync", batch: int = 20, examples=1600, **more
) -> gs.Run:
    torch.manual_seed(5)
    model = gs.models.DeepFM(PLAIN, dim=4, hidden=[8, 8])
    settings = more.pop("settings", {})
    trainer = gs.Trainer(
        global_batch=GLOBAL,
        batch=batch,
        workers=workers,
        strategy=strategy,
        optimizer=build(name, lr=0.05, **settings),
        embeddings=more.pop("embeddings", gs.RowAdagrad(lr=0.1)),
        checkpoint=gs.CheckpointPolicy(None, path=path),
        **more,
    )
    run = trainer.start(model, gs.read(make_batch(PLAIN, examples), PLAIN))
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


@pytest.mark.parametrize("shards", [1, 2])
def test_too_few_gradients_change_nothing_and_say_so(tmp_path: Path, shards: int) -> None:
    plain, reduced = (run_of(tmp_path, name, batch=40, shards=shards) for name in ("sgd", "vr_sgd"))
    assert torch.equal(plain.training.learner.server.flat, reduced.training.learner.server.flat)
    (said,) = [message for message in reduced.messages if "vr_*" in message]
    assert "4.0 effective gradients in this step, fewer than min_gradients = 8: r = 1" in said
    figures = reduced.wait().report
    assert figures["plain_steps"] == figures["global_steps"] == 10
    assert any("vr_* reduced nothing in 10 steps" in line for line in closing_lines(figures, tmp_path))
    assert plain.wait().report["plain_steps"] == 0 and not any("vr_*" in said for said in plain.messages)


def test_the_rest_of_a_pass_is_counted_and_no_news(tmp_path: Path) -> None:
    run = run_of(tmp_path, "vr_sgd", examples=1620)
    figures = run.wait().report
    assert (figures["plain_steps"], figures["global_steps"]) == (1, 11)
    assert run.training.learner.server.trust.reason, "as the server saw it"
    assert not any("vr_*" in message for message in run.messages)


def test_async_is_plain_to_the_end(tmp_path: Path) -> None:
    run = run_of(tmp_path, "vr_sgd", strategy="async")
    assert run.wait().report["plain_steps"] == 80
    assert sum("1.0 effective gradients" in message for message in run.messages) == 1


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
