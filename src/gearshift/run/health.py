"""The health of a run: the time of its last step, the age of its newest checkpoint, and what it is recovering from.

The run's thread reports events to it; it records the state in the run's folder, and each fault with its cost.
A fault is recorded at once; its cost follows: the time from the last step before it to the first step after it, or to
the last save, or to the end of the run. Does not depend on torch or engines.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from gearshift.run import folder as run_folder
from gearshift.run import log as run_log
from gearshift.run import ownership
from gearshift.run.log import Fault, Kind
from gearshift.run.state import State

STATES: dict[str, State] = {
    "starting": "starting",
    "training": "running",
    "evaluating": "running",
    "saving": "saving",
}  # by phase of a run
AFTER_TRAINING = ("saving", "evaluating")  # phases in which no step is made


class Health:
    def __init__(self) -> None:
        self._folder: Path | None = None
        self._lease: ownership.OwnershipLease | None = None
        self.phase = "starting"  # of the run: training, evaluating, saving, done, stopped or failed
        self._stepped_at = time.monotonic()
        self._saved_at: float | None = None
        self._open: list[Fault] = []  # faults after which no step was made yet
        self._booked = 0.0  # seconds without a step that have been recorded already
        self._rewound = 0  # open faults from before the latest return to a checkpoint
        self.failed_saves = 0

    def begin(self, folder: Path, resumed: Path | None = None) -> None:
        """`resumed` is the checkpoint that the run continues from."""
        self._folder, self._lease = folder, ownership.held(folder)
        if self._open:  # an earlier owner was lost before it started or while it was recovering
            self._stepped_at = min(self._stepped_at, time.monotonic() - run_log.seconds_open(folder))
        else:
            self._stepped_at = time.monotonic()
        for fault in self._open:
            self._record(fault)
        self.failed_saves = run_log.totals(folder).failed_saves
        if resumed is not None:  # only for reports: it trusts the clock of a file server
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
        self._recovered()
        return {**run_log.totals(self._folder).as_json(), "checkpoint_age_seconds": self.checkpoint_age}

    @property
    def is_recovering(self) -> bool:
        return bool(self._open)

    def enters(self, phase: str) -> None:
        """The run enters another phase. Only a step, or a phase after the last step, ends a recovery."""
        self.phase = phase
        if phase in AFTER_TRAINING:
            self._settle()
        if not self._open:
            self._stepped_at = time.monotonic()
            if self._folder is not None:
                run_folder.set_state(self._folder, STATES[phase])

    def recovers(
        self,
        kind: Kind,
        role: str,
        number: int = 0,
        *,
        reason: str,
        action: str,
        seconds_before: float = 0.0,
        redone_steps: int = 0,
    ) -> None:
        """Something was lost, and `seconds_before` with it: the state is `recovering` until the next step."""
        self._stepped_at -= seconds_before
        fault = Fault(kind, role, number, reason, action, redone_steps=redone_steps, open=True)
        self._open.append(fault)
        if self._folder is not None:
            self._record(fault)
            run_folder.set_state(self._folder, "recovering", f"{reason}; {action}")

    def redoes(self, steps: int) -> None:
        """A shard was lost and the run returned to a checkpoint: these steps are repeated.

        A shard that is known to be lost explains one such return; another return means another loss.
        """
        assert self._folder is not None
        if not any(fault.role == "shard" for fault in self._open[self._rewound :]):
            self.recovers("lost", "shard", reason="a shard was lost", action="it was restarted")
        last = next(fault for fault in reversed(self._open) if fault.role == "shard")
        self._rewound = len(self._open)
        run_log.record(self._folder, Fault("cost", "shard", last.number, redone_steps=steps, open=True))

    def stepped(self) -> None:
        """A step was made. Raises `ownership.Fenced` if another process owns the run now."""
        self._recovered()
        self._stepped_at = time.monotonic()
        if self._lease is not None and self._lease.lost:
            raise ownership.Fenced(self._lease.lost)

    def ends(self, how: Literal["done", "stopped", "failed"]) -> None:
        """The run has ended, possibly before it recovered: writes the cost of its faults."""
        self.phase = how
        self._settle()

    def _record(self, fault: Fault) -> None:
        """Writes a fault at once, with the time lost until now: this process may be lost next."""
        assert self._folder is not None
        run_log.record(self._folder, replace(fault, seconds_lost=self._seconds_to_book(), time=time.time()))

    def _seconds_to_book(self) -> float:
        """Faults share the time without a step: each is charged the time since the previous one."""
        seconds = self.seconds_since_step - self._booked
        self._booked += seconds
        return seconds

    def _recovered(self) -> None:
        if self._open:
            self._settle()
            assert self._folder is not None
            run_folder.set_state(self._folder, STATES.get(self.phase, "running"))

    def _settle(self) -> None:
        """The rest of the lost time is charged to the last fault."""
        if self._open and self._folder is not None:
            last = self._open[-1]
            cost = Fault("cost", last.role, last.number, seconds_lost=self._seconds_to_book())
            run_log.record(self._folder, cost)
            self._open, self._booked, self._rewound = [], 0.0, 0
            self._stepped_at = time.monotonic()

    def saved(self) -> None:
        self._saved_at = time.monotonic()

    def save_failed(self, reason: str) -> None:
        self.failed_saves += 1
        if self._folder is not None:
            run_log.record(self._folder, Fault("save failed", "run", reason=reason))
