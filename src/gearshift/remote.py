"""A run of another process, from Python: `gs.attach("runs/last").switch("sync")`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gearshift import control, run_folder
from gearshift.run import Status
from gearshift.training import Switch


@dataclass(frozen=True)
class RemoteRun:
    """A handle to a live run of this machine and user. A run that has ended answers with a `UserError`."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    def status(self) -> Status:
        said: dict[str, Any] = control.ask(self.folder, "status")
        for key, value in said.items():
            if value is None and key != "day":  # not known yet
                said[key] = math.nan
        return Status(**said)

    def switch(self, strategy: str, *, reason: str = "", **settings: Any) -> Switch:
        """As `Run.switch`: returns when the run has changed over."""
        said = control.ask(self.folder, "switch", strategy=strategy, settings=settings, reason=reason)
        return Switch(**said)

    def resize(self, workers: int) -> None:
        """As `Run.resize`: another number of workers; the global batch stays what it was."""
        control.ask(self.folder, "resize", workers=workers)

    def stop(self) -> None:
        """Asks it to stop after this step; it saves a checkpoint first."""
        control.ask(self.folder, "stop")

    def checkpoint(self) -> None:
        """Asks it to save after this step."""
        control.ask(self.folder, "checkpoint")


def attach(run: str | Path = "last", *roots: str | Path) -> RemoteRun:
    """A run by its folder, the beginning of its name, or `last`; looks in `roots` (`runs` if none is given)."""
    return RemoteRun(run_folder.find(run, *roots).resolve())
