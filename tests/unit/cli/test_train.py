import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gearshift.run import catalog, ownership, ownership_files
from gearshift.run import folder as run_folder

from . import fake_training
from .conftest import Shell

FAKE = Path(fake_training.__file__)


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> fake_training.types.ModuleType:
    module = fake_training.module()
    monkeypatch.setitem(sys.modules, "gearshift.config.build", module)
    return module


def test_train_prints_the_header_and_the_end_and_writes_the_figures(shell: Shell, training: object) -> None:
    code, out, err = shell("train", "clicks.yaml", "--json", "out.json")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == ["Data   1 file", "Memory enough"]
    assert lines[-2:] == ["done   500 examples", "valid  AUC .7000"]
    assert lines[2].endswith(" valid AUC .7000")  # a message of the run, with a timestamp
    assert json.loads(Path("out.json").read_text()) == {"auc": 0.7, "global_steps": 5}


def test_report_is_another_name_for_json(shell: Shell, training: object) -> None:
    assert shell("train", "clicks.yaml", "--report", "out.json")[0] == 0
    assert Path("out.json").exists()


def test_figures_can_go_into_the_folder_of_a_run_that_another_process_has(
    shell: Shell, training: fake_training.types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Ray the coordinator owns the run, and not the command that writes what its user named."""
    assert shell("train", "clicks.yaml")[0] == 0
    real, folder = training.start, catalog.find("last")

    def start(*arguments: Any, **settings: Any) -> fake_training.Run:
        run: fake_training.Run = real(*arguments, **settings)
        owner = ownership.current(run.folder)
        assert owner is not None
        ownership_files.link_claim(run.folder / ownership_files.FOLDER, owner.fence + 1, owner.session, 0.0)
        return run

    monkeypatch.setattr(training, "start", start)
    code, _, err = shell("train", "--resume", "last", "epochs=2", "--json", str(folder / "out.json"))
    assert (code, err) == (0, "")
    assert json.loads((folder / "out.json").read_text())["global_steps"] == 5


def test_settings_follow_the_config(shell: Shell, training: fake_training.types.ModuleType) -> None:
    assert shell("train", "clicks.yaml", "epochs=3", "model=fm")[0] == 0
    config, resume, init_from = training.calls[0]
    assert (config.train.epochs, config.model.name, resume, init_from) == (3, "fm", None, None)


def test_resume_takes_the_config_of_the_run(shell: Shell, training: fake_training.types.ModuleType) -> None:
    shell("train", "clicks.yaml", "epochs=3")
    Path("clicks.yaml").unlink()
    assert shell("train", "--resume", "last", "epochs=4")[0] == 0
    config, resume, _ = training.calls[1]
    assert (config.name, config.train.epochs) == ("shop", 4)
    assert resume == catalog.find("last")
    assert len(catalog.list_runs("runs")) == 1


@pytest.mark.parametrize("more", [(), ("clicks.yaml",), ("epochs=2",)])
def test_resuming_a_run_that_went_to_its_end_says_that_nothing_is_left(
    shell: Shell, training: fake_training.types.ModuleType, more: tuple[str, ...]
) -> None:
    shell("train", "clicks.yaml", "epochs=3")
    folder = catalog.find("last")
    run_folder.write_json(folder / "report.json", {"auc": 0.7})
    if more == ("clicks.yaml",):
        more = ("clicks.yaml", "epochs=3")
    code, out, err = shell("train", *more, "--resume", "last", "--json", "out.json")
    assert (code, err) == (0, "")
    assert out == (
        f"Run {folder} is finished; nothing is left to train. To train longer: --resume {folder} train.epochs=N; "
        f"to start a new run with its embeddings: --init-from {folder}\n"
    )
    assert json.loads(Path("out.json").read_text()) == {"auc": 0.7}
    assert len(training.calls) == 1
    assert run_folder.read(folder).state == "done"


def test_more_patience_or_a_run_that_was_stopped_goes_on(
    shell: Shell, training: fake_training.types.ModuleType
) -> None:
    shell("train", "clicks.yaml", "epochs=3", "data.valid=clicks.csv")
    shell("train", "--resume", "last", "train.early_stopping={patience: 5}")
    assert len(training.calls) == 2
    folder = catalog.find("last")
    run_folder.claim(folder)
    run_folder.finish(folder, "stopped")
    shell("train", "--resume", "last")
    assert len(training.calls) == 3


def test_init_from_names_a_run(shell: Shell, training: fake_training.types.ModuleType) -> None:
    shell("train", "clicks.yaml")
    first = catalog.find("last")
    assert shell("train", "clicks.yaml", "--init-from", "last")[0] == 0
    assert training.calls[1][2] == first


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "name a config: gearshift train clicks.yaml (gearshift init FILE writes one)"),
        (("epochs=2",), "name a config: gearshift train clicks.yaml (gearshift init FILE writes one)"),
        (("clicks.csv",), "clicks.csv is data, not a config; write one for it: gearshift init clicks.csv"),
        (("other.yaml",), "no such config: other.yaml. (here: clicks.yaml)"),
        (("clicks.yaml", "epoch=2"), "epoch=2: unknown key `epoch`. Did you mean `epochs`? (docs/config.md lists all "),
        (("clicks.yaml", "data.train=x.csv"), "data.train=x.csv: data.train matches no file: x.csv"),
        (("clicks.yaml", "--json", "no/out.json"), "cannot write no/out.json: there is no folder no/"),
        (("--resume", "last"), "no run `last`: there are no runs in runs/ yet; start one: gearshift train CONFIG"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_exit_2(
    shell: Shell, training: object, arguments: tuple[str, ...], sentence: str
) -> None:
    code, out, err = shell("train", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(sentence)
    assert err.count("\n") == 1


def test_a_run_that_fails_is_a_sentence_too(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_training.module(failure="loss became NaN at step 5. Try optimizer.dense.lr=5e-4")
    monkeypatch.setitem(sys.modules, "gearshift.config.build", module)
    code, _, err = shell("train", "clicks.yaml")
    assert (code, err) == (2, "loss became NaN at step 5. Try optimizer.dense.lr=5e-4\n")


def start(folder: Path) -> subprocess.Popen[str]:
    """`gearshift train` in a process of its own, with a run that takes long; returns once it is at work."""
    process = subprocess.Popen(
        [sys.executable, str(FAKE), "train", "clicks.yaml"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(FAKE.parents[3])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "Data   1 file\n"
    process.stdout.readline()
    time.sleep(0.2)  # the header comes just before the signal handlers
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_stops_after_the_step_and_says_how_to_resume(
    folder: Path, number: int, code: int
) -> None:
    process = start(folder)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    (record,) = catalog.list_runs(folder / "runs")
    assert process.returncode == code
    assert err == ""
    lines = out.splitlines()
    assert lines[0].startswith("Stopping after this step ...")
    assert lines[-1].startswith("Saved step ")
    assert lines[-1].endswith(f". Resume: gearshift train --resume runs/{record.name}")
    assert record.state == "stopped"


def test_the_second_ctrl_c_quits_at_once(folder: Path) -> None:
    stubborn = FAKE.read_text().replace("self._stop.set()", "pass").replace('"__main__"', '"__main__"')
    (folder / "stubborn.py").write_text(stubborn)
    process = subprocess.Popen(
        [sys.executable, "stubborn.py", "train", "clicks.yaml"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline().startswith("Stopping")
    assert process.poll() is None  # it does not stop by itself
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    (record,) = catalog.list_runs(folder / "runs")
    assert record.state == "failed"
    process.communicate()
