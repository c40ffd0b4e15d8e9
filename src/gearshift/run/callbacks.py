"""Callbacks: user code that is called on events of a run in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gearshift.training.evaluation import Evaluation
from gearshift.training.requests import Switch

if TYPE_CHECKING:
    from gearshift.run.local_run import Run


class Callback:
    """Override the methods you need; each is called in the run's thread, between two steps.

    A callback may send the run a request (`run.stop()`, `run.checkpoint()`, `run.ask_switch("gba")`), but must not
    wait for it. An exception in a callback ends the run.
    """

    def on_step(self, run: Run) -> None:
        """After every step."""

    def on_eval(self, run: Run, metrics: Evaluation) -> None:
        """After every evaluation on the validation data; `metrics.auc` and others."""

    def on_checkpoint(self, run: Run, path: Path) -> None:
        """When a checkpoint has been written to `path`."""

    def on_switch(self, run: Run, switch: Switch) -> None:
        """When the strategy has changed."""
