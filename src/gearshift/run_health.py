"""How a run is, from the inside: when it made its last step, how old its newest checkpoint is, what it recovers from.

The run's own thread tells it what happens; it records the state in the run's folder, and each fault with what it cost.
A fault costs the time from the last step before it to the first step after it. Knows no torch and no engine.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from gearshift import lease, run_folder, run_log
from gearshift.run_log import Fault, Kind
from gearshift.run_state import State

STATES: dict[str, State] = {
    "starting": "starting",
    "training": "running",
    "evaluating": "running",
    "saving": "saving",
}  # by phase of a run


class Health:
    def __init__(self) -> None:
        self._folder: Path | None = None
        self._lease: lease.Lease | None = None
        self._phase = "starting"
        self._stepped_at = time.monotonic()
        self._saved_at: float | None = None
        self._faults: list[Fault] = []  # that no step followed yet
        self.failed_saves = 0

    def begin(self, folder: Path, resumed: Path | None = None) -> None:
        """`resumed` is the checkpoint that the run goes on from."""
        self._folder, self._lease = folder, lease.held(folder)
        if not self._faults:  # else it was lost before it began
            self._stepped_at = time.monotonic()
        self.failed_saves = run_log.totals(folder).failed_saves
        if resumed is not None:  # a figure: it may trust the clock of a file server
            self._saved_at = time.monotonic() - max(0.0, time.time() - resumed.stat().st_mtime)

    @property
    def seconds_since_step(self) -> float:
        return time.monotonic() - self._stepped_at

    @property
    def checkpoint_age(self) -> float:
        """NaN before the first one."""
        return float("nan") if self._saved_at is None else time.monotonic() - self._saved_at

    def totals(self) -> dict[str, Any]:
        """For the report: what broke since the run was started or resumed, and what it cost."""
        assert self._folder is not None
        return {**run_log.totals(self._folder).as_json(), "checkpoint_age_seconds": self.checkpoint_age}

    @property
    def is_recovering(self) -> bool:
        return bool(self._faults)

    def enters(self, phase: str) -> None:
        """Another phase of the run."""
        self._phase = phase
        if not self._faults:
            self._stepped_at = time.monotonic()
            if self._folder is not None:
                run_folder.set_state(self._folder, STATES[phase])

    def recovers(
        self, kind: Kind, role: str, number: int = 0, *, reason: str, action: str, seconds_before: float = 0.0
    ) -> None:
        """Something was lost: the state is `recovering` until the next step. `seconds_before` were lost already."""
        self._stepped_at -= seconds_before
        fault = Fault(kind, role, number, reason, action)
        if any((known.kind, known.role, known.number) == (kind, role, number) for known in self._faults):
            return
        self._faults.append(fault)
        if self._folder is not None:
            run_folder.set_state(self._folder, "recovering", f"{reason}; {action}")

    def redoes(self, steps: int) -> None:
        """The run went back to a checkpoint: these steps are made again."""
        if self._faults:
            last = self._faults[-1]
            self._faults[-1] = replace(last, redone_steps=last.redone_steps + steps)

    def stepped(self) -> None:
        """A step was made. Raises `lease.Fenced` if another process owns the run now."""
        if self._faults:
            self._recovered()
        self._stepped_at = time.monotonic()
        if self._lease is not None and self._lease.lost:
            raise lease.Fenced(self._lease.lost)

    def _recovered(self) -> None:
        """The faults cost this time together: it is booked on the last of them."""
        assert self._folder is not None
        *others, last = self._faults
        self._faults = []
        for fault in (*others, replace(last, seconds_lost=self.seconds_since_step)):
            run_log.record(self._folder, fault)
        run_folder.set_state(self._folder, STATES.get(self._phase, "running"))

    def saved(self) -> None:
        self._saved_at = time.monotonic()

    def save_failed(self, reason: str) -> None:
        self.failed_saves += 1
        if self._folder is not None:
            run_log.record(self._folder, Fault("save failed", "run", reason=reason))
