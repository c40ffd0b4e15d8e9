"""The health of a run, for people and probes; and the alert rules for its figures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gearshift.cli import app as cli
from gearshift.run import control_socket_server, prometheus
from gearshift.run import folder as run_folder
from gearshift.run import log as run_log
from gearshift.run.status import Status
from tests.unit.run.test_control_socket import Fake

ALERTS = Path(__file__).parents[3] / "docs" / "alerts.yml"


class Training(Fake):
    since_step = 1.0

    def status(self) -> Status:
        nan = float("nan")
        return Status(
            812, 410_000, 1_000_000, 10.0, 41_000.0, 0.13, nan, None, "training", self.since_step, 42.0, 1, 2
        )


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Training]]:
    monkeypatch.chdir(tmp_path)
    folder, run = run_folder.create("runs", "shop"), Training()
    run_folder.set_state(folder, "running")
    close = control_socket_server.serve(folder, run)
    yield folder, run
    close()


def test_a_healthy_run(
    live: tuple[Path, Training], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, _ = live
    run_log.record(folder, run_log.Fault("start", "shard"))
    run_log.record(folder, run_log.Fault("start", "shard"))
    run_log.record(folder, run_log.Fault("lost", "shard", seconds_lost=2.0, redone_steps=30))
    assert cli.run(["status", "--exit-code", "--json", "status.json"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"state       running since \d\d:\d\d\n", out)
    assert "step        812, 1.0 s ago; 41,000 ex/s" in out
    assert "checkpoint  42.0 s old; failed saves: 1" in out and "workers     2 missing" in out
    assert "faults      1; restarts: shard 1x; 30 steps repeated, 2.0 s lost" in out
    answer = json.loads(Path("status.json").read_text())
    assert (answer["health"], answer["state"], answer["seconds_since_step"]) == ("healthy", "running", 1.0)
    assert (answer["checkpoint_age"], answer["missing_workers"], answer["restarts"]) == (
        42.0,
        2,
        {"shard": 1},
    )


@pytest.mark.parametrize(("how", "code"), [("done", 0), ("failed", 5), ("stopped", 6)])
def test_a_run_that_is_over(live: tuple[Path, Training], how: Any, code: int) -> None:
    run_folder.finish(live[0], how, "no space left" if how == "failed" else None)
    assert cli.run(["status", "--exit-code"]) == code
    assert cli.run(["status"]) == 0  # the question was answered


def test_a_run_that_recovers_or_stalls(
    live: tuple[Path, Training], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, run = live
    run_folder.set_state(folder, "recovering", "shard 1 was silent for 30 s; it is replaced")
    assert cli.run(["status", "--exit-code"]) == 3
    assert "(shard 1 was silent for 30 s; it is replaced)" in capsys.readouterr().out
    run_folder.set_state(folder, "running")
    run.since_step = 400.0
    assert cli.run(["status", "--exit-code"]) == 4
    assert "stalled: no step for 400 s" in capsys.readouterr().out
    assert cli.run(["status", "--exit-code", "--stalled-after", "500"]) == 0


def test_a_run_whose_owner_is_gone_recovers_while_others_of_it_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = (
        "import os; from gearshift.run import ownership as lease, folder as run_folder, process_identity as run_owner\n"
        "folder = run_folder.create('runs', 'shop'); run_folder.set_state(folder, 'running')\n"
        "lease.LeaseKeeper(folder, lease.held(folder).session, 'ray', run_owner.identity(os.getppid()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert cli.run(["status", "--exit-code"]) == 3
    for command in ("status", "runs", "inspect"):
        capsys.readouterr()
        assert cli.run([command]) == 0
        out = capsys.readouterr().out
        assert "recovering" in out and "died and is being restarted" in out and "failed" not in out
    assert cli.run(["switch", "gba"]) == 2
    assert "is recovering since" in capsys.readouterr().err
    next(Path("runs").glob("shop*/lease/keep-ray.json")).unlink()
    assert cli.run(["status", "--exit-code"]) == 5
    assert cli.run(["status", "nobody", "--exit-code"]) == 2


def test_the_alert_rules_are_rules_over_figures_that_exist() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    known = {f"gearshift_{name}" for name, _ in prometheus.OF_THE_RUN.values()} | {"gearshift_state", "up"}
    known |= {f"gearshift_{name}_total" for name in prometheus.COUNTERS}
    known |= {f"gearshift_{name}" for name in prometheus.GAUGES}
    for rule in rules:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule["for"]) and rule["labels"]["severity"] in ("page", "warn")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert set(re.findall(r"gearshift_\w+|\bup\b", rule["expr"])) <= known, rule["alert"]
        assert rule["expr"].count("(") == rule["expr"].count(")")
    covered = " ".join(rule["expr"] for rule in rules)
    for figure in (
        "seconds_since_step",
        "checkpoint_age_seconds",
        "failed_saves",
        "missing_workers",
        "state",
    ):
        assert f"gearshift_{figure}" in covered
