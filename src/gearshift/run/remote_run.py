"""A run of another process, from Python: `gs.attach("runs/last").switch("sync")`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from gearshift.errors import UserError
from gearshift.run import control
from gearshift.run import folder as run_folder
from gearshift.run.control import Status
from gearshift.run.display import History
from gearshift.run.watch import POLL_SECONDS, Watched
from gearshift.training.requests import Switch


class RemoteRun(History):
    """A handle to a live run of this machine and user. A run that has ended answers with a `UserError`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._watched = Watched(folder)

    def __repr__(self) -> str:
        return f"RemoteRun({self.folder})"

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    def status(self) -> Status:
        """Where it stands: step, examples, speed, loss, AUC so far."""
        return control.status_of(control.ask(self.folder, "status"))

    @property
    def messages(self) -> list[str]:
        """Sentences that it told its user, all since its start, as far as this handle has heard them."""
        self._watched.look()
        return self._watched.messages

    @property
    def finished(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._watched.ending() is not None

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """Waits for the end; returns the run's report, empty if it was stopped. `gs.load(run.folder)` is its model.

        Ctrl-C ends the waiting alone: the run belongs to another process and goes on.
        """
        try:
            ended = self._wait(timeout)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f'run {self.folder} goes on in its own process; stop it: gs.attach("{self.folder}").stop()'
            ) from None
        if ended.state == "failed":
            raise UserError(f"run {self.name} failed: {ended.reason}")
        if ended.state == "stopped":
            return {}
        return dict(json.loads((self.folder / run_folder.REPORT).read_text()))

    def _wait(self, timeout: float | None) -> run_folder.RunRecord:
        until = None if timeout is None else time.monotonic() + timeout
        while (ended := self._watched.ending()) is None:
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"run {self.name} is not done after {timeout} s")
            self._watched.look()
            time.sleep(POLL_SECONDS)
        return ended

    def switch(self, strategy: str, *, reason: str = "", **settings: Any) -> Switch:
        """As `Run.switch`: returns when the run has changed over."""
        said = control.ask(self.folder, "switch", strategy=strategy, settings=settings, reason=reason)
        return Switch(**said)

    def resize(self, workers: int) -> None:
        """As `Run.resize`: another number of workers; the global batch stays what it was."""
        control.ask(self.folder, "resize", workers=workers)

    def stop(self) -> None:
        """Asks it to stop after this step; it saves a checkpoint first. A save that is being retried is given up."""
        control.ask(self.folder, "stop")

    def checkpoint(self) -> None:
        """Asks it to save after this step."""
        control.ask(self.folder, "checkpoint")


def attach(run: str | Path = "last", *roots: str | Path) -> RemoteRun:
    """A run by its folder, the beginning of its name, or `last`; looks in `roots` (`runs` if none is given)."""
    return RemoteRun(run_folder.find(run, *roots).resolve())
