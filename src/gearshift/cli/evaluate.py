"""`gearshift evaluate`: metrics of one model, overall and by slice; or of two, paired on the same examples.

A model with several tasks gives a block for each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gearshift.cli import terminal
from gearshift.cli.arguments import (
    Opened,
    is_model,
    keeping,
    open_files,
    open_model,
    own_data,
    report_skipped,
    settings_and_others,
)
from gearshift.cli.train import check_writable
from gearshift.errors import UserError
from gearshift.run import folder as run_folder

if TYPE_CHECKING:
    from gearshift.data.batch import Batch
    from gearshift.data.missing_columns import MissingColumnsMode
    from gearshift.metrics import Collected, Measured, Measures, Metric

READING = ("csv", "bad_lines", "format", "label")  # settings that define how the data is read
SHOWN_SLICES = 30
ALL = "all"
DAY_SECONDS = 86_400


def evaluate(
    arguments: list[str],
    *,
    by: str | None,
    json_file: Path | None,
    missing_columns: MissingColumnsMode = "fail",
) -> None:
    check_writable(json_file)
    settings, others = settings_and_others(arguments, "evaluate", READING)
    models, data = _sorted_arguments(others)
    if not models:
        raise UserError("name a run to evaluate, such as: gearshift evaluate last")
    opened = [open_model(name, settings) for name in models]
    if len(opened) == 2:
        if by is not None:
            raise UserError("--by works for a single run; remove it to compare two runs")
        figures = compare(opened[0], opened[1], data, missing_columns)
    else:
        figures = measure(opened[0], data, by, missing_columns)
    if json_file is not None:
        run_folder.export_json(json_file, figures)


def _sorted_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """(models, data): the first argument is a run, the second may be one."""
    two = len(arguments) > 1 and is_model(arguments[1])
    return (arguments[:2], arguments[2:]) if two else (arguments[:1], arguments[1:])


def measure(
    opened: Opened, paths: list[str], by: str | None, missing_columns: MissingColumnsMode = "fail"
) -> list[dict[str, Any]]:
    from gearshift.metrics.warning_rules import Scored, warnings_of
    from gearshift.training.evaluation import BATCH, collect
    from gearshift.training.unseen_ids import UnseenIds

    by_day = by == "day" and opened.schema.time is not None
    schema = opened.schema if by is None or by_day else keeping(opened.schema, by)
    if paths:
        dataset = open_files(paths, schema, opened.config, missing_columns=missing_columns)
    else:
        dataset = own_data(opened, schema)
    if by_day and dataset.schema.time is None:
        raise UserError(f"--by day: the data has no column `{schema.time}`")
    keys = None if by is None else _days if by_day else partial(_texts, column=by)
    tasks = [label.task for label in schema.labels]
    unseen = UnseenIds(opened.model.learner, dataset, BATCH)
    collected = collect(unseen.watch(opened.predictions(dataset, corrected=False)), len(tasks), keys)
    figures: list[dict[str, Any]] = []
    for task, task_results in zip(tasks, collected, strict=True):
        if len(tasks) > 1:
            terminal.say(f"{'' if task is tasks[0] else chr(10)}task {task}")
        named = _named(task_results, by_day=by_day)
        _print(named, by, schema.group)
        rows = [{"task": task, "slice": name, **_figures(measured)} for name, measured in named]
        whole = Scored("this data", named[0][1].measures, unseen=unseen.shares if task is tasks[0] else {})
        rows[0]["warnings"] = warnings_of(whole)
        for sentence in rows[0]["warnings"]:
            terminal.say(f"Warning: {sentence}")
        figures += rows
    report_skipped(dataset)
    return figures


def _days(batch: Batch) -> Any:
    assert batch.times_B is not None, "the schema has a time"
    return batch.times_B // DAY_SECONDS


def _texts(batch: Batch, column: str) -> list[str]:
    import pyarrow as pa

    assert batch.kept is not None, "the schema keeps the column"
    texts: list[str] = batch.kept.column(column).cast(pa.string()).fill_null("(missing)").to_pylist()
    return texts


def _named(collected: Collected, *, by_day: bool) -> list[tuple[str, Measured]]:
    """All examples first, then the slices: days in order, other slices by size."""
    from gearshift.metrics import day_name

    name = day_name if by_day else str
    slices = [(name(key), measured) for key, measured in collected.slices().items()]
    slices.sort(key=lambda item: item[0] if by_day else -item[1].measures.examples)
    return [(ALL, collected.whole()), *slices]


def _print(named: list[tuple[str, Measured]], by: str | None, group: str | None) -> None:
    _print_slices(by or "", named[: SHOWN_SLICES + 1])
    if len(named) > SHOWN_SLICES + 1:
        terminal.say(f"... and {len(named) - SHOWN_SLICES - 1} more (all of them: --json FILE)")
    _, whole = named[0]
    for remark in (_approximation(whole), _weighting(whole, group)):
        if remark:
            terminal.say(remark)
    _print_calibration(whole)


def _approximation(measured: Measured) -> str:
    bound = measured.measures.auc_bound
    if not bound > 0:
        return ""
    return (
        f"AUC: approximate, because there are too many examples; the exact value is within {bound:.1g} of it."
    )


def _weighting(measured: Measured, group: str | None) -> str:
    grouped = measured.grouped
    if grouped is None:
        return ""
    sample = (
        f" (a sample, one in {grouped.one_in}, because there are too many examples)"
        if grouped.one_in > 1
        else ""
    )
    return (
        f"gAUC: mean of the AUCs within each `{group}`, weighted by its examples; {terminal.count(grouped.counted)} of "
        f"{terminal.count(grouped.groups)} have both clicks and non-clicks and are counted{sample}."
    )


def _print_calibration(measured: Measured) -> None:
    rows = measured.measures.calibration_table
    if not rows:
        return
    terminal.say("\nCalibration by decile of predicted probability")
    weighted = sum(row.count for row in rows) != measured.measures.examples
    heads = ["predicted", "observed", "ratio", "weight" if weighted else "examples"]
    written = [
        [
            terminal.figure(row.predicted),
            _with_error(row.observed, row.observed_se),
            terminal.figure(row.ratio, 3),
            terminal.count(row.count),
        ]
        for row in rows
    ]
    terminal.say(terminal.table(heads, written, right="rlrr"))


def _figures(measured: Measured) -> dict[str, Any]:
    from gearshift.training.evaluation import figures_of

    return {**figures_of(measured), "mean_label": measured.measures.mean_label}


def _print_slices(by: str, rows: Sequence[tuple[str, Measured]]) -> None:
    from gearshift.metrics.measures import SHOWN

    heads = [by, "examples", "CTR", *(shown.heading for shown in SHOWN)]
    right = "lrr" + "".join("l" if shown.error else "r" for shown in SHOWN)
    written = [[name, *_cells(measured.measures, SHOWN)] for name, measured in rows]
    if any(measured.grouped for _, measured in rows):  # after the AUC
        heads.insert(4, "gAUC")
        right = right[:4] + "r" + right[4:]
        for line, (_, measured) in zip(written, rows, strict=True):
            line.insert(4, terminal.figure(measured.grouped.auc if measured.grouped else None))
    terminal.say(terminal.table(heads, written, right=right))


def _cells(measures: Measures, shown: Sequence[Metric]) -> tuple[str, ...]:
    f = measures.as_dict()
    return (
        terminal.count(measures.examples),
        terminal.percent(measures.mean_label),
        *(_with_error(f[one.name], f.get(one.error), one.digits) for one in shown),
    )


def _with_error(value: float | None, error: float | None, digits: int = 4) -> str:
    interval = f" +- {terminal.figure(1.96 * error)}" if error is not None and math.isfinite(error) else ""
    return terminal.figure(value, digits) + interval


def compare(
    first: Opened, second: Opened, paths: list[str], missing_columns: MissingColumnsMode = "fail"
) -> list[dict[str, Any]]:
    """Both models on the same examples. The difference has a smaller interval than either AUC."""
    if not paths:
        raise UserError("add the data to compare on: gearshift evaluate RUN RUN DATA")
    tasks = [label.task for label in first.schema.labels]
    others = [label.task for label in second.schema.labels]
    shared = [task for task in tasks if task in others]
    if not shared:
        raise UserError(
            f"{first.name} predicts {', '.join(tasks)} and {second.name} predicts {', '.join(others)}; "
            "they have no task in common"
        )
    why_all = "two runs must be compared on the same examples"
    datasets = [
        open_files(paths, opened.schema, opened.config, why_all=why_all, missing_columns=missing_columns)
        for opened in (first, second)
    ]
    both = [
        opened.predictions(dataset, corrected=False)
        for opened, dataset in zip((first, second), datasets, strict=True)
    ]
    pairs = [Pair(task, tasks.index(task), others.index(task)) for task in shared]
    for (batch, a_BT), (_, b_BT) in zip(*both, strict=True):
        for pair in pairs:
            pair.update(batch, a_BT, b_BT)
    figures: list[dict[str, Any]] = []
    for pair in pairs:
        if len(pairs) > 1:
            terminal.say(f"{'' if pair is pairs[0] else chr(10)}task {pair.task}")
        figures += pair.report(first.name, second.name)
    return figures


@dataclass
class Pair:
    """Two models on one task, which is output `a` of the first and output `b` of the second."""

    task: str
    a: int
    b: int
    kept: list[tuple[Any, Any, Any, Any]] = field(default_factory=list)

    def update(self, batch: Batch, a_BT: Any, b_BT: Any) -> None:
        self.kept.append((batch.labels_BT[:, self.a], a_BT[:, self.a], b_BT[:, self.b], batch.weights_B))

    def report(self, first: str, second: str) -> list[dict[str, Any]]:
        import numpy as np

        from gearshift.metrics import Collected, paired_auc_difference

        both = Collected(), Collected()
        for labels, scores_a, scores_b, weights in self.kept:
            both[0].update(labels, scores_a, weights)
            both[1].update(labels, scores_b, weights)
        joined: list[Any] = [
            None if column[0] is None else np.concatenate(column) for column in zip(*self.kept, strict=True)
        ]
        labels, a, b, weights = joined
        paired = paired_auc_difference(labels, a, b, weights)
        named = [(name, collected.whole()) for name, collected in zip((first, second), both, strict=True)]
        _print_slices("run", named)
        low, high = paired.interval
        signed = [f"{value:+.4f}".replace("0.", ".", 1) for value in (-paired.difference, -high, -low)]
        interval = f"{signed[0]} [{signed[1]}, {signed[2]}]"
        terminal.say(f"{second} - {first}: AUC {interval}, 95 %, paired on the same examples")
        difference = {"task": self.task, "auc_difference": -paired.difference, "low": -high, "high": -low}
        return [*({"task": self.task, "run": name, **_figures(m)} for name, m in named), difference]
