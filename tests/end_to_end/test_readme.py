"""What the README and the tutorial show runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gearshift as gs

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the click log that the documents speak of: `clicks.csv` with `click`, `ts` and ids."""
    folder = tmp_path_factory.mktemp("workplace")
    gs.ClickLog(20_000, days=3).write_csv(folder / "log.csv")
    header, *lines = (folder / "log.csv").read_text().splitlines()
    header = header.replace("time", "ts")
    (folder / "clicks.csv").write_text("\n".join([header, *lines[:15_000]]) + "\n")
    (folder / "clicks-tomorrow.csv").write_text("\n".join([header, *lines[15_000:]]) + "\n")
    labels = {"counts.csv": ("clicks", "0012"), "ratings.csv": ("rating", "1345")}
    for name, (label, values) in labels.items():
        rows = [f"u{i % 7},{values[i % 4]}" for i in range(100)]
        (folder / name).write_text("\n".join([f"user,{label}", *rows]) + "\n")
    events = [f"u{i % 7},{('view', 'view', 'click', 'buy')[i % 4]}" for i in range(100)]
    (folder / "events.csv").write_text("\n".join(["user,event", *events]) + "\n")
    return folder


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.S)


def run(command: list[str], folder: Path) -> str:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def shell_lines(document: str) -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks(document, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("gearshift ")]


@pytest.mark.parametrize("document", ["README.md", "docs/tutorial.md"])
def test_commands(workplace: Path, document: str) -> None:
    commands = shell_lines(document)
    assert len(commands) >= 4
    (workplace / "clicks.yaml").unlink(missing_ok=True)
    for line in commands:
        run(["bash", "-c", line], workplace)


def test_python_example(workplace: Path) -> None:
    example, own_model = blocks("README.md", "python")[:2]
    day = gs.read(workplace / "clicks.csv", gs.infer_schema(workplace / "clicks.csv")).time_range()
    assert day is not None
    split = re.sub(r"2026-11-08", "2026-11-02", example)
    script = (
        f"import torch\nfrom torch import nn\n{split}\n{own_model}\ngs.Trainer().fit(MyNet(schema), train)\n"
    )
    assert re.search(r"^0?\.\d+ \d+", run([sys.executable, "-c", script], workplace), re.M)


@pytest.mark.parametrize("example", ["own_model", "own_loop"])
def test_examples(workplace: Path, example: str) -> None:
    script = f"import sys; sys.path.insert(0, {str(ROOT / 'examples')!r}); import {example}; {example}.main(50_000)"
    assert run([sys.executable, "-c", script], workplace)


def test_own_loop_on_a_csv_with_a_column_to_standardize(workplace: Path) -> None:
    header, *lines = (workplace / "clicks.csv").read_text().splitlines()
    lines = [f"{line},{i % 97 / 10 - 5}" for i, line in enumerate(lines)]
    (workplace / "weather.csv").write_text("\n".join([f"{header},temperature", *lines]) + "\n")
    schema = gs.infer_schema(workplace / "weather.csv")
    assert [f.transform for f in schema.features if f.name == "temperature"] == ["standardize"]
    assert "held-out loss 0." in run(
        [sys.executable, str(ROOT / "examples/own_loop.py"), "weather.csv"], workplace
    )
