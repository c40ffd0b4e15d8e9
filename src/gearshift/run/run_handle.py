"""The interface of every run handle, wherever the run trains: in this process, in another one, or on a cluster.

Commands and notebooks watch and control a run through this interface; metrics of single processes come from
`run.control_socket`. `Run` (local_run.py), `RemoteRun` (attached_run.py) and
`LaunchedRun` (engine/ray) implement it; tests/conformance/test_run_handle.py tests each of them. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gearshift.run.status import Status

if TYPE_CHECKING:
    from gearshift.run.result import Result
    from gearshift.training.requests import Switch

REQUEST_SECONDS = 60.0  # timeout of a switch or a resize


class RunHandle(Protocol):
    @property
    def folder(self) -> Path: ...

    @property
    def header(self) -> Sequence[str]:
        """Lines that describe the run. The handle of a run in other processes has none until it has answered once."""

    @property
    def messages(self) -> Sequence[str]:
        """Messages for the user, all since the start, in order."""

    @property
    def finished(self) -> bool:
        """Whether the run has ended, for any reason."""

    def status(self) -> Status:
        """The progress of the run: step, examples, speed, loss, AUC so far, phase."""

    def last_status(self) -> Status:
        """The last known status. Asks no process and never waits: a signal handler calls it."""

    def history(self) -> list[dict[str, Any]]:
        """Its measurements so far: a row for each line of its metrics.jsonl."""

    def switch(
        self, strategy: str, *, reason: str = "", timeout: float = REQUEST_SECONDS, **settings: Any
    ) -> Switch:
        """Changes how the workers synchronise. Returns when the run has switched."""

    def resize(self, workers: int, *, timeout: float = REQUEST_SECONDS) -> None:
        """Changes the number of workers; the global batch stays. Returns when the change has taken effect."""

    def checkpoint(self) -> None:
        """Requests a checkpoint after the current step."""

    def stop(self, *, give_up: bool = False) -> None:
        """Requests a stop after the current step; the run saves first. `give_up`: a failing save is not retried."""

    def wait(self, timeout: float | None = None) -> Result:
        """Waits for the end; raises the run's error, or `TimeoutError` after `timeout` seconds."""
