"""`gearshift switch`, `resize`, `stop` and `checkpoint`: send a request to a live run and print the result."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from gearshift.cli import terminal
from gearshift.errors import UserError
from gearshift.run import catalog, control_socket
from gearshift.run import folder as run_folder
from gearshift.run.attached_run import RemoteRun
from gearshift.run.run_handle import RunHandle

STOP_SECONDS = 120.0  # time to write a checkpoint


def switch(words: list[str], *, reason: str) -> None:
    """`words`: optionally a run, then a strategy, then settings as key=value."""
    named = [word for word in words if "=" not in word]
    if len(named) not in (1, 2):
        raise UserError("name a run and a strategy: gearshift switch last gba max_lag=4")
    run = attached(named[0] if len(named) == 2 else "last")
    settings = dict(_setting(word) for word in words if "=" in word)
    control_socket.refuse_reserved(named[-1], settings)
    done = run.switch(named[-1], reason=reason, **settings)
    in_flight = "1 batch" if done.adopted == 1 else f"{done.adopted:,} batches"
    terminal.say(
        f"switched {run.folder.name} from {done.before} to {done.strategy} after step {done.step:,} "
        f"in {done.seconds:.1f} s; {in_flight} in flight carried over, {done.discarded or 'none'} lost"
    )


def resize(run: str, workers: int) -> None:
    attached_run = attached(run)
    attached_run.resize(workers)
    count = "1 worker" if workers == 1 else f"{workers} workers"
    terminal.say(f"{attached_run.folder.name} continues with {count}; the global batch does not change")


def stop(run: str) -> None:
    attached_run = attached(run)
    attached_run.stop()
    folder = attached_run.folder
    until = time.monotonic() + STOP_SECONDS
    while (record := run_folder.read(folder)).is_live:
        if time.monotonic() > until:
            raise UserError(
                f"{folder.name} has not stopped after {STOP_SECONDS:g} s; "
                "the step may be slow or the checkpoint large: check again with `gearshift runs`"
            )
        time.sleep(0.1)
    if record.state != "stopped":
        raise UserError(f"{folder.name} {record.state} before it could stop. {record.reason}".rstrip())
    terminal.say(f"stopped {folder.name}; saved. Resume: gearshift train --resume {folder}")


def checkpoint(run: str) -> None:
    asked = attached(run)
    asked.checkpoint()
    folder, step = asked.folder, asked.status().step
    terminal.say(
        f"{folder.name} saves a checkpoint after its next step (now at step {step:,}), in {folder}/checkpoints"
    )


def attached(name: str) -> RunHandle:
    return RemoteRun(run_of(name))


def run_of(name: str) -> Path:
    folder = catalog.find(name)
    return folder.resolve() if folder.is_symlink() else folder


def _setting(word: str) -> tuple[str, Any]:
    key, _, text = word.partition("=")
    plain = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in plain:
        return key, plain[text.lower()]
    for kind in (int, float):
        try:
            return key, kind(text)
        except ValueError:
            continue
    return key, text
