"""The command line itself: help, exit codes, sentences."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from gearshift.cli import app as cli
from gearshift.run import startup_interrupts

COMMANDS = [
    "demo",
    "init",
    "train",
    "evaluate",
    "predict",
    "compare",
    "runs",
    "watch",
    "metrics",
    "switch",
    "stop",
    "checkpoint",
    "delta",
    "apply-delta",
    "simulate",
    "replay",
    "prepare",
    "inspect",
]
HEAVY = ("torch", "numpy", "pyarrow", "yaml", "rich", "gearshift.config")


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"], ["tran"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import sys
from gearshift.cli.app import run
run({arguments!r})
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_help_shows_the_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    out = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in out
    for later in ("export", "serve", "doctor"):
        assert f"\n  {later} " not in out
    headings = [line for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == [
        "Options:",
        "Everyday:",
        "On a run (RUN = folder, beginning of its name, or last):",
        "Tools and experiments:",
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([command, "--help"]) == 0
    assert "Usage: gearshift" in capsys.readouterr().out


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    captured = capsys.readouterr()
    assert cli.run([]) == 0
    assert capsys.readouterr() == captured


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tran", "x"], "no command `tran`. Did you mean `train`? (demo, init, train,"),
        (["xyz"], "no command `xyz`. (demo, init, train,"),
        (["train", "--foo"], "No such option: --foo. See gearshift train --help"),
        (["predict", "last", "x.csv"], "Missing option '-o' / '--output'. See gearshift predict --help"),
    ],
)
def test_usage_mistakes_are_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith(sentence)
    assert err.count("\n") == 1


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", "none.yaml"], debug=True) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("no such config: none.yaml")


def test_a_fault_of_ours_says_so_and_is_not_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("gearshift.cli.runs.runs", broken)
    assert cli.run(["runs"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("internal error: ZeroDivisionError: division by zero (test_app.py:")
    assert "Traceback" not in err
    assert cli.run(["runs"], debug=True) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(28, "No space left on device", "x.csv"), "cannot use x.csv: No space left on device; check"),
        (PermissionError(13, "Permission denied", "x"), "cannot use x: Permission denied; check"),
        (OSError("Opening HDFS file failed.\nDetail: none"), "Opening HDFS file failed. Detail: none"),
    ],
)
def test_what_the_machine_refuses_is_one_sentence(
    error: OSError, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("gearshift.cli.runs.runs", broken)
    assert cli.run(["runs"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(sentence)
    assert err.count("\n") == 1


def test_a_closed_pipe_is_quiet() -> None:
    code = "from gearshift.cli.app import main; import sys; sys.argv = ['gearshift', '--help']; main()"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=30) != 0
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()


@pytest.mark.parametrize(("while_importing", "code"), [(True, 130), (False, 1)])
def test_only_an_import_may_make_another_error_of_ctrl_c(
    while_importing: bool,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "half_there.py").write_text("raise RuntimeError('half of me is there')")
    monkeypatch.syspath_prepend(tmp_path)

    def command(*_: object, **__: object) -> None:
        if while_importing:
            importlib.import_module("half_there")
        raise RuntimeError("the disk of the run is gone")

    monkeypatch.setattr(cli, "app", command)
    monkeypatch.setattr(startup_interrupts, "_received", [2])
    assert cli.run(["train"]) == code
    assert ("the disk of the run is gone" in capsys.readouterr().err) is not while_importing


INTERRUPTED = """
import os, signal, sys
import gearshift.config.build as build
import gearshift.cli.app as app

def interrupted(*arguments, **settings):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            pass
    except BaseException:  # as some libraries write around an optional import
        pass
    return original(*arguments, **settings)

original, {place} = {place}, interrupted
sys.argv = ["gearshift", "train", "clicks.yaml"]
app.main()
"""


@pytest.mark.parametrize(
    ("place", "run_begins"), [("build.build", False), ("build.run_folder.write_config", True)]
)
def test_ctrl_c_during_the_start_is_not_lost(tmp_path: Path, place: str, run_begins: bool) -> None:
    (tmp_path / "clicks.yaml").write_text(
        "data: {synthetic: {examples: 20k}}\ntrain: {global_batch: 64, epochs: 1000}\n"
    )
    code = INTERRUPTED.format(place=place)
    if run_begins:  # the signal is held back there, and nothing is raised
        code = code.replace("        while True:\n            pass\n", "")
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 130, ended.stderr
    assert (tmp_path / "runs").exists() is run_begins
    assert ("was stopped and saved at step" in ended.stdout) is run_begins
