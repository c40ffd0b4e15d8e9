"""`gearshift watch`: shows a live run of another process as `gearshift train` does, until it ends."""

from __future__ import annotations

import json
import time
from pathlib import Path

from gearshift.cli import terminal
from gearshift.cli.control import run_of
from gearshift.cli.progress import progress
from gearshift.cli.train import TERMINATED, introduce
from gearshift.errors import UserError
from gearshift.run import folder as run_folder
from gearshift.run import interrupts
from gearshift.run.attached_run import RemoteRun
from gearshift.run.folder import RunRecord
from gearshift.run.polling import POLL_SECONDS


def watch(run: str) -> int:
    """Returns the same exit code as `train`: 0 only if the run finished."""
    watched = RemoteRun(run_of(run))
    if (ended := watched.ended()) is not None:
        return _print_end(ended, _sentence(ended))
    try:
        ended = _follow(watched)
    except KeyboardInterrupt:
        terminal.say(f"{watched.folder.name} keeps running; watch it again: gearshift watch {watched.folder}")
        return interrupts.QUIT
    return _print_end(ended, "" if ended.state == "done" else _sentence(ended))


def _follow(watched: RemoteRun) -> RunRecord:
    with progress() as shown:
        introduced = False
        while (ended := watched.ended()) is None:
            messages = watched.messages  # asks the run
            introduced = introduced or introduce(watched.header, shown)
            shown.show(watched.last_status(), messages)
            time.sleep(POLL_SECONDS)
    return ended


def _sentence(ended: RunRecord) -> str:
    at = time.strftime(" at %H:%M", time.localtime(ended.ended)) if ended.ended else ""
    how = {"done": "finished", "stopped": "was stopped and saved"}.get(ended.state, ended.state)
    why = f": {ended.reason}" if ended.reason else ""
    resume = "" if ended.state == "done" else f". Resume: gearshift train --resume {ended.folder}"
    return f"run {ended.name} {how}{at}{why}{resume}"


def _print_end(ended: RunRecord, sentence: str) -> int:
    if ended.state == "failed":
        raise UserError(sentence)
    if sentence:
        terminal.say(sentence)
    if ended.state == "done":
        for line in _closing(ended.folder):
            terminal.say(line)
    return 0 if ended.state == "done" else TERMINATED


def _closing(folder: Path) -> list[str]:
    report = folder / run_folder.REPORT
    if not report.is_file():
        return []
    from gearshift.run.report import closing_lines

    return closing_lines(json.loads(report.read_text()), folder)
