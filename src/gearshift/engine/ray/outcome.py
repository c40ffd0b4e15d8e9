"""How a run on a cluster ended, as seen by the process that started it, and the cleanup in this process."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gearshift.engine.ray.process_context import ProcessContext
from gearshift.engine.ray.silence import Loss
from gearshift.errors import UserError
from gearshift.run import control_socket, leftovers, ownership
from gearshift.run import folder as run_folder
from gearshift.run import log as run_log
from gearshift.run.interrupts import ExitStop

LEAVE_SECONDS = 15.0  # timeout for Ray to disconnect
GONE_SECONDS = 2.0  # the same, for a cluster that is gone


@dataclass(frozen=True)
class LaunchedProcesses:
    """The processes of a run, as Ray knows them."""

    context: ProcessContext
    ray: Any  # the package `actors`
    coordinator: Any  # the handle of its actor
    plan: Any

    @property
    def folder(self) -> Path:
        return self.context.folder.path


class LaunchedOutcome:
    """The outcome of a run whose starter waits for it. Unknown until `over`."""

    def __init__(self, processes: LaunchedProcesses, exit_stop: ExitStop) -> None:
        self._processes, self._context, self._exit_stop = processes, processes.context, exit_stop
        self._keeper = ownership.LeaseKeeper(processes.folder, self._context.folder.token, "driver")
        self.over = False
        self.error: BaseException | None = None
        self.phase: str | None = None  # done, stopped or failed

    def local_died(self) -> bool:
        return self._context.local is not None and self._context.local.died()

    def end_if_recorded(self) -> bool:
        """Whether run.json has an outcome; if so, it is adopted here."""
        record = _record(self._processes.folder)
        if record is None or record.ended is None:
            return False
        self.end(None if record.state != "failed" else (record.reason, True))
        return True

    def end(self, error: tuple[str, bool] | None) -> None:
        """The run has ended by itself; `error` is a message, and whether it is a user error."""
        folder = self._processes.folder
        if error is not None:
            self.error = UserError(error[0]) if error[1] else RuntimeError(error[0])
            self.phase = "failed"
            record = _record(folder)
            if record is not None and record.ended is None:  # it failed before it owned the run
                with suppress(OSError):
                    run_folder.finish_for_session(folder, "failed", error[0])
        else:
            self.phase = "stopped" if run_folder.read(folder).state == "stopped" else "done"
        if self.local_died():  # Ray would wait for it for minutes
            self.leave(GONE_SECONDS)
            return
        self._processes.ray.end(self._processes.coordinator, self._processes.plan)
        self.leave()

    def lose(self, loss: Loss) -> None:
        folder = self._processes.folder
        sentence = (
            f"{loss.reason}. The run's last checkpoint is intact; resume: gearshift train --resume {folder}"
        )
        self.error = UserError(sentence)
        if not loss.of_head:
            self._fail(loss.reason, sentence)
        self.leave(GONE_SECONDS)

    def _fail(self, reason: str, sentence: str) -> None:
        """The run cannot continue and cannot record it: ends everything of it and records the reason in its folder."""
        folder, shared = self._processes.folder, self._context.folder
        self.phase = "failed"
        if self._context.local is not None:
            self._context.local.stop()  # first: ended processes write nothing, and Ray has nothing to wait for
        else:
            self._processes.ray.end(self._processes.coordinator, self._processes.plan)
        with suppress(OSError, UserError):
            shared.check_not_taken()  # files of another session are not ours to remove
            fault = run_log.Fault("lost", "ray", reason=reason, action="the run ended")
            run_log.record(folder, fault, session=shared.token)
            control_socket.remove(folder)
        with suppress(OSError, UserError):
            run_folder.finish_for_session(folder, "failed", sentence)

    def leave(self, seconds: float = LEAVE_SECONDS) -> None:
        """Disconnects this process from the run."""
        self.over = True
        self._exit_stop.cancel()
        with suppress(OSError):  # a folder that cannot be written
            self._keeper.close()
        leaving = threading.Thread(
            target=self._processes.ray.leave, daemon=True
        )  # in a thread: Ray may wait for a cluster that is gone
        leaving.start()
        leaving.join(seconds)
        if self._context.local is not None:
            self._context.local.stop()
            with suppress(OSError):
                leftovers.remove_rows(self._processes.folder)  # of processes that were killed


def _record(folder: Path) -> run_folder.RunRecord | None:
    """None if it cannot be read at the moment."""
    with suppress(OSError, UserError):
        return run_folder.read(folder)
    return None
