"""Is a run healthy? One verdict for `gearshift status`, probes and other programs that watch a run.

The verdict follows from the run's folder, the heartbeats of its processes and, while it is live, the status that it
reports. What a run records about its own health is in health.py. Does not depend on torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from gearshift.errors import UserError
from gearshift.run import control_socket, ownership
from gearshift.run import folder as run_folder
from gearshift.run import log as run_log
from gearshift.run.attached_run import RemoteRun
from gearshift.run.polling import seen
from gearshift.run.state import Watcher
from gearshift.run.status import Status

HealthState = Literal["healthy", "recovering", "stalled", "failed", "stopped", "unknown"]
STALLED_SECONDS = 300.0
DECIDED_SECONDS = ownership.LAPSE_SECONDS + 2.0  # after this time no run's state is unknown


@dataclass(frozen=True)
class HealthReport:
    """The verdict on a run, with its reason and what it is based on."""

    record: run_folder.RunRecord
    health: HealthState
    why: str = ""
    status: Status | None = None  # of a run that responds

    def as_json(self) -> dict[str, Any]:
        record, standing = self.record, self.record.standing
        values = {"run": record.name, "folder": str(record.folder), "health": self.health, "why": self.why}
        values |= {"state": record.state, "reason": record.reason, "what": standing.what}
        totals = run_log.totals(record.folder).as_json()
        return {**values, "since": standing.since, **totals, **(asdict(self.status) if self.status else {})}


def check_health(
    folder: Path,
    stalled_after: float = STALLED_SECONDS,
    watch: float | None = None,
    watchers: dict[Path, Watcher] | None = None,
) -> HealthReport:
    """Watches the heartbeats of a run on another machine for at most `watch` seconds.

    A caller that asks repeatedly passes the same `watchers` each time: they remember the last heartbeat.
    """
    (record,) = seen([run_folder.read(folder)], watch, watchers)
    match record.state:
        case "done":
            return HealthReport(record, "healthy")
        case "failed" | "damaged":
            return HealthReport(record, "failed", record.reason)
        case "stopped":
            return HealthReport(record, "stopped", record.reason)
        case "unknown":
            return HealthReport(record, "unknown", record.reason)
    if not record.standing.answers:  # it is recovering, or its owner is on another machine
        verdict: HealthState = "recovering" if record.state == "recovering" else "healthy"
        return HealthReport(record, verdict, record.standing.what)
    try:
        status = RemoteRun(folder).status()
    except control_socket.NotLive as error:  # it is just starting or ending, or has no socket
        return HealthReport(record, "healthy", str(error))
    except UserError as error:
        return HealthReport(record, "stalled", str(error))
    return _judged(record, status, stalled_after)


def _judged(record: run_folder.RunRecord, status: Status, stalled_after: float) -> HealthReport:
    if record.state == "recovering":
        return HealthReport(record, "recovering", record.standing.what, status)
    if status.phase == "training" and status.seconds_since_step > stalled_after:
        return HealthReport(record, "stalled", f"no step for {status.seconds_since_step:.0f} s", status)
    return HealthReport(record, "healthy", "", status)
