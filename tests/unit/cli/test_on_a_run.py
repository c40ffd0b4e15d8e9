"""evaluate, predict and prepare on a small run that was really trained, in this process."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyarrow import csv as arrow_csv

from gearshift.cli import app as cli
from gearshift.config import load_config
from tests.small_disk import small_disk

from .conftest import Shell

CONFIG = """\
data:
  train: clicks.csv
  label: {click: click, buy: buy}
  time: ts
  group: user
  weight: w
  split: {by: hash(user), valid: 20%}
  bad_lines: {skip: 5}
features:
  - {name: user, type: categorical}
  - {name: price, type: numeric}
model: {name: deepfm, dim: 4, hidden: [8]}
train: {global_batch: 128, baseline: false}
"""
ROWS = 600


def write_log(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    lines = ["click,buy,ts,user,price,w"]
    for i in range(ROWS):
        user, price = draw.randrange(30), round(draw.uniform(0, 5), 2)
        click = int(draw.random() < (0.7 if user % 3 else 0.1))
        buy = int(click and draw.random() < 0.5)
        lines.append(f"{click},{buy},{1_761_955_200 + 100 * i},u{user},{price},{draw.choice([1, 5])}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("shop.yaml").write_text(CONFIG)
        write_log(Path("clicks.csv"), 1)
        write_log(Path("later.csv"), 2)
        assert cli.run(["train", "shop.yaml"]) == 0
        assert cli.run(["prepare", "shop.yaml", "prep"]) == 0
    return folder


@pytest.fixture
def gearshift(shell: Shell, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(trained)
    return shell


def test_a_prepared_folder_is_data_not_a_model(gearshift: Shell) -> None:
    code, out, err = gearshift("evaluate", "last", "prep/valid")
    assert (code, err) == (0, "")
    assert "AUC" in out
    code, _, err = gearshift("evaluate", "prep/valid")
    assert (code, err) == (
        2,
        "prep/valid is prepared data, not a model; name a run first, such as: last prep/valid\n",
    )


def test_a_prepared_hash_split_may_overlap_in_time_as_the_raw_one(gearshift: Shell) -> None:
    assert "allow_overlap: true" in Path("prep/config.yaml").read_text()
    code, _, err = gearshift("train", "prep/config.yaml", "checkpoint.path=other")
    assert (code, err) == (0, "")


def test_predict_does_not_look_at_the_label(gearshift: Shell) -> None:
    lines = Path("later.csv").read_text().splitlines()
    text = [lines[0], *(f",maybe,{line.split(',', 2)[2]}" for line in lines[1:])]
    Path("unlabelled.csv").write_text("\n".join(text))
    code, _, err = gearshift("predict", "last", "unlabelled.csv", "-o", "scores.csv")
    assert (code, err) == (0, "")
    assert arrow_csv.read_csv("scores.csv").num_rows == ROWS
    gearshift("predict", "last", "later.csv", "-o", "with_label.csv")
    assert Path("with_label.csv").read_bytes() == Path("scores.csv").read_bytes()


def test_predict_on_prepared_data_reads_no_label(gearshift: Shell) -> None:
    code, _, err = gearshift("predict", "last", "prep/valid", "-o", "ready.csv")
    assert (code, err) == (0, "")
    count = json.loads(Path("prep/valid/manifest.json").read_text())["examples"]
    assert arrow_csv.read_csv("ready.csv").num_rows == count


def test_a_checkpoint_of_a_run_is_named_everywhere(gearshift: Shell) -> None:
    step = Path("runs/last/checkpoints/last").resolve().name
    code, out, err = gearshift("evaluate", f"last@{step}", "later.csv")
    assert (code, err) == (0, "") and out == gearshift(
        "evaluate", f"runs/last/checkpoints/{step}", "later.csv"
    )[1]
    code, out, err = gearshift("inspect", f"last@{step}")
    assert (code, err) == (0, "") and f"checkpoints/{step}" in out
    assert gearshift("inspect", f"last@{step}", "--rows")[0] == 0
    assert gearshift("predict", f"last@{step}", "later.csv", "-o", "at_step.csv")[0] == 0
    gearshift("predict", f"runs/last/checkpoints/{step}", "later.csv", "-o", "by_path.csv")
    assert Path("at_step.csv").read_bytes() == Path("by_path.csv").read_bytes()
    code, _, err = gearshift("evaluate", "last@step-7", "later.csv")
    assert code == 2 and "has no checkpoint `step-7`; it has: last, best, step-" in err


@pytest.mark.parametrize("name", ["last", "last@best", "runs/last/checkpoints/last", "runs/last"])
def test_init_from_takes_a_checkpoint_or_a_run(gearshift: Shell, name: str) -> None:
    code, _, err = gearshift("train", "shop.yaml", "--init-from", name, "checkpoint.path=warm")
    assert (code, err) == (0, "")


def test_inspect_shows_all_that_prepare_wrote(gearshift: Shell) -> None:
    code, out, err = gearshift("inspect", "prep")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][:4] == ["prepared", "prep", f"{ROWS}", "examples,"]
    parts = {line[0]: int(line[1]) for line in lines if line and line[0] in ("train", "valid")}
    assert sum(parts.values()) == ROWS and parts["train"] > parts["valid"] > 0
    assert ["part", "examples", "time", "size"] in lines and "2025-11-01" in out
    assert "label click, buy" in out
    assert ["user", "categorical", "user", "model's"] in lines and ["price", "numeric", "-", "1"] in lines
    Path("halved/train").mkdir(parents=True)
    Path("halved/train/manifest.json").write_text("{")
    assert gearshift("inspect", "halved")[2] == (
        "halved/train/manifest.json is damaged; the folder cannot be used\n"
    )


def test_a_new_run_goes_on_from_an_earlier_checkpoint(gearshift: Shell) -> None:
    gearshift("train", "shop.yaml", "checkpoint.path=steps", "checkpoint.every=2", "name=often")
    run = next(Path("steps").glob("often-*"))
    first, *_, last = sorted(run.glob("checkpoints/step-*"), key=lambda path: int(path.name[5:]))
    for name in (last, run / "checkpoints" / "last", f"{run}@{last.name}"):
        code, out, err = gearshift("train", "--resume", str(name))
        assert (code, err) == (0, "") and "nothing is left to train" in out
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    for name in (str(first), f"{run}@{first.name}"):
        code, out, err = gearshift("train", "--resume", name)
        assert (code, err) == (0, "")
        assert f"A new run from {first}; the original run is not changed" in out
        new = max(Path("steps").glob("often-*"), key=lambda folder: folder.stat().st_mtime_ns)
        assert new != run and (new / "report.json").exists()
        assert (new / "checkpoints" / last.name).exists()
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    code, _, err = gearshift("train", "--resume", f"{run}@step-1")
    steps = ", ".join(
        path.name for path in sorted(run.glob("checkpoints/step-*"), key=lambda path: int(path.name[5:]))
    )
    assert (code, err) == (2, f"run {run} has no checkpoint `step-1`; it has: last, best, {steps}\n")


def test_resume_looks_where_the_config_puts_its_runs(gearshift: Shell) -> None:
    gearshift("train", "shop.yaml", "checkpoint.path=apart", "name=far")
    code, _, err = gearshift("train", "shop.yaml", "checkpoint.path=apart", "--resume", "far")
    assert (code, err) == (0, "")
    assert (
        "no run `nix` in apart/ or runs/; newest: far-"
        in (gearshift("train", "shop.yaml", "checkpoint.path=apart", "--resume", "nix")[2])
    )


def test_a_run_without_a_checkpoint_cannot_be_resumed(gearshift: Shell) -> None:
    gearshift("train", "shop.yaml", "checkpoint.path=killed", "name=early")
    run = next(Path("killed").glob("early-*"))
    shutil.rmtree(run / "checkpoints")  # as it is while the first is not yet written
    (run / "checkpoints").mkdir()
    (run / "run.json").write_text((run / "run.json").read_text().replace('"done"', '"failed"', 1))
    code, _, err = gearshift("train", "--resume", str(run))
    sentence = f"run {run} saved no checkpoint before it ended; start it again with gearshift train CONFIG\n"
    assert (code, err) == (2, sentence)


def test_compare_takes_settings_and_strategies_of_ones_own(gearshift: Shell) -> None:
    own = "gearshift.sync.global_batch:GlobalBatch"
    names = ["sync", "gba:max_lag=1", own, f"{own}:max_lag=1:divisor=kept"]
    where = ("checkpoint.path=compared", "--seeds", "1", "--out", "compared")
    code, _, err = gearshift("compare", "shop.yaml", "--strategies", ",".join(names), *where)
    assert (code, err) == (0, "")
    assert list(json.loads(Path("compared/compare.json").read_text())["reports"]) == names
    folders = [folder for folder in Path("compared").glob("shop-*") if not folder.is_symlink()]
    made = [load_config(folder / "config.yaml").strategy for folder in folders]
    assert sorted((strategy.name, strategy.settings()) for strategy in made if strategy.settings()) == [
        ("gba", {"max_lag": 1}),
        (own, {"max_lag": 1, "divisor": "kept"}),
    ]
    code, _, err = gearshift("compare", "shop.yaml", "--strategies", "sync,gba:lag=1", *where)
    assert code == 2 and err.startswith("strategy.lag=1: unknown key `lag` in strategy.")


def with_bad_lines(name: str) -> None:
    lines = Path("later.csv").read_text().splitlines()
    lines[3] = "1,0,1761955400,u1,cheap,1"
    lines[5] = "1,0,1761955400"
    Path(name).write_text("\n".join(lines))


def test_evaluate_says_which_lines_it_left_out(gearshift: Shell) -> None:
    with_bad_lines("bad.csv")
    code, out, err = gearshift("evaluate", "last", "bad.csv")
    assert code == 0 and f" {ROWS - 2} " in out
    assert err.startswith("2 bad lines were skipped (allowed by data.bad_lines in the config): bad.csv line ")
    assert "bad.csv line 4: feature `price` is 'cheap'" in err and "bad.csv line 6: 3 columns" in err
    assert err.count("\n") == 1


def test_predict_and_compare_leave_no_line_out(gearshift: Shell) -> None:
    with_bad_lines("bad.csv")
    code, _, err = gearshift("predict", "last", "bad.csv", "-o", "none.csv")
    assert code == 2 and not Path("none.csv").exists()
    assert err.startswith("bad.csv line ")
    assert err.endswith(". Fix the line, or remove it: each example gets a score\n")
    code, _, err = gearshift("evaluate", "last", "runs/last", "bad.csv")
    assert code == 2
    assert err.endswith(". Fix the line, or remove it: two runs must be compared on the same examples\n")


def test_evaluate_shows_the_weighted_rate_the_grouped_auc_and_every_task(gearshift: Shell) -> None:
    code, out, _ = gearshift("evaluate", "last", "later.csv", "--json", "e.json")
    assert code == 0
    found = {entry["task"]: entry for entry in json.loads(Path("e.json").read_text())}
    assert list(found) == ["click", "buy"]
    table = arrow_csv.read_csv("later.csv")
    weights = table["w"].to_numpy()
    assert [line for line in out.splitlines() if line.startswith("task")] == ["task click", "task buy"]
    blocks = [block.splitlines() for block in out.split("task ")[1:]]
    for block, (task, entry) in zip(blocks, found.items(), strict=True):
        rate = (table[task].to_numpy() * weights).sum() / weights.sum()
        assert entry["mean_label"] == pytest.approx(rate)
        assert block[0] == task and "gAUC" in block[1] and f" {100 * rate:.1f} % " in block[2]
        assert 0 < entry["grouped_auc"] < 1
        counted, groups = entry["grouped_auc_groups"]
        assert block[3] == (
            f"gAUC: mean of the AUCs within each `user`, weighted by its examples; {counted} of {groups} have both "
            "clicks and non-clicks and are counted."
        )
        rows = entry["calibration_table"]
        assert block[5] == "Calibration by decile of predicted probability"
        assert block[6].split() == ["predicted", "observed", "ratio", "weight"]
        assert [line.split()[-1] for line in block[7 : 7 + len(rows)]] == [
            f"{row['count']:.0f}" for row in rows
        ]
        assert sum(row["count"] for row in rows) == weights.sum()


def test_evaluate_by_slice_fills_in_the_grouped_auc(gearshift: Shell) -> None:
    code, _, _ = gearshift("evaluate", "last", "later.csv", "--by", "w", "--json", "slices.json")
    assert code == 0
    for entry in json.loads(Path("slices.json").read_text()):
        assert (
            0 < entry["grouped_auc"] < 1 and entry["auc_bound"] == 0 and len(entry["calibration_table"]) > 1
        )


def test_evaluate_by_day_needs_the_time(gearshift: Shell) -> None:
    table = arrow_csv.read_csv("later.csv").drop_columns(["ts", "user"])
    arrow_csv.write_csv(table, "timeless.csv")
    option = ("--missing-columns", "as_missing")
    code, out, err = gearshift("evaluate", "last", "timeless.csv", *option)
    assert code == 0 and "gAUC" not in out
    assert err == "timeless.csv has no column `user`: it counts as missing in every example.\n"
    code, _, err = gearshift("evaluate", "last", "timeless.csv", "--by", "day", *option)
    assert code == 2 and err.endswith("--by day: the data has no column `ts`\n")


def test_evaluate_is_exact_on_the_predictions(gearshift: Shell) -> None:
    import numpy as np

    from gearshift import load
    from gearshift.metrics import auc

    gearshift("evaluate", "last", "later.csv", "--json", "e.json")
    table, scores = arrow_csv.read_csv("later.csv"), load("runs/last").predict("later.csv")
    for at, entry in enumerate(json.loads(Path("e.json").read_text())):
        exact = auc(table[entry["task"]].to_numpy(), np.float32(scores[:, at]), table["w"].to_numpy())
        assert entry["auc"] == pytest.approx(exact, abs=1e-12)


def test_closing_lines_and_report_have_both_tasks(gearshift: Shell) -> None:
    _, out, _ = gearshift("train", "shop.yaml", "checkpoint.path=both")
    lines = out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("valid  click  AUC ."))
    assert "gAUC" in lines[at] and "(weighted by examples)" in lines[at]
    assert lines[at + 1].startswith("       buy    AUC .")
    assert lines[at + 2].startswith("so far click  AUC .")
    report = json.loads(Path("both/last/report.json").read_text())
    assert report["calibration_table"] == report["tasks"]["click"]["calibration_table"]
    assert {"predicted", "observed", "count"} <= report["tasks"]["buy"]["calibration_table"][0].keys()
    assert report["tasks"]["buy"]["grouped_auc"] > 0


def test_two_runs_are_compared_task_by_task(gearshift: Shell) -> None:
    code, out, err = gearshift("evaluate", "last", "runs/last", "later.csv", "--json", "pair.json")
    assert code == 0, err
    assert out.count("paired on the same examples") == 2
    figures = json.loads(Path("pair.json").read_text())
    assert [entry["task"] for entry in figures] == ["click"] * 3 + ["buy"] * 3
    assert figures[2]["auc_difference"] == figures[5]["auc_difference"] == 0


def test_the_difference_of_two_runs_is_that_of_their_aucs_also_with_weights(gearshift: Shell) -> None:
    gearshift("train", "shop.yaml", "checkpoint.path=second", "train.seed=7")
    code, _, err = gearshift("evaluate", "last", "second/last", "later.csv", "--json", "pair.json")
    assert code == 0, err
    first, second, pair = json.loads(Path("pair.json").read_text())[:3]
    assert pair["auc_difference"] == pytest.approx(second["auc"] - first["auc"])


def test_prepare_is_there_with_all_its_parts_or_not_at_all(
    gearshift: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gearshift.data import prepare as module

    whole, written = module.prepare, []

    def second_fails(dataset: Any, folder: Path) -> object:
        written.append(folder)
        if len(written) == 2:
            raise OSError(28, "No space left on device", str(folder))
        return whole(dataset, folder)

    monkeypatch.setattr(module, "prepare", second_fails)
    before = sorted(path.name for path in Path().iterdir())
    code, _, err = gearshift("prepare", "shop.yaml", "half")
    assert code == 2 and "No space left on device" in err
    assert len(written) == 2
    assert sorted(path.name for path in Path().iterdir()) == before


@pytest.mark.parametrize(
    ("command", "target"),
    [
        (("predict", "last", "later.csv", "-o", "synced.csv"), "synced.csv"),
        (("prepare", "shop.yaml", "synced"), "synced"),
    ],
)
def test_what_is_renamed_is_on_the_disk(
    gearshift: Shell, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], target: str
) -> None:
    """Every file of the result was synced before it got its name."""
    synced: set[int] = set()
    fsync = os.fsync

    def record(handle: int) -> None:
        assert not Path(target).exists() or Path(target).parent.samefile(f"/proc/self/fd/{handle}")
        synced.add(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record)
    assert gearshift(*command)[0] == 0
    files = [path for path in [Path(target), *Path(target).rglob("*")] if path.is_file()]
    assert files and {path.stat().st_ino for path in files} <= synced


def test_prepare_says_once_which_lines_it_left_out(gearshift: Shell) -> None:
    with_bad_lines("bad.csv")
    code, _, err = gearshift("prepare", "shop.yaml", "partial", "data.train=bad.csv")
    assert code == 0
    assert err.startswith("2 bad lines were skipped") and err.count("\n") == 1


def test_predict_does_not_overwrite_its_data(gearshift: Shell) -> None:
    before = Path("later.csv").read_bytes()
    code, _, err = gearshift("predict", "last", "later.csv", "-o", "later.csv")
    assert code == 2 and "it is the input data" in err
    assert Path("later.csv").read_bytes() == before


CODES = """\
data: {train: codes.csv, label: click, split: {by: end, valid: 20%}}
features: [{name: code, type: categorical}, {name: device, type: categorical}]
model: {name: lr}
train: {global_batch: 128, baseline: false}
"""


def write_codes(path: str, *, pad: str) -> None:
    draw = random.Random(7)
    rows = [f"{draw.randrange(2)},{draw.randrange(400):{pad}},{draw.randrange(1, 9)}" for _ in range(ROWS)]
    Path(path).write_text("\n".join(["click,code,device", *rows]) + "\n")


@pytest.fixture
def codes(gearshift: Shell) -> Shell:
    """A run on a column with leading zeros; short.csv has the same column without them."""
    if not Path("codes.yaml").exists():
        Path("codes.yaml").write_text(CODES)
        write_codes("codes.csv", pad="04d")
        write_codes("short.csv", pad="d")
        for name in ("codes.yaml", "prepared_codes/config.yaml"):
            assert (
                gearshift("train", name, "checkpoint.path=coded", f"name={Path(name).parts[0][:4]}")[0] == 0
            )
            if name == "codes.yaml":
                assert gearshift("prepare", "codes.yaml", "prepared_codes")[0] == 0
    return gearshift


SKEW = (
    "column `code` of short.csv is written differently than in training (text like 0007 there, text like 123 here), so "
    'the model does not recognize its values: read it as text, in pandas with dtype={"code": str}\n'
)


@pytest.mark.parametrize("name", ["code", "prep"])  # trained on the file, and on what `prepare` made of it
def test_predict_and_evaluate_tell_of_lost_leading_zeros(codes: Shell, name: str) -> None:
    run = str(next(path for path in Path("coded").glob(f"{name}-*")))
    for command in (["predict", run, "short.csv", "-o", "s.csv"], ["evaluate", run, "short.csv"]):
        code, out, err = codes(*command)
        assert (code, err) == (0, SKEW) and out
    assert codes("predict", run, "codes.csv", "-o", "s.csv")[2] == ""


def test_a_missing_column_is_refused_with_the_option_or_read_as_missing(codes: Shell) -> None:
    lines = [line.rpartition(",")[0] for line in Path("codes.csv").read_text().splitlines()]
    Path("cut.csv").write_text("\n".join(lines) + "\n")
    run = str(next(path for path in Path("coded").glob("code-*")))
    refused = (
        "cut.csv has no column `device`. It has: click, code. To read absent columns as missing "
        "values: --missing-columns as_missing\n"
    )
    for command in (["predict", run, "cut.csv", "-o", "cut_scores.csv"], ["evaluate", run, "cut.csv"]):
        assert codes(*command) == (2, "", refused)
        code, out, err = codes(*command, "--missing-columns", "as_missing")
        assert (code, err) == (0, "cut.csv has no column `device`: it counts as missing in every example.\n")
        assert out
    assert arrow_csv.read_csv("cut_scores.csv").num_rows == ROWS


@pytest.mark.parametrize("name", ["scores.csv", "scores.csv.gz", "scores.jsonl", "scores.parquet"])
@pytest.mark.parametrize("harm", ["full", "read-only"])
def test_predict_names_its_output_where_the_disk_refuses_it(
    gearshift: Shell, tmp_path: Path, name: str, harm: str
) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        if harm == "full":
            disk.fill()
        else:
            disk.remount("ro")
        output = disk.path / name
        code, _, err = gearshift("predict", "last", "later.csv", "-o", str(output))
        disk.remount("rw")
        left = [path.name for path in disk.path.iterdir() if path.name != "filler"]
    reason = "No space left on device" if harm == "full" else "Read-only file system"
    assert (code, err.partition(";")[0]) == (2, f"cannot use {output}: {reason}") and left == []


def test_init_names_its_output_where_the_disk_refuses_it(gearshift: Shell, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        disk.remount("ro")
        output = disk.path / "shop.yaml"
        code, _, err = gearshift("init", "later.csv", "-o", str(output))
    assert (code, err.partition(";")[0]) == (2, f"cannot use {output}: Read-only file system")


def test_a_time_that_is_none_is_refused(gearshift: Shell) -> None:
    sentence = "later.csv line 2: time `price` is '{}', which is not a time (the sampled numbers lie between"
    first = Path("later.csv").read_text().splitlines()[1].split(",")[4]
    for command in (
        ("init", "later.csv", "--time", "price", "--force"),
        ("train", "shop.yaml", "data.train=later.csv", "data.time=price", "checkpoint.path=other"),
    ):
        code, _, err = gearshift(*command)
        assert code == 2 and sentence.format(first) in err, command
