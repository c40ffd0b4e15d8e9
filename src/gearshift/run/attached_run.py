"""A handle to a run of another process on this machine: `gs.attach("runs/last").switch("sync")`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gearshift.errors import UserError
from gearshift.run import catalog, control_socket
from gearshift.run import folder as run_folder
from gearshift.run.control_socket import ANSWER_MARGIN
from gearshift.run.display import History
from gearshift.run.polling import POLL_SECONDS, Watched
from gearshift.run.run_handle import REQUEST_SECONDS
from gearshift.run.status import Status
from gearshift.training.requests import Switch

if TYPE_CHECKING:
    from gearshift.run.result import Result


class RemoteRun(History):
    """A handle to a live run of this machine and user. A run that has ended answers with a `UserError`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._watched = Watched(folder)

    def __repr__(self) -> str:
        return f"RemoteRun({self.folder})"

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.folder.name

    @property
    def header(self) -> tuple[str, ...]:
        """Lines that describe the run, as far as this handle has received them."""
        return self._watched.header

    def status(self) -> Status:
        """The progress of the run: step, examples, speed, loss, AUC so far."""
        return control_socket.status_of(control_socket.ask(self.folder, "status"))

    def last_status(self) -> Status:
        """The last known status: it asks no process and never waits."""
        return self._watched.status

    @property
    def messages(self) -> list[str]:
        """The run's messages to its user, all since its start, as far as this handle has received them."""
        self._watched.look()
        return self._watched.messages

    @property
    def finished(self) -> bool:
        """Whether the run has ended, for any reason."""
        return self.ended() is not None

    def ended(self) -> run_folder.RunRecord | None:
        """How the run ended, according to its folder; None while it is live or recovering."""
        return self._watched.ending()

    def wait(self, timeout: float | None = None) -> Result:
        """Waits for the end; returns the result, with an empty report if the run was stopped.

        Ctrl-C only stops waiting: the run belongs to another process and continues.
        """
        try:
            ended = self._wait(timeout)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f'run {self.folder} continues in its own process; stop it: gs.attach("{self.folder}").stop()'
            ) from None
        if ended.state == "failed":
            raise UserError(f"run {self.name} failed: {ended.reason}")
        from gearshift.run.result import (
            result_in,  # it imports torch, which commands that only query a run do not need
        )

        stopped = ended.state == "stopped"
        report = {} if stopped else json.loads((self.folder / run_folder.REPORT).read_text())
        return result_in(self.folder, report)

    def _wait(self, timeout: float | None) -> run_folder.RunRecord:
        until = None if timeout is None else time.monotonic() + timeout
        while (ended := self.ended()) is None:
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"run {self.name} is not done after {timeout} s")
            self._watched.look()
            time.sleep(POLL_SECONDS)
        return ended

    def switch(
        self, strategy: str, *, reason: str = "", timeout: float = REQUEST_SECONDS, **settings: Any
    ) -> Switch:
        """Like `Run.switch`: returns when the run has switched."""
        done = control_socket.ask(
            self.folder,
            "switch",
            seconds=timeout + ANSWER_MARGIN,
            strategy=strategy,
            settings=settings,
            reason=reason,
            timeout=timeout,
        )
        return Switch(**done)

    def resize(self, workers: int, *, timeout: float = REQUEST_SECONDS) -> None:
        """Like `Run.resize`: changes the number of workers; the global batch stays."""
        control_socket.ask(
            self.folder, "resize", seconds=timeout + ANSWER_MARGIN, workers=workers, timeout=timeout
        )

    def stop(self, *, give_up: bool = False) -> None:
        """Requests a stop after the current step; the run saves a checkpoint first.

        If a save is being retried, the retries are stopped, with or without `give_up`.
        """
        control_socket.ask(self.folder, "stop")

    def checkpoint(self) -> None:
        """Requests a checkpoint after the current step."""
        control_socket.ask(self.folder, "checkpoint")


def attach(run: str | Path = "last", *roots: str | Path) -> RemoteRun:
    """A run by its folder, the beginning of its name, or `last`; looks in `roots` (`runs` if none is given)."""
    return RemoteRun(catalog.find(run, *roots).resolve())
