"""Figures as Prometheus text: its grammar, its names, and where they come from."""

from __future__ import annotations

import http.client
import math
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gearshift.cli import app as cli
from gearshift.cli.metrics import TYPE, server
from gearshift.run import control_socket_server, prometheus
from gearshift.run import folder as run_folder
from gearshift.run.status import Status
from tests.unit.run.test_control_socket import Fake

STATUS = Status(812, 410_000, 1_000_000, 10.5, 41_000.25, 0.13, math.nan, None, "training")
PROCESSES = {
    "coordinator-0": {"sent_bytes": 10, "workers": 2, "restarts": 1},
    "worker-0": {"sent_bytes": 100, "waited_seconds": 0.25, "restarts": 0},
    "worker-1": {"sent_bytes": 200, "waited_seconds": 1e-7, "restarts": 3},
    "shard-0": {"tier/lookups/user": 50.0, "tier/lookups/ad": 7.0, "tier/loads/user": 3.0, "tier_reads": 2.0},
}
SAMPLE = re.compile(
    r'gearshift_[a-z_]+\{[a-z]+="(?:[^"\\\n]|\\[\\"n])*"(?:,[a-z]+="(?:[^"\\\n]|\\[\\"n])*")*\} (\S+)'
)


def test_every_line_is_of_the_format_and_every_name_has_one_type() -> None:
    text = prometheus.text('odd"name\\\n', STATUS, PROCESSES)
    assert text.endswith("\n") and "\n\n" not in text
    typed: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split(" ")
            assert kind == ("counter" if name.endswith("_total") else "gauge")
            typed.append(name)
        elif not line.startswith("# HELP gearshift_"):
            found = SAMPLE.fullmatch(line)
            assert found and math.isfinite(float(found[1])), line
            assert line.startswith(typed[-1] + "{"), "samples stand below their type"
    assert len(typed) == len(set(typed))


def test_it_has_the_examples_that_were_computed_a_second_time() -> None:
    text = prometheus.text("shop", replace(STATUS, duplicated=512), {})
    assert 'gearshift_duplicated_examples{run="shop"} 512\n' in text


def test_the_parser_of_prometheus_reads_it() -> None:
    text = prometheus.text('odd"name\\\n', STATUS, PROCESSES) + prometheus.state_text("shop", "running")
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["gearshift_step", ("run", 'odd"name\\\n')] == 812
    worker = (("number", "1"), ("role", "worker"), ("run", 'odd"name\\\n'))
    assert found["gearshift_waited_seconds_total", *worker] == 1e-7
    assert found["gearshift_state", ("run", "shop"), ("state", "running")] == 1
    assert len(found) == sum(not line.startswith("#") for line in text.splitlines())


def test_what_it_says() -> None:
    lines = prometheus.text("shop", STATUS, PROCESSES).splitlines()
    assert 'gearshift_step{run="shop"} 812' in lines
    assert 'gearshift_examples_per_second{run="shop"} 41000.25' in lines
    assert not any("auc" in line for line in lines), "it is not known yet"
    at = lines.index('gearshift_sent_bytes_total{run="shop",role="coordinator",number="0"} 10')
    assert lines[at - 1] == "# TYPE gearshift_sent_bytes_total counter"
    assert lines[at + 1 : at + 3] == [
        'gearshift_sent_bytes_total{run="shop",role="worker",number="0"} 100',
        'gearshift_sent_bytes_total{run="shop",role="worker",number="1"} 200',
    ]
    assert 'gearshift_waited_seconds_total{run="shop",role="worker",number="1"} 1e-07' in lines
    assert 'gearshift_workers{run="shop",role="coordinator",number="0"} 2' in lines
    assert not any("role" in line for line in prometheus.text("shop", STATUS, {}).splitlines())
    shard = 'run="shop",role="shard",number="0"'
    assert f'gearshift_tier_table_lookups_total{{{shard},table="user"}} 50' in lines
    assert f'gearshift_tier_table_loads_total{{{shard},table="user"}} 3' in lines
    assert not any("tier_table_misses" in line for line in lines), "no process has it"


def test_metrics_lines_have_sums_by_role() -> None:
    found = prometheus.figures_by_role(PROCESSES)
    assert found["worker_sent_bytes"] == 300 and found["coordinator_sent_bytes"] == 10
    assert found["worker_restarts"] == 3 and found["coordinator_workers"] == 2
    assert prometheus.figures_by_role({}) == {}


class Busy(Fake):
    def processes(self) -> dict[str, dict[str, float]]:
        return PROCESSES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    made = run_folder.create("runs", "shop")
    close = control_socket_server.serve(made, Busy())
    yield made
    close()


def test_metrics_prints_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["metrics"]) == 0
    status = Busy().status()
    expected = prometheus.text(folder.name, status, PROCESSES)
    assert capsys.readouterr().out == expected + prometheus.state_text(folder.name, "starting")
    run_folder.finish(folder, "done")
    assert cli.run(["metrics"]) == 2
    assert "`metrics` needs a live run" in capsys.readouterr().err
    assert cli.run(["metrics", "--port", "0"]) == 2


def test_metrics_are_served_on_this_machine_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server(folder, 0) as listening:
        assert listening.server_address[0] == "127.0.0.1"
        threading.Thread(target=listening.serve_forever, daemon=True).start()

        def get(path: str) -> tuple[int, str | None, str]:
            asked = http.client.HTTPConnection("127.0.0.1", listening.server_port, timeout=10)
            asked.request("GET", path)
            said = asked.getresponse()
            return said.status, said.getheader("Content-Type"), said.read().decode()

        figures = prometheus.text(folder.name, Busy().status(), PROCESSES)
        assert get("/metrics") == (200, TYPE, figures + prometheus.state_text(folder.name, "starting"))
        assert get("/healthz")[::2] == (200, "healthy\n")
        assert get("/secrets")[0] == 404
        assert cli.run(["metrics", "--port", str(listening.server_port)]) == 2
        assert "choose another --port" in capsys.readouterr().err
        run_folder.finish(folder, "failed", "no space left")
        code, _, text = get("/metrics")
        assert code == 200 and f'gearshift_state{{run="{folder.name}",state="failed"}} 1' in text
        assert "gearshift_step" not in text
        assert get("/healthz")[::2] == (503, "failed no space left\n")
        (folder / run_folder.RUN).unlink()
        assert get("/metrics")[0] == 503
        listening.shutdown()
