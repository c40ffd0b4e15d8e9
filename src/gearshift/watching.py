"""A run of another process, seen through its control socket: where it stands, and what it tells.

A run on a cluster may be without a coordinator for a while: Ray starts another, which begins a list of messages of its
own. Knows no torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gearshift import control, lease, run_folder
from gearshift.control import Status
from gearshift.run_folder import RunRecord
from gearshift.run_state import Watcher

POLL_SECONDS = 0.25


def seen(records: Sequence[RunRecord], seconds: float = 3 * lease.BEAT_SECONDS) -> list[RunRecord]:
    """With the states of runs on other machines, as a few of their heartbeats show them; all at once."""
    watchers = {record.folder: Watcher(record.folder) for record in records if record.is_elsewhere}
    found, until = list(records), time.monotonic() + seconds
    while any(record.is_elsewhere for record in found) and time.monotonic() < until:
        found = [r.seen_by(watchers[r.folder]) if r.is_elsewhere else r for r in map(_again, found)]
        time.sleep(lease.BEAT_SECONDS / 8)
    return found


def _again(record: RunRecord) -> RunRecord:
    return run_folder.read(record.folder) if record.is_elsewhere else record


class Watched:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.header: tuple[str, ...] = ()  # what it told before it began
        self.messages: list[str] = []  # sentences for the user, in order
        self.status = Status(0, 0, 0, 0.0, 0.0, math.nan, math.nan, None, "starting")
        self._process = 0  # whose messages are counted
        self._seen = 0
        self._watcher = Watcher(folder)

    def look(self) -> None:
        """Asks the run; one that does not answer just now is asked again the next time."""
        with suppress(control.NotLive):
            said = control.ask(self.folder, "watch", seen=self._seen, process=self._process)
            fresh = said["messages"]
            self._seen = len(fresh) + (self._seen if said["process"] == self._process else 0)
            self._process = said["process"]
            self.header, self.status = tuple(said["header"]), control.status_of(said["status"])
            self.messages += fresh

    def ending(self) -> run_folder.RunRecord | None:
        """How the run ended; None while it lives or recovers."""
        record = run_folder.read(self.folder)
        if record.ended is not None:
            return record
        if record.state == "unknown":
            control.check_live(self.folder, "watch")  # says where it is
        seen = record.seen_by(self._watcher)
        return None if seen.is_live else seen
