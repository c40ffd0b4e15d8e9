"""The interface through which the coordinator starts and ends the other processes of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.process_context import ProcessContext


class ProcessListener(Protocol):
    """Is notified, from any thread, of what happens to processes."""

    def leaving(self, members: Sequence[To], reason: str) -> None:
        """These processes will be gone soon."""

    def replaced(self, who: To, reason: str) -> None:
        """This process did not answer and is being replaced."""


class ProcessManager(Protocol):
    """Starts and ends the other processes."""

    def begin(self, context: ProcessContext, workers: int) -> None: ...
    def resize(self, workers: int) -> None: ...
    def rest(self) -> None:
        """The work is done: a process that ends now is not restarted."""

    def replace(self, who: To, boot: int, reason: str) -> None:
        """The process of this boot does not answer: it is ended, and another is started in its place."""

    def failure(self) -> str | None:
        """Why the run cannot continue: a process that fails again and again."""

    def heard_by(self, listener: ProcessListener) -> None:
        """Notifies the listener from now on, and first of what happened before."""

    def figures(self) -> dict[str, dict[str, float]]:
        """The newest metrics of each process, by its name."""

    def relays(self) -> bool:
        """Whether a machine has a relay that answers."""

    def step_down(self) -> None:
        """Another coordinator has replaced this one: this process ends at once and writes nothing."""

    def close(self) -> None: ...
