"""Every command on real data with the real training, as docs/cli.md shows them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gearshift.cli import app as cli

pytest.importorskip("gearshift.config.build")

ROWS = 3000
DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"
KEYS = {
    *(
        "strategy",
        "engine",
        "workers",
        "examples",
        "seconds",
        "examples_per_second",
        "global_steps",
        "applied",
    ),
    *("discarded", "auc", "logloss", "normalized_entropy", "calibration", "staleness", "lag", "sync_gap"),
    "peak_memory_bytes",
}


def gearshift(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gearshift", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def in_process(*arguments: str, code: int = 0) -> str:
    """The same without the seconds that a new process needs to import PyTorch."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        found = cli.run(list(arguments))
    assert found == code, said.getvalue()
    return said.getvalue()


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small click log whose clicks depend on user and price, and a trained run."""
    folder = tmp_path_factory.mktemp("shop")
    here = Path.cwd()
    os.chdir(folder)
    try:
        _write_log(Path("clicks.csv"), seed=1)
        _write_log(Path("later.csv"), seed=2)
        gearshift("init", "clicks.csv")
        gearshift(
            "train",
            "clicks.yaml",
            "global_batch=128",
            "model.hidden=[16]",
            "model.dim=4",
            "--json",
            "out.json",
        )
    finally:
        os.chdir(here)
    return folder


@pytest.fixture(autouse=True)
def in_workplace(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)


def _write_log(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["click", "ts", "user_id", "country", "price"])
        for i in range(ROWS):
            user = draw.randrange(40)
            price = round(draw.lognormvariate(2, 1), 2)
            click = int(draw.random() < (0.6 if user % 3 == 0 else 0.15) * (1.3 if price < 5 else 0.8))
            country = draw.choice(["DE", "FR", "NO"])
            writer.writerow([click, 1_761_955_200 + i * 100, f"u{user}", country, price])


def test_train_wrote_the_figures_that_others_rely_on() -> None:
    report = json.loads(Path("out.json").read_text())
    assert set(report) >= KEYS
    assert report["auc"] > 0.6
    assert json.loads(Path("runs/last/report.json").read_text()) == report


def test_runs_and_inspect_show_the_run() -> None:
    assert "done" in gearshift("runs")
    shown = gearshift("inspect", "last")
    assert "embedding rows in" in shown and "user_id" in shown
    assert "user_id" in gearshift("inspect", "runs/last/checkpoints/last")
    assert "categorical" in gearshift("inspect", "clicks.yaml")


def test_evaluate_whole_by_column_and_by_day() -> None:
    assert "all" in gearshift("evaluate", "last")
    by_country = gearshift("evaluate", "last", "later.csv", "--by", "country", "--json", "slices.json")
    names = {line.split()[0] for line in by_country.splitlines() if line}
    assert {"country", "all", "DE", "FR", "NO"} <= names
    slices = {entry["slice"]: entry for entry in json.loads(Path("slices.json").read_text())}
    assert slices["all"]["examples"] == ROWS == sum(slices[c]["examples"] for c in ("DE", "FR", "NO"))
    assert "2025-11-01" in gearshift("evaluate", "last", "later.csv", "--by", "day")


def test_two_runs_are_compared_on_the_same_examples() -> None:
    gearshift("train", "clicks.yaml", "name=other", "model=lr", "global_batch=128")
    first = next(p.name for p in Path("runs").iterdir() if p.name.startswith("clicks-"))
    said = gearshift("evaluate", first, "other", "later.csv", "--json", "pair.json")
    assert "paired on the same examples" in said
    difference = json.loads(Path("pair.json").read_text())[-1]
    assert difference["low"] <= difference["auc_difference"] <= difference["high"]


@pytest.mark.parametrize("name", ["scores.csv", "scores.csv.gz", "scores.parquet"])
def test_predict_needs_no_label_and_keeps_columns(name: str) -> None:
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    with Path("later.csv").open() as lines, Path("new.csv").open("w") as file:
        file.writelines(line.split(",", 1)[1] for line in lines)
    gearshift("predict", "last", "new.csv", "-o", name, "--keep", "user_id")
    table = parquet.read_table(name) if name.endswith("parquet") else arrow_csv.read_csv(name)
    assert table.column_names == ["user_id", "score"]
    assert table.num_rows == ROWS
    assert 0 < min(table["score"].to_pylist()) < max(table["score"].to_pylist()) < 1
    assert not [p for p in Path().iterdir() if p.name.endswith(".part")]


def test_json_lines_give_the_scores_of_the_csv() -> None:
    with Path("later.csv").open() as file, Path("later.jsonl").open("w") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in csv.DictReader(file))
    in_process("predict", "last", "later.csv", "-o", "of-csv.csv")
    in_process("predict", "last", "later.jsonl", "-o", "of-json.csv")
    assert Path("of-json.csv").read_text() == Path("of-csv.csv").read_text()
    in_process("predict", "last", "later.jsonl", "-o", "scores.jsonl", "--keep", "user_id")
    first = json.loads(Path("scores.jsonl").read_text().splitlines()[0])
    assert list(first) == ["user_id", "score"]
    in_process("init", "later.jsonl")
    in_process("prepare", "later.yaml", "json-prepared", "global_batch=128")
    trained = in_process("train", "later.yaml", "name=json", "global_batch=128", "model.hidden=[16]")
    assert "AUC" in trained
    assert f"{ROWS:,}" in in_process("evaluate", "json", "later.jsonl")


def test_a_stray_quote_is_named_by_every_command() -> None:
    lines = Path("clicks.csv").read_text().splitlines()
    fields = lines[1500].split(",")
    lines[1500] = ",".join([*fields[:2], f'"{fields[2]}', *fields[3:]])
    Path("stray.csv").write_text("\n".join(lines) + "\n")
    where = "stray.csv line 1,501: the quote that opens here does not close within 8 lines"
    assert (
        f"Warning: 1 line of the sample cannot be read and would stop the training; the first is {where}"
        in (in_process("init", "stray.csv"))
    )
    for command in (
        ["train", "stray.yaml"],
        ["evaluate", "last", "stray.csv"],
        ["predict", "last", "stray.csv", "-o", "stray-scores.csv"],
        ["prepare", "stray.yaml", "stray-prepared"],
    ):
        assert where in in_process(*command, code=2)
    assert not Path("stray-scores.csv").exists() and not Path("stray-prepared").exists()
    settings = ["name=stray", "model=lr", "global_batch=128", "data.bad_lines={skip: 1}"]
    assert "1 bad line(s) were skipped" in in_process("train", "stray.yaml", *settings)
    assert Path("runs/last/bad_lines.txt").read_text() == f"{where}\n"


def test_prepare_gives_a_config_that_trains() -> None:
    gearshift("prepare", "clicks.yaml", "prepared", "global_batch=128")
    assert "gearshift train" not in gearshift("inspect", "prepared/train")
    gearshift("train", "prepared/config.yaml", "name=ready")
    assert "not empty" in gearshift("prepare", "clicks.yaml", "prepared", code=2)


def test_init_does_not_overwrite() -> None:
    before = Path("clicks.yaml").read_text()
    assert "clicks.yaml exists; overwrite it with --force" in gearshift("init", "clicks.csv", code=2)
    gearshift("init", "clicks.csv", "--force")
    assert Path("clicks.yaml").read_text() == before


def test_init_writes_its_config_also_if_nobody_reads_what_it_says() -> None:
    command = [sys.executable, "-m", "gearshift", "init", "clicks.csv", "-o", "piped.yaml"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (141, "")  # as a shell reports a process that SIGPIPE ended
    assert Path("piped.yaml").read_text() == Path("clicks.yaml").read_text()


def _has_steps(runs: Path) -> bool:
    return any('"apply"' in log.read_text() for log in runs.glob("long-*/events-*.jsonl"))


def test_ctrl_c_saves_and_resume_goes_to_the_end() -> None:
    config = [
        "clicks.yaml",
        "name=long",
        "epochs=400",
        "global_batch=64",
        "eval_every=none",
        "baseline=false",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "gearshift", "train", *config],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not _has_steps(Path("runs")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Stopping after this step" in said
    command = said.splitlines()[-1].split("Resume: gearshift ")[1].split()
    assert "stopped" in gearshift("runs")
    gearshift(*command, "epochs=1")  # the saved step is past one epoch already, so this ends soon
    assert "stopped" not in gearshift("runs")


def test_the_commands_of_the_document_run(
    workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line of docs/cli.md, in its order and its names; `demo` has a test of its own."""
    blocks = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.S)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    assert len(lines) >= 12 and all(line.startswith("gearshift ") for line in lines)
    for name in ("clicks.csv", "clicks-2026-11-09.csv", "new.csv"):
        shutil.copy(workplace / "clicks.csv", tmp_path / name)
    config = (workplace / "clicks.yaml").read_text()
    (tmp_path / "new.yaml").write_text(re.sub(r"^model:.*$", "model: dcnv2", config, flags=re.M))
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        shutil.copytree((workplace / "runs" / "last").resolve(), Path("runs") / name, symlinks=True)
    for line in lines:
        if line != "gearshift demo":
            gearshift(*shlex.split(line)[1:])


def test_demo_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = gearshift("demo", "--examples", "40k")
    assert "of a reachable ." in said
    assert "Wrote demo/scores.csv: 20,000 examples (user, ad, score)" in said
    assert "Next" in said
