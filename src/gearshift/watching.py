"""A run of another process, seen through its control socket: where it stands, and what it tells.

A run on a cluster may be without a coordinator for a while: Ray starts another, which begins a list of messages of its
own. Knows no torch.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from pathlib import Path

from gearshift import control, run_folder
from gearshift.control import Status

POLL_SECONDS = 0.25
LOST_SECONDS = 60.0  # in which a coordinator that is gone must be there again


class Watched:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.header: tuple[str, ...] = ()  # what it told before it began
        self.messages: list[str] = []  # sentences for the user, in order
        self.status = Status(0, 0, 0, 0.0, 0.0, math.nan, math.nan, None, "starting")
        self._process = 0  # whose messages are counted
        self._seen = 0
        self._heard = time.monotonic()

    def look(self) -> None:
        """Asks the run; one that does not answer just now is asked again the next time."""
        with suppress(control.NotLive):
            said = control.ask(self.folder, "watch", seen=self._seen, process=self._process)
            fresh = said["messages"]
            self._seen = len(fresh) + (self._seen if said["process"] == self._process else 0)
            self._process, self._heard = said["process"], time.monotonic()
            self.header, self.status = tuple(said["header"]), control.status_of(said["status"])
            self.messages += fresh

    def ending(self) -> run_folder.RunRecord | None:
        """How the run ended; None while it lives."""
        record = run_folder.read(self.folder)
        if record.ended is not None:
            return record
        if record.state == "unknown":
            control.check_live(self.folder, "watch")  # says where it is
        return None if record.state == "running" or self._may_come_back() else record

    def _may_come_back(self) -> bool:
        on_cluster = (self.folder / run_folder.CLUSTER).exists()
        return on_cluster and time.monotonic() - self._heard < LOST_SECONDS
