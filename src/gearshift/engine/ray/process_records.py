"""Starts and ends of a run's processes, recorded in its folder: the record outlives every coordinator."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.shared_folder import SharedFolder, read_state, write_state
from gearshift.run import folder as run_folder
from gearshift.run import log as run_log
from gearshift.run import ownership


@dataclass(frozen=True)
class ProcessRecords:
    folder: SharedFolder

    def record_start(self, role: str, number: int) -> None:
        """A process of the run has started: counted in faults.jsonl."""
        run_log.record(self.folder.path, run_log.Fault("start", role, number), session=self.folder.token)

    def record_end(self, role: str, number: int) -> None:
        """The process exited normally: its next start does not count as a restart."""
        run_log.record(self.folder.path, run_log.Fault("end", role, number), session=self.folder.token)

    def starts(self) -> dict[To, int]:
        """Starts of each process since the run was started or resumed, including those under earlier coordinators."""
        known = run_log.totals(self.folder.path).by_member
        return {
            To(role, int(number)): 1 + again
            for who, again in known.items()
            for role, _, number in [who.rpartition("-")]
        }

    def log(self, text: str) -> None:
        """Writes text to run.log that is too long for a message."""
        run_log.write(self.folder.path, text, session=self.folder.token)

    def new_start(self, pid: int, node: str, restarted: bool) -> int:
        """Records a start of the coordinator's process. Returns the number of this start."""
        folder = self.folder
        if restarted and not folder.is_seen():
            folder.check_not_taken()
            raise FileNotFoundError(errno.ENOENT, "the run's folder is gone", str(folder.path))
        state = read_state(folder.path)
        number = int(state.get("start", 0)) + 1
        seen = folder.path.is_dir() and state.get("token", folder.token) == folder.token
        if seen and folder.taken_by() is None:  # if not, `ProcessContext.enter` raises the reason
            write_state(folder.path, start=number, pid=pid, node=node)
            self.record_start("coordinator", 0)
        return number

    def restarts(self) -> int:
        """Restarts of the coordinator since the run was started or resumed."""
        state = read_state(self.folder.path)
        return max(0, int(state.get("start", 1)) - int(state.get("starts_before", 0)) - 1)

    def record_failure(self, reason: str) -> None:
        """Records a failure of the coordinator before its run began, unless the run has ended or has another owner."""
        path = self.folder.path
        if ownership.held(path) is not None and run_folder.read(path).ended is None:
            run_folder.finish(path, "failed", reason)
