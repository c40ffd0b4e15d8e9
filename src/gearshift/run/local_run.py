"""The user's handle to a run in this process, which trains in a background thread.

The run folder is a contract (metrics.jsonl, report.json, checkpoints/): all other tools read the run from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from gearshift.errors import UserError, warn
from gearshift.metrics import day_name
from gearshift.run import interrupts
from gearshift.run.callbacks import Callback
from gearshift.run.control_socket_server import ControlChannel
from gearshift.run.display import History, status_row, status_text
from gearshift.run.interrupts import ExitStop
from gearshift.run.metrics_log import Processes
from gearshift.run.observer import RunObserver
from gearshift.run.parts import RunParts
from gearshift.run.result import Result
from gearshift.run.run_handle import REQUEST_SECONDS
from gearshift.run.run_thread import RunThread
from gearshift.run.status import Status
from gearshift.tables import html_table
from gearshift.training.engine import Engine
from gearshift.training.requests import Switch

POLL_SECONDS = 0.05


class Run(History):
    """Training in progress, in a background thread. `Trainer.start` creates it."""

    def __init__(
        self,
        parts: RunParts,
        engine: Engine[RunObserver],
        callbacks: Sequence[Callback] = (),
        header: Sequence[str] = (),
        processes: Processes = dict,
        *,
        warns: bool = False,
    ) -> None:
        """`engine` runs the workers. `header` is shown before the start. `processes` returns metrics of each process.

        With `warns`, `wait` also gives its warning about steps as a `DataWarning`, for users who read no messages.
        """
        self.folder, self.training, self.messages = parts.folder, parts.training, parts.messages
        self.header, self.processes, self.parts = tuple(header), processes, parts
        self.remarks = tuple(parts.messages)  # messages about the data from before the start
        self._stop, self._warns = threading.Event(), warns
        observer = RunObserver(self, parts, callbacks, self._stop)
        self.thread = RunThread(observer, engine, ControlChannel(self.folder, self), ExitStop(self))

    def __repr__(self) -> str:
        return status_text("Run", self.status(), self.folder)

    def _repr_html_(self) -> str:
        return html_table([status_row(self.status(), self.folder)])

    @property
    def finished(self) -> bool:
        """Whether the run has ended, for any reason."""
        return self.thread.finished

    def status(self) -> Status:
        """The progress of the run: step, examples, speed, loss, AUC so far, phase."""
        parts, progress, workers = self.parts, self.training.progress, self.training.workers
        there = (
            self.processes().get("coordinator-0", {}).get("workers", workers)
        )  # without a coordinator, workers are threads and none can be missing
        missing = max(0, workers - int(there)) if parts.health.phase == "training" else 0
        return Status(
            self.training.step,
            progress.examples,
            self.training.total,
            progress.seconds,
            progress.examples / progress.seconds if progress.seconds else 0.0,
            progress.loss,
            progress.measures.auc,
            next(map(day_name, reversed(progress.days.measures)), None),
            parts.health.phase,
            parts.health.seconds_since_step,
            parts.health.checkpoint_age,
            parts.health.failed_saves,
            missing,
            parts.wall.seconds(self.folder),
            progress.duplicated,
            parts.last_save.retries.active,
        )

    def last_status(self) -> Status:
        """Like `status`. For a run on a cluster, the last known status: it asks no process and never waits."""
        return self.status()

    def stop(self, *, give_up: bool = False) -> None:
        """Requests a stop after the current step; the run saves a checkpoint first.

        `give_up=True` stops the retries of a failing save (`status().save_retried`): steps that are in no checkpoint
        are lost.
        """
        self._stop.set()
        if give_up:
            self.parts.last_save.retries.give_up()

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested."""
        return self._stop.is_set()

    def checkpoint(self) -> None:
        """Requests a checkpoint after the current step."""
        self.parts.saving.request()

    def switch(
        self, strategy: str, *, reason: str = "", timeout: float = REQUEST_SECONDS, **settings: Any
    ) -> Switch:
        """Changes how the workers synchronise, while they train. Returns when the run has switched.

        The global batch and the learning rates stay. Batches in flight and waiting gradients are carried
        over; none is lost.
        """
        self._check_training("switch")
        request = self.training.requests.request_switch(strategy, settings, reason)
        _wait_for(self, request.answered, timeout, f"switch to {strategy}")
        assert request.switch is not None
        return request.switch

    def resize(self, workers: int, *, timeout: float = REQUEST_SECONDS) -> None:
        """Changes the number of workers while they train: new ones begin at once, others leave after their batch."""
        self._check_training("resize")
        request = self.training.requests.request_resize(workers)
        _wait_for(self, request.answered, timeout, f"resize to {workers} workers")

    def _check_training(self, command: str) -> None:
        phase = self.parts.health.phase
        if self.finished or phase not in ("starting", "training"):
            raise UserError(f"run {self.folder.name} is not training ({phase}); `{command}` needs a live run")
        if self.thread.is_current:
            raise UserError(
                f"a callback cannot wait for a {command}: call run.ask_{command}, which takes effect after this step"
            )

    def ask_resize(self, workers: int) -> None:
        """Like `resize`, without waiting: for callbacks."""
        self.training.requests.request_resize(workers)

    def ask_switch(self, strategy: str, *, reason: str = "", **settings: Any) -> None:
        """Like `switch`, without waiting: for callbacks. `Callback.on_switch` is called when it is done."""
        self.training.requests.request_switch(strategy, settings, reason)

    def notify(self, sentence: str) -> None:
        """Adds a message for the user."""
        self.messages.append(sentence)

    def wait(self, timeout: float | None = None) -> Result:
        """Waits for the end and returns the result; raises the run's error, or `TimeoutError` after `timeout` seconds.

        Ctrl-C stops the run after its step and saves it; then `KeyboardInterrupt` explains how to resume it. A second
        Ctrl-C raises at once.
        """
        try:
            interrupts.wait(self, timeout)
        except KeyboardInterrupt:
            if self.thread.error is None or not self.finished:
                raise
        if self.thread.error is not None:
            raise self.thread.error
        if self._warns and self.training.accounts.plain_warning:
            self._warns = False
            warn(self.training.accounts.plain_warning)
        assert self.thread.result is not None
        return self.thread.result

    def over(self, seconds: float) -> bool:
        """Waits at most this long for the end. Returns whether the run has ended. Does not raise the run's errors."""
        return self.thread.over(seconds)

    def ending(self) -> str:
        """A message on how the run ended and how to resume it."""
        return interrupts.ending(self.folder, self.parts.health.phase, self.training.step, self.thread.error)


def _wait_for(run: Run, answered: threading.Event, timeout: float, what: str) -> None:
    until = time.monotonic() + timeout
    while not answered.wait(POLL_SECONDS):
        if run.parts.health.phase not in ("starting", "training"):
            raise UserError(f"run {run.folder.name} ended before it could {what}")
        if time.monotonic() > until:
            raise TimeoutError(
                f"no worker finished a batch in {timeout:g} s; the {what.split()[0]} is still pending"
            )
