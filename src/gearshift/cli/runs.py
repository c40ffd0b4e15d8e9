"""`gearshift runs`: the runs of a folder, newest first."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gearshift.cli import terminal
from gearshift.errors import UserError
from gearshift.run import catalog, control_socket
from gearshift.run import folder as run_folder
from gearshift.run.polling import seen

_AUCS = ("auc", "valid_auc", "auc_so_far")  # the best known AUC
_HEADS = ("RUN", "STATE", "STRATEGY", "STEP", "EX/S", "AUC", "STARTED", "")


def runs(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}/ with runs; start one: gearshift train CONFIG")
    records = catalog.list_runs(folder)
    if not records:
        raise UserError(f"there are no runs in {folder}/ yet; start one: gearshift train CONFIG")
    rows = [_row(record, time.time()) for record in seen(records)]
    terminal.say(terminal.table(_HEADS, rows, right="lllrrrll"))


def _row(record: run_folder.RunRecord, now: float) -> tuple[str, ...]:
    known = figures(record.folder)
    speed = known.get("examples_per_second")
    return (
        record.name,
        record.state,
        str(known.get("strategy", "-")),
        terminal.count(known["step"]) if "step" in known else "-",
        terminal.count(speed) if speed is not None else "-",
        terminal.figure(next((known[key] for key in _AUCS if key in known), None)),
        terminal.ago(now - record.started),
        _why(record),
    )


def _why(record: run_folder.RunRecord) -> str:
    """Why the run ended, where it runs, or what it is recovering from."""
    if record.state != "recovering":
        return record.reason
    return f"{control_socket.clock(record.standing.since)}: {record.standing.what}".strip(" :")


def figures(folder: Path) -> dict[str, Any]:
    """The newest metrics: the report of a run that ended, otherwise its last measurements."""
    known: dict[str, Any] = {}
    before: dict[str, Any] = {}
    saved = _saved_step(folder)
    for line in run_folder.metrics(folder):
        known |= {key: value for key, value in {**_speed(before, line), **line}.items() if value is not None}
        before = line
    with suppress(OSError, ValueError):  # absent or damaged
        final = json.loads((folder / run_folder.REPORT).read_text())
        if final.get("global_steps", 0) >= saved:  # otherwise the run continued after it
            known |= {key: value for key, value in final.items() if value is not None}
            known["step"] = final.get("global_steps", known.get("step", 0))
    if saved > known.get("step", -1):  # measurements are ten seconds apart
        known["step"] = saved
    return known


def _saved_step(folder: Path) -> int:
    """The step of the newest checkpoint; -1 if there is none."""
    with suppress(OSError, ValueError):
        return int((folder / run_folder.CHECKPOINTS / "last").resolve(strict=True).name.removeprefix("step-"))
    return -1


def _speed(before: dict[str, Any], line: dict[str, Any]) -> dict[str, float]:
    """Examples per second between two measurements."""
    if not {"time", "examples"} <= before.keys() & line.keys() or line["time"] <= before["time"]:
        return {}
    examples = line["examples"] - before["examples"]
    return {"examples_per_second": examples / (line["time"] - before["time"])} if examples > 0 else {}
