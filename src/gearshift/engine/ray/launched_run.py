"""A run on a cluster, as the process that started it holds it (`run.run_handle.RunHandle`)."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

from torch import nn

from gearshift.engine.ray import coordinator_watch
from gearshift.engine.ray.coordinator_watch import CoordinatorWatch
from gearshift.engine.ray.outcome import LaunchedOutcome, LaunchedProcesses
from gearshift.engine.ray.silence import Silence
from gearshift.errors import UserError, warn
from gearshift.run import folder as run_folder
from gearshift.run import interrupts
from gearshift.run import log as run_log
from gearshift.run.control_socket import ANSWER_MARGIN
from gearshift.run.display import History, status_row, status_text
from gearshift.run.interrupts import ExitStop
from gearshift.run.result import Result, result_in
from gearshift.run.run_handle import REQUEST_SECONDS
from gearshift.run.status import Status
from gearshift.tables import html_table
from gearshift.training.requests import Switch

NO_ANSWER = object()


class LaunchedRun(History):
    """A run on a cluster, as the process that started it sees it. It has the same methods as `Run`."""

    def __init__(self, processes: LaunchedProcesses, model: nn.Module | None, *, warns: bool = False) -> None:
        """`model` is the user's module, if the run's model is not a built-in one.

        With `warns`, `wait` also gives the warning about steps as a `DataWarning`, for users who read no messages.
        """
        context, ray = processes.context, processes.ray
        self.folder, self._processes, self._model = processes.folder, processes, model
        self.messages: list[str] = []
        watchdog = ray.CoordinatorWatchdog(
            processes.coordinator, context.connection.settings.patience, self.notify
        )
        silence = Silence(
            ray, processes.coordinator, watchdog, self.notify, is_local=context.local is not None
        )
        exit_stop = ExitStop(self)
        self._outcome = LaunchedOutcome(processes, exit_stop)
        self._watch = CoordinatorWatch(processes, silence, self._outcome, self.messages)
        self._result: Result | None = None
        self._warns = warns
        if context.local is not None:  # on a cluster started by others the run continues without this process
            exit_stop.set()

    def notify(self, sentence: str) -> None:
        """For events that only this process notices; the coordinator logs its own messages."""
        self.messages.append(sentence)
        run_log.write(self.folder, sentence, session=self._processes.context.folder.token)

    def __repr__(self) -> str:
        return status_text("Run", self.last_status(), self.folder)

    def _repr_html_(self) -> str:
        return html_table([status_row(self.last_status(), self.folder)])

    # State

    @property
    def header(self) -> tuple[str, ...]:
        return self._watch.header

    @property
    def finished(self) -> bool:
        self._watch.look()
        return self._outcome.over

    def status(self) -> Status:
        self._watch.look()
        return self.last_status()

    def last_status(self) -> Status:
        """The last known status. Asks no process and never waits, even while Ray's head is frozen."""
        status, phase = self._watch.status, self._outcome.phase
        return status if phase is None else replace(status, phase=phase)

    def processes(self) -> dict[Any, tuple[int, str]]:
        """Pid and machine of each process, by role and number."""
        self._watch.look()
        return dict(self._watch.answer.get("places", {}))

    def figures(self) -> dict[str, dict[str, float]]:
        """Metrics of each process since its start, by its name, such as worker-3."""
        self._watch.look()
        return dict(self._watch.answer.get("figures", {}))

    # Requests

    def switch(
        self, strategy: str, *, reason: str = "", timeout: float = REQUEST_SECONDS, **settings: Any
    ) -> Switch:
        done: Switch = self._ask("switch", strategy, reason=reason, timeout=timeout, **settings)
        return done

    def resize(self, workers: int, *, timeout: float = REQUEST_SECONDS) -> None:
        self._ask("resize", workers, timeout=timeout)

    def stop(self, *, give_up: bool = False) -> None:
        """Like `Run.stop`. A restarted coordinator is asked again to stop, but not to give up its save."""
        self._watch.stop(give_up=give_up)

    def checkpoint(self) -> None:
        self._ask("checkpoint")

    def _ask(self, method: str, *arguments: Any, **settings: Any) -> Any:
        if self.finished:
            raise UserError(f"run {self.folder.name} has ended; `{method}` needs a live run")
        seconds = settings.get("timeout", REQUEST_SECONDS) + ANSWER_MARGIN
        question = self._processes.coordinator.ask.remote(method, *arguments, **settings)
        answer = self._processes.ray.answer(question, seconds, silence=NO_ANSWER)
        if answer is NO_ANSWER:
            raise UserError(f"run {self.folder.name} is not responding; try `{method}` again")
        return answer

    def wait(self, timeout: float | None = None) -> Result:
        """Like `Run.wait`: Ctrl-C stops the run, which saves, and `KeyboardInterrupt` explains how to resume it."""
        try:
            interrupts.wait(self, timeout)
        except KeyboardInterrupt:
            if self._outcome.error is None or not self._outcome.over:
                raise
        if self._outcome.error is not None:
            raise self._outcome.error
        if self._warns and self._watch.plain_warning:
            self._warns = False
            warn(self._watch.plain_warning)
        if self._result is None:
            file = self.folder / run_folder.REPORT
            report = json.loads(file.read_text()) if file.exists() else {}
            self._result = result_in(self.folder, report, self._model)
        return self._result

    def over(self, seconds: float) -> bool:
        """Waits at most this long for the end. Returns whether the run has ended. Does not raise the run's errors."""
        until = time.monotonic() + seconds
        while not self.finished:
            if time.monotonic() >= until:
                return False
            time.sleep(coordinator_watch.POLL_SECONDS / 4)
        return True

    def ending(self) -> str:
        """A message on how the run ended and how to resume it."""
        status = self.last_status()
        return interrupts.ending(self.folder, status.phase, status.step, self._outcome.error)
