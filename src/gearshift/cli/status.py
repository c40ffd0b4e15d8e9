"""`gearshift status`: the health of a run, for people, scripts and probes.

With `--exit-code` the exit code also shows the health:

    0   healthy: starting, running, saving, or done      5   failed
    3   recovering                                       6   stopped (it can be resumed)
    4   stalled: no step for too long, or no answer      7   unknown: on another machine, no heartbeat seen yet

Every command ends with 2 if it was called incorrectly, for example with a run that does not exist.
"""

from __future__ import annotations

import math
from pathlib import Path

from gearshift.cli import terminal
from gearshift.cli.control import run_of
from gearshift.run import control_socket
from gearshift.run import folder as run_folder
from gearshift.run import log as run_log
from gearshift.run.health_check import DECIDED_SECONDS, HealthReport, HealthState, check_health

EXIT_CODES: dict[HealthState, int] = {
    "healthy": 0,
    "recovering": 3,
    "stalled": 4,
    "failed": 5,
    "stopped": 6,
    "unknown": 7,
}


def status(
    run: str, *, exit_code: bool, stalled_after: float, json_file: Path | None, wait: bool = False
) -> int:
    """`wait`: wait until heartbeats show whether a run on another machine is dead."""
    report = check_health(run_of(run), stalled_after, DECIDED_SECONDS if wait else None)
    if json_file is not None:
        run_folder.export_json(json_file, report.as_json())
    for line in _lines(report):
        terminal.say(line)
    return EXIT_CODES[report.health] if exit_code else 0


def _lines(report: HealthReport) -> list[str]:
    record, status = report.record, report.status
    since = control_socket.clock(record.standing.since)
    why = report.why or record.reason
    lines = [f"run         {record.folder}", f"state       {record.state}{since}{f' ({why})' if why else ''}"]
    if report.health == "stalled":
        lines.append(f"health      stalled: {report.why}")
    if status is not None:
        lines += [
            f"step        {status.step:,}, {_seconds(status.seconds_since_step)} ago; "
            f"{status.examples_per_second:,.0f} ex/s",
            f"checkpoint  {_seconds(status.checkpoint_age)} old; failed saves: {status.failed_saves or 'none'}",
            f"workers     {status.missing_workers or 'none'} missing",
        ]
    totals = run_log.totals(record.folder)
    if totals.faults or totals.restarts:
        by_role = ", ".join(f"{role} {count}x" for role, count in totals.restarts.items()) or "none"
        lines.append(
            f"faults      {totals.faults}; restarts: {by_role}; {totals.redone_steps:,} steps repeated, "
            f"{totals.seconds_lost:.1f} s lost"
        )
    return lines


def _seconds(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f} s"
