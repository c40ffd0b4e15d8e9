"""`gearshift evaluate`: measures of one model, whole and by slice; or of two, paired on the same examples.

A model of several tasks gives a block for each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gearshift import run_folder
from gearshift.commands import terminal
from gearshift.commands.opening import (
    Opened,
    is_model,
    keeping,
    open_files,
    open_model,
    own_data,
    tell_skipped,
)
from gearshift.commands.train import check_writable
from gearshift.errors import UserError

if TYPE_CHECKING:
    from gearshift.data.batch import Batch
    from gearshift.metrics import Measures, Slices

MOST_SLICES = 1000
SHOWN_SLICES = 30
ALL = "all"
DAY_SECONDS = 86_400


def evaluate(arguments: list[str], *, by: str | None, json_file: Path | None) -> None:
    check_writable(json_file)
    models, data = _sorted_arguments(arguments)
    if len(models) == 2:
        if by is not None:
            raise UserError("--by slices one run; compare two runs without it")
        figures = compare(open_model(models[0]), open_model(models[1]), data)
    else:
        figures = measure(open_model(models[0]), data, by)
    if json_file is not None:
        run_folder.write_json(json_file, figures)


def _sorted_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """(models, data): the first argument is a run, a second one may be."""
    two = len(arguments) > 1 and is_model(arguments[1])
    return (arguments[:2], arguments[2:]) if two else (arguments[:1], arguments[1:])


@dataclass
class Tally:
    """What is counted of one task."""

    task: str
    whole: Measures
    slices: Slices
    columns: list[tuple[Any, Any, Any]] = field(default_factory=list)  # labels, scores, groups

    def update(self, batch: Batch, at: int, scores_B: Any, keys: Any) -> None:
        labels_B = batch.labels_BT[:, at]
        self.whole.update(labels_B, scores_B, batch.weights_B)
        if keys is not None:
            self.slices.update(keys, labels_B, scores_B, batch.weights_B)
        if batch.groups_B is not None:
            self.columns.append((labels_B, scores_B, batch.groups_B))

    @property
    def grouped_auc(self) -> float | None:
        import numpy as np

        from gearshift.metrics import grouped_auc

        if not self.columns:
            return None
        return grouped_auc(*(np.concatenate(column) for column in zip(*self.columns, strict=True)))


def measure(opened: Opened, paths: list[str], by: str | None) -> list[dict[str, Any]]:
    by_day = by == "day" and opened.schema.time is not None
    schema = opened.schema if by is None or by_day else keeping(opened.schema, by)
    dataset = open_files(paths, schema, opened.config) if paths else own_data(opened, schema)
    tallies = _tallies(opened, dataset, by, by_day=by_day)
    figures: list[dict[str, Any]] = []
    for tally in tallies:
        if len(tallies) > 1:
            terminal.say(f"{'' if tally is tallies[0] else chr(10)}task {tally.task}")
        figures += _tell(tally, by, by_day=by_day)
    tell_skipped(dataset)
    return figures


def _tallies(opened: Opened, dataset: Any, by: str | None, *, by_day: bool) -> list[Tally]:
    from gearshift.metrics import Measures, Slices

    tallies = [Tally(label.task, Measures(), Slices(MOST_SLICES)) for label in opened.schema.labels]
    for batch, probabilities_BT in opened.predictions(dataset, corrected=False):
        keys = None if by is None else _days(batch) if by_day else _texts(batch, by)
        for at, tally in enumerate(tallies):
            tally.update(batch, at, probabilities_BT[:, at], keys)
    return tallies


def _days(batch: Batch) -> Any:
    assert batch.times_B is not None, "the schema has a time"
    return batch.times_B // DAY_SECONDS


def _texts(batch: Batch, column: str) -> list[str]:
    import pyarrow as pa

    assert batch.kept is not None, "the schema keeps the column"
    texts: list[str] = batch.kept.column(column).cast(pa.string()).fill_null("(missing)").to_pylist()
    return texts


def _tell(tally: Tally, by: str | None, *, by_day: bool) -> list[dict[str, Any]]:
    from gearshift.metrics import day_name

    found = tally.slices.measures.items()
    name = day_name if by_day else str
    named = [(ALL, tally.whole)]
    named += sorted(
        ((name(key), measures) for key, measures in found),
        key=lambda item: item[0] if by_day else -item[1].examples,
    )
    grouped = tally.grouped_auc
    _print_slices(by or "", named[: SHOWN_SLICES + 1], grouped)
    if len(named) > SHOWN_SLICES + 1:
        terminal.say(f"... and {len(named) - SHOWN_SLICES - 1} more (all of them: --json FILE)")
    figures = [{"task": tally.task, "slice": slice, **_figures(measures)} for slice, measures in named]
    figures[0]["grouped_auc"] = grouped
    return figures


def _figures(measures: Measures) -> dict[str, Any]:
    return {**measures.as_dict(), "mean_label": measures.mean_label}


def _print_slices(by: str, rows: Iterable[tuple[str, Measures]], grouped: float | None = None) -> None:
    """`grouped`: the grouped AUC of the first row, where there are groups."""
    heads = [by, "examples", "CTR", "AUC", "logloss", "NE", "calibration"]
    written = [[name, *_cells(measures)] for name, measures in rows]
    if grouped is not None:
        cells = [terminal.figure(grouped), *("" for _ in written[1:])]
        for line, cell in zip([heads, *written], ["gAUC", *cells], strict=True):
            line.insert(4, cell)
    terminal.say(terminal.table(heads, written, right="lrrlrrrr"[: len(heads)]))


def _cells(measures: Measures) -> tuple[str, ...]:
    f = measures.as_dict()
    return (
        terminal.count(measures.examples),
        terminal.percent(measures.mean_label),
        _with_error(f["auc"], f["auc_se"]),
        terminal.figure(f["logloss"]),
        terminal.figure(f["normalized_entropy"], 3),
        terminal.figure(f["calibration"], 3),
    )


def _with_error(value: float | None, error: float | None) -> str:
    interval = f" +- {terminal.figure(1.96 * error)}" if error is not None and math.isfinite(error) else ""
    return terminal.figure(value) + interval


def compare(first: Opened, second: Opened, paths: list[str]) -> list[dict[str, Any]]:
    """Both models on the same examples; the difference has a smaller interval than either AUC."""
    if not paths:
        raise UserError("name the data to compare on: gearshift evaluate RUN RUN DATA")
    tasks = [label.task for label in first.schema.labels]
    others = [label.task for label in second.schema.labels]
    shared = [task for task in tasks if task in others]
    if not shared:
        raise UserError(
            f"{first.name} predicts {', '.join(tasks)} and {second.name} {', '.join(others)}; "
            "they have no task in common"
        )
    why_all = "two runs are compared on the same examples"
    both = [
        opened.predictions(open_files(paths, opened.schema, opened.config, why_all=why_all), corrected=False)
        for opened in (first, second)
    ]
    pairs = [Pair(task, tasks.index(task), others.index(task)) for task in shared]
    for (batch, a_BT), (_, b_BT) in zip(*both, strict=True):
        for pair in pairs:
            pair.update(batch, a_BT, b_BT)
    figures: list[dict[str, Any]] = []
    for pair in pairs:
        if len(pairs) > 1:
            terminal.say(f"{'' if pair is pairs[0] else chr(10)}task {pair.task}")
        figures += pair.tell(first.name, second.name)
    return figures


@dataclass
class Pair:
    """Two models on one task, which is column `a` of the one and `b` of the other."""

    task: str
    a: int
    b: int
    kept: list[tuple[Any, Any, Any, Any]] = field(default_factory=list)

    def update(self, batch: Batch, a_BT: Any, b_BT: Any) -> None:
        self.kept.append((batch.labels_BT[:, self.a], a_BT[:, self.a], b_BT[:, self.b], batch.weights_B))

    def tell(self, first: str, second: str) -> list[dict[str, Any]]:
        import numpy as np

        from gearshift.metrics import Measures, paired_auc_difference

        measures = Measures(), Measures()
        for labels, scores_a, scores_b, weights in self.kept:
            measures[0].update(labels, scores_a, weights)
            measures[1].update(labels, scores_b, weights)
        labels, a, b = (np.concatenate(column) for column in list(zip(*self.kept, strict=True))[:3])
        found = paired_auc_difference(labels, a, b)
        named = list(zip((first, second), measures, strict=True))
        _print_slices("run", named)
        low, high = found.interval
        signed = [f"{value:+.4f}".replace("0.", ".", 1) for value in (-found.difference, -high, -low)]
        interval = f"{signed[0]} [{signed[1]}, {signed[2]}]"
        terminal.say(f"{second} - {first}: AUC {interval}, 95 %, paired on the same examples")
        difference = {"task": self.task, "auc_difference": -found.difference, "low": -high, "high": -low}
        return [*({"task": self.task, "run": name, **_figures(m)} for name, m in named), difference]
