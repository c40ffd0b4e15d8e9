"""A run of another process, polled through its control socket: its status and messages.

A run on a cluster may be without a coordinator for a while: Ray starts another, whose list of messages starts empty.
Does not import torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gearshift.run import control_socket, ownership
from gearshift.run import folder as run_folder
from gearshift.run.folder import RunRecord
from gearshift.run.state import Watcher
from gearshift.run.status import Status

POLL_SECONDS = 0.25


WATCH_SECONDS = (
    3 * ownership.BEAT_SECONDS
)  # time in which a live run shows a heartbeat; to detect a dead run takes longer


def seen(
    records: Sequence[RunRecord], seconds: float | None = None, watchers: dict[Path, Watcher] | None = None
) -> list[RunRecord]:
    """The records, with the states of runs that only heartbeats can show; all are watched at once.

    A caller that polls keeps the `watchers`: they remember the last heartbeat, so that a dead run is recognized after a
    while, however short each call is.
    """
    seconds = WATCH_SECONDS if seconds is None else seconds
    watchers = {} if watchers is None else watchers
    for record in records:
        if not record.needs_heartbeats:
            watchers.pop(record.folder, None)
        elif record.folder not in watchers:
            watchers[record.folder] = Watcher(record.folder)
    kept, watched, until = dict(watchers), list(records), time.monotonic() + seconds
    while open_ones := [record for record in watched if record.needs_heartbeats]:
        watched = [r.seen_by(kept[r.folder]) if r.needs_heartbeats else r for r in map(_again, watched)]
        if time.monotonic() >= until or all(kept[record.folder].quiet >= seconds for record in open_ones):
            break
        time.sleep(ownership.BEAT_SECONDS / 8)
    return [_not_heard(r, kept[r.folder].quiet) if r.needs_heartbeats else r for r in watched]


def _again(record: RunRecord) -> RunRecord:
    return run_folder.read(record.folder) if record.needs_heartbeats else record


def _not_heard(record: RunRecord, seconds: float) -> RunRecord:
    """The record of a run that may be dead or only slow."""
    why = record.reason or "its owner is gone"
    known = f"no heartbeat for {int(seconds)} s; it counts as failed after {ownership.LAPSE_SECONDS:g} s without one"
    return replace(record, state="unknown", reason=f"{why}; {known}")


class Watched:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.header: tuple[str, ...] = ()  # the lines shown before its start
        self.messages: list[str] = []  # messages for the user, in order
        self.status = Status(0, 0, 0, 0.0, 0.0, math.nan, math.nan, None, "starting")
        self._process = 0  # the process whose messages are counted
        self._seen = 0
        self._watcher = Watcher(folder)

    def look(self) -> None:
        """Polls the run; if it does not answer now, the next call tries again."""
        with suppress(control_socket.NotLive):
            answer = control_socket.ask(self.folder, "watch", seen=self._seen, process=self._process)
            fresh = answer["messages"]
            self._seen = len(fresh) + (self._seen if answer["process"] == self._process else 0)
            self._process = answer["process"]
            self.header, self.status = tuple(answer["header"]), control_socket.status_of(answer["status"])
            self.messages += fresh

    def ending(self) -> run_folder.RunRecord | None:
        """How the run ended; None while it is live or recovering."""
        record = run_folder.read(self.folder)
        if record.ended is not None:
            return record
        if record.state == "unknown":
            control_socket.check_live(self.folder, "watch")  # its reason names the machine
        seen = record.seen_by(self._watcher)
        return None if seen.is_live else seen
