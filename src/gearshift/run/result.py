"""The result of a finished run, whichever engine it ran on."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from gearshift.metrics.measures import SHOWN_NAMES
from gearshift.parameters import checkpoint
from gearshift.run.display import History
from gearshift.run.report import closing_lines
from gearshift.run.trained_model import TrainedModel, load
from gearshift.tables import html_table, number
from gearshift.training.learner import Learner


class Result(TrainedModel, History):
    """A finished run: its metrics, and the model to predict with and to save."""

    def __init__(
        self,
        learner: Learner | Callable[[], Learner],
        facts: dict[str, Any] | Callable[[], dict[str, Any]],
        folder: Path,
        report: dict[str, Any],
    ) -> None:
        super().__init__(learner, facts)
        self.folder, self.report = folder, report

    @property
    def auc(self) -> float:
        """The AUC on the validation data, or else of each training example before it was trained. NaN if undefined."""
        return _figure(self.report["auc"])

    @property
    def logloss(self) -> float:
        """The mean log loss, on the same examples as `auc`."""
        return _figure(self.report["logloss"])

    @property
    def calibration(self) -> float:
        """Mean prediction over mean label, on the same examples as `auc`."""
        return _figure(self.report["calibration"])

    @property
    def examples_per_second(self) -> float:
        """Examples per second of training, without evaluations and checkpoints."""
        return float(self.report["examples_per_second"])

    @property
    def lines(self) -> list[str]:
        """The summary that is printed at the end."""
        return closing_lines(self.report, self.folder)

    def __repr__(self) -> str:
        if not self.report:  # a stopped run of other processes
            return f"Result(stopped, folder={self.folder})"
        return (
            f"Result({self.report['model']}: auc={number(self.auc)} on {self._measured_on}, "
            f"examples_per_second={self.examples_per_second:,.0f}, folder={self.folder})"
        )

    def _repr_html_(self) -> str:
        if not self.report:
            return html_table([{"run": str(self.folder), "state": "stopped"}])
        title = (
            f"{self.report['model']}, {self.report['strategy']}: {self.report['examples']:,} examples, "
            f"{self.examples_per_second:,.0f}/s, {self.folder}"
        )
        return html_table(self._scores(), title)

    @property
    def _measured_on(self) -> str:
        return "valid" if self.report["measured_on"] == "valid" else "training data, so far"

    def _scores(self) -> list[dict[str, Any]]:
        """A row for each part of the data that was measured."""
        parts = {self._measured_on: self.report}
        if self.report["measured_on"] == "valid":
            parts["training data, so far"] = self.report["progressive"]
        if self.report["test"]:
            parts["test"] = self.report["test"]
        return [
            {"on": part, **{name: figures.get(name) for name in SHOWN_NAMES}}
            for part, figures in parts.items()
        ]


def result_in(folder: Path, report: dict[str, Any], model: nn.Module | None = None) -> Result:
    """The result of a run trained by other processes; `model` is needed if its module is a custom one.

    Its rows may not fit into this machine's memory: they are loaded only when they are needed.
    """

    def learner() -> Learner:
        return load(checkpoint.resolve(folder), model).learner

    return Result(learner, lambda: checkpoint.read_facts(checkpoint.resolve(folder)), folder, report)


def _figure(value: float | None) -> float:
    return math.nan if value is None else float(value)
