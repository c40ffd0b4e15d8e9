"""Ids that training never saw, as an evaluation counts them; the sentences of a run about them and its figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gearshift as gs
from gearshift.cli.app import run as command
from gearshift.errors import UserError
from tests.flat_trainer import flat_trainer

SCHEMA = gs.Schema((gs.Categorical("user_id"), gs.Categorical("item"), gs.Categorical("request")))
SIZE = 3000


def write_log(
    path: Path, users: range, *, seed: int = 1, leak: bool = False, sorted_by_user: bool = False
) -> Path:
    draw = np.random.default_rng(seed)
    user = draw.choice(np.array(users), SIZE)
    user = np.sort(user) if sorted_by_user else user
    taste = np.random.default_rng(5).normal(size=1000) * 2
    label = (draw.random(SIZE) < 1 / (1 + np.exp(-taste[user]))).astype(int)
    item = label if leak else draw.integers(0, 60, SIZE)
    lines = [f"{c},u{u},i{i},r{seed}-{n}" for n, (c, u, i) in enumerate(zip(label, user, item, strict=True))]
    path.write_text("label,user_id,item,request\n" + "\n".join(lines) + "\n")
    return path


def fit(
    folder: Path, train: gs.Dataset, valid: gs.Dataset, **settings: object
) -> tuple[gs.Run, dict[str, object]]:
    trainer = flat_trainer(
        global_batch=100,
        embeddings=gs.RowAdagrad(lr=0.2),
        checkpoint=gs.CheckpointPolicy(None, path=folder),
        **settings,
    )
    run = trainer.start(gs.models.DeepFM(SCHEMA, dim=4, hidden=[8]), train, valid)
    return run, run.wait(300).report


@pytest.mark.parametrize("shards", [1, 2])
def test_new_users_are_counted_and_told(tmp_path: Path, shards: int) -> None:
    train = gs.read(write_log(tmp_path / "train.csv", range(200)), SCHEMA)
    mixed = gs.read(write_log(tmp_path / "valid.csv", range(180, 1000), seed=2), SCHEMA)
    run, report = fit(tmp_path, train, mixed, workers=2, shards=shards)
    assert run.parts.final.last_evaluation is not None
    unseen = run.parts.final.last_evaluation.unseen
    assert unseen["user_id"] == pytest.approx(800 / 820, abs=0.02)
    assert unseen["item"] == 0.0
    assert "request" not in unseen  # each is new, everywhere
    told = [w for w in report["warnings"] if "`user_id` that training never saw" in w]  # type: ignore[attr-defined]
    assert len(told) == 1
    assert f"Warning: {told[0]}" in run.messages
    saved = json.loads((run.folder / "report.json").read_text())
    assert saved["warnings"] == report["warnings"]


def test_an_ordinary_run_says_nothing(tmp_path: Path) -> None:
    train = gs.read(write_log(tmp_path / "train.csv", range(100)), SCHEMA)
    valid = gs.read(write_log(tmp_path / "valid.csv", range(100), seed=2), SCHEMA)
    run, report = fit(tmp_path, train, valid, epochs=1)
    assert report["warnings"] == []
    assert not [message for message in run.messages if "Warning" in message]


def test_whole_users_held_out_on_purpose_are_no_surprise(tmp_path: Path) -> None:
    log = gs.read(write_log(tmp_path / "log.csv", range(200)), SCHEMA)
    run, _ = fit(tmp_path, *log.split(hash="user_id", valid="20%"))
    assert run.parts.final.last_evaluation is not None
    assert "user_id" not in run.parts.final.last_evaluation.unseen


def test_the_end_of_a_file_sorted_by_user_is_told_before_the_run(tmp_path: Path) -> None:
    log = gs.read(write_log(tmp_path / "log.csv", range(200), sorted_by_user=True), SCHEMA)
    run, report = fit(tmp_path, *log.split())
    assert run.messages[0].startswith("Warning: examples are grouped by user_id, and the end of the file")
    assert report["warnings"][0] == run.messages[0].removeprefix("Warning: ")  # type: ignore[index]
    assert sum("are grouped by" in message for message in run.messages) == 1


def test_the_command_line_says_each_warning_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(Path("log.csv"), range(100), leak=True)
    features = "\n".join(f"  - {{name: {name}, type: categorical}}" for name in ("user_id", "item"))
    Path("log.yaml").write_text(
        f"data: {{train: log.csv, split: {{by: hash, valid: 20%}}, label: label}}\nfeatures:\n{features}\n"
        "model: lr\ntrain: {global_batch: 50, epochs: 2}\n"
    )
    assert command(["train", "log.yaml", "--json", "report.json"]) == 0
    said = capsys.readouterr().out
    assert (
        said.count("valid: an AUC of 1.0000 is too good for clicks: a feature probably reveals the label")
        == 1
    )
    assert len(json.loads(Path("report.json").read_text())["warnings"]) == 1
    assert command(["evaluate", "last", "log.csv", "--json", "figures.json"]) == 0
    assert "Warning: this data: an AUC of 1.0000 is too good" in capsys.readouterr().out
    assert "too good" in json.loads(Path("figures.json").read_text())[0]["warnings"][0]


def test_a_label_of_one_value_is_told(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.csv", range(100))
    path.write_text(path.read_text().replace("\n1,", "\n0,"))
    _, report = fit(tmp_path, *gs.read(path, SCHEMA).split(hash=True))
    parts = [sentence.split(":")[0] for sentence in report["warnings"]]  # type: ignore[attr-defined]
    assert parts == ["training", "valid"]
    assert "the label is 0 in all" in report["warnings"][0]  # type: ignore[index]


def test_a_wrong_hash_column_is_named(tmp_path: Path) -> None:
    log = gs.read(write_log(tmp_path / "log.csv", range(100)), SCHEMA)
    with pytest.raises(UserError, match="nobody"):
        log.split(hash="nobody")[0].read(0, 10)
