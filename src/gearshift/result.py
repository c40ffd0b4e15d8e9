"""What a finished run gives, whichever engine it ran on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gearshift.learner import Learner
from gearshift.report import closing_lines
from gearshift.trained import TrainedModel


class Result(TrainedModel):
    """A finished run: its figures, and the model to predict with and to save."""

    def __init__(
        self,
        learner: Learner | Callable[[], Learner],
        facts: dict[str, Any],
        folder: Path,
        report: dict[str, Any],
    ) -> None:
        super().__init__(learner, facts)
        self.folder, self.report = folder, report

    @property
    def auc(self) -> float:
        """On the validation data; without them, of each training example before it was trained."""
        return float(self.report["auc"])

    @property
    def logloss(self) -> float:
        return float(self.report["logloss"])

    @property
    def examples_per_second(self) -> float:
        return float(self.report["examples_per_second"])

    @property
    def lines(self) -> list[str]:
        """What a person wants to read at the end."""
        return closing_lines(self.report, self.folder)

    def __repr__(self) -> str:
        return f"Result(auc={self.auc:.4f}, examples_per_second={self.examples_per_second:,.0f}, folder={self.folder})"
