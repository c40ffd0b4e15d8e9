"""`gearshift status`: the health of a run, for people, scripts and probes.

With `--exit-code` the exit code also shows the health:

    0   healthy: starting, running, saving, or done      5   failed
    3   recovering                                       6   stopped (it can be resumed)
    4   stalled: no step for too long, or no answer      7   unknown: on another machine, no heartbeat seen yet

Every command ends with 2 if it was called incorrectly, for example with a run that does not exist.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from gearshift.cli import terminal
from gearshift.cli.control import run_of
from gearshift.errors import UserError
from gearshift.run import control_socket, ownership
from gearshift.run import folder as run_folder
from gearshift.run import log as run_log
from gearshift.run.attached_run import RemoteRun
from gearshift.run.polling import seen
from gearshift.run.state import Watcher
from gearshift.run.status import Status

Health = Literal["healthy", "recovering", "stalled", "failed", "stopped", "unknown"]
EXIT_CODES: dict[Health, int] = {
    "healthy": 0,
    "recovering": 3,
    "stalled": 4,
    "failed": 5,
    "stopped": 6,
    "unknown": 7,
}
STALLED_SECONDS = 300.0
DECIDED_SECONDS = ownership.LAPSE_SECONDS + 2.0  # after this time no run's state is unknown


@dataclass(frozen=True)
class Answer:
    record: run_folder.RunRecord
    health: Health
    why: str = ""
    status: Status | None = None  # of a run that responds

    def as_json(self) -> dict[str, Any]:
        record, standing = self.record, self.record.standing
        values = {"run": record.name, "folder": str(record.folder), "health": self.health, "why": self.why}
        values |= {"state": record.state, "reason": record.reason, "what": standing.what}
        totals = run_log.totals(record.folder).as_json()
        return {**values, "since": standing.since, **totals, **(asdict(self.status) if self.status else {})}


def status(
    run: str, *, exit_code: bool, stalled_after: float, json_file: Path | None, wait: bool = False
) -> int:
    """`wait`: wait until heartbeats show whether a run on another machine is dead."""
    answer = look(run_of(run), stalled_after, DECIDED_SECONDS if wait else None)
    if json_file is not None:
        run_folder.export_json(json_file, answer.as_json())
    for line in _lines(answer):
        terminal.say(line)
    return EXIT_CODES[answer.health] if exit_code else 0


def look(
    folder: Path,
    stalled_after: float = STALLED_SECONDS,
    watch: float | None = None,
    watchers: dict[Path, Watcher] | None = None,
) -> Answer:
    """Watch a run on another machine for at most this many seconds, with these `watchers`."""
    (record,) = seen([run_folder.read(folder)], watch, watchers)
    match record.state:
        case "done":
            return Answer(record, "healthy")
        case "failed" | "damaged":
            return Answer(record, "failed", record.reason)
        case "stopped":
            return Answer(record, "stopped", record.reason)
        case "unknown":
            return Answer(record, "unknown", record.reason)
    if not record.standing.answers:  # it is recovering, or its owner is on another machine
        return Answer(
            record, "recovering" if record.state == "recovering" else "healthy", record.standing.what
        )
    try:
        status = RemoteRun(folder).status()
    except control_socket.NotLive as error:  # it is just starting or ending, or has no socket
        return Answer(record, "healthy", str(error))
    except UserError as error:
        return Answer(record, "stalled", str(error))
    return _judged(record, status, stalled_after)


def _judged(record: run_folder.RunRecord, status: Status, stalled_after: float) -> Answer:
    if record.state == "recovering":
        return Answer(record, "recovering", record.standing.what, status)
    if status.phase == "training" and status.seconds_since_step > stalled_after:
        return Answer(record, "stalled", f"no step for {status.seconds_since_step:.0f} s", status)
    return Answer(record, "healthy", "", status)


def _lines(answer: Answer) -> list[str]:
    record, status = answer.record, answer.status
    since = control_socket.clock(record.standing.since)
    why = answer.why or record.reason
    lines = [f"run         {record.folder}", f"state       {record.state}{since}{f' ({why})' if why else ''}"]
    if answer.health == "stalled":
        lines.append(f"health      stalled: {answer.why}")
    if status is not None:
        lines += [
            f"step        {status.step:,}, {_seconds(status.seconds_since_step)} ago; "
            f"{status.examples_per_second:,.0f} ex/s",
            f"checkpoint  {_seconds(status.checkpoint_age)} old; {status.failed_saves or 'no'} failed saves",
            f"workers     {status.missing_workers or 'none'} missing",
        ]
    totals = run_log.totals(record.folder)
    if totals.faults or totals.restarts:
        by_role = ", ".join(f"{role} {count}" for role, count in totals.restarts.items()) or "none"
        lines.append(
            f"faults      {totals.faults}; restarts: {by_role}; {totals.redone_steps:,} steps repeated, "
            f"{totals.seconds_lost:.1f} s lost"
        )
    return lines


def _seconds(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f} s"
