"""`gearshift evaluate`: measures of one model, whole and by slice; or of two, paired on the same examples."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gearshift import run_folder
from gearshift.commands import terminal
from gearshift.commands.opening import Opened, is_model, keeping, open_files, open_model, own_data
from gearshift.commands.train import check_writable
from gearshift.errors import UserError

if TYPE_CHECKING:
    from gearshift.data.batch import Batch

MOST_SLICES = 1000
SHOWN_SLICES = 30
ALL = "all"


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


def measure(opened: Opened, paths: list[str], by: str | None) -> list[dict[str, Any]]:
    by_day = by == "day" and opened.schema.time is not None
    schema = opened.schema if by is None or by_day else keeping(opened.schema, by)
    dataset = open_files(paths, schema, opened.config) if paths else own_data(opened, schema)
    whole, slices = _accumulate(opened, dataset, None if by_day else by, by_day=by_day)
    named = sorted(slices.items(), key=lambda item: item[0] if by_day else -item[1].examples)
    _print_slices(by or "", [(ALL, whole), *named[:SHOWN_SLICES]])
    if len(named) > SHOWN_SLICES:
        terminal.say(f"... and {len(named) - SHOWN_SLICES} more (all of them: --json FILE)")
    return [{"slice": name, **measures.as_dict()} for name, measures in [(ALL, whole), *named]]


def _accumulate(opened: Opened, dataset: Any, by: str | None, *, by_day: bool) -> tuple[Any, dict[str, Any]]:
    from gearshift.metrics import Measures, Slices, day_name

    whole, slices = Measures(), Slices(MOST_SLICES)
    for batch, probabilities_BT in opened.predictions(dataset, corrected=False):
        columns = (batch.labels_BT[:, 0], probabilities_BT[:, 0], batch.weights_B)
        whole.update(*columns)
        if by_day:
            assert batch.times_B is not None, "the schema has a time"
            slices.update(batch.times_B // 86_400, *columns)
        elif by is not None:
            slices.update(_texts(batch, by), *columns)
    name = day_name if by_day else str
    return whole, {name(key): measures for key, measures in slices.measures.items()}


def _texts(batch: Batch, column: str) -> list[str]:
    import pyarrow as pa

    assert batch.kept is not None, "the schema keeps the column"
    texts: list[str] = batch.kept.column(column).cast(pa.string()).fill_null("(missing)").to_pylist()
    return texts


def _print_slices(by: str, rows: Iterable[tuple[str, Any]]) -> None:
    heads = (by, "examples", "CTR", "AUC", "logloss", "NE", "calibration")
    written = [(name, *_cells(measures.as_dict())) for name, measures in rows]
    terminal.say(terminal.table(heads, written, right="lrrlrrr"))


def _cells(f: dict[str, Any]) -> tuple[str, ...]:
    rate = f["positives"] / f["examples"] if f["examples"] else math.nan
    return (
        terminal.count(f["examples"]),
        terminal.percent(rate),
        _with_error(f["auc"], f.get("auc_se")),
        terminal.figure(f["logloss"]),
        terminal.figure(f["normalized_entropy"], 3),
        terminal.figure(f["calibration"], 3),
    )


def _with_error(value: float | None, error: float | None) -> str:
    interval = f" +- {terminal.figure(1.96 * error)}" if error is not None and math.isfinite(error) else ""
    return terminal.figure(value) + interval


def compare(first: Opened, second: Opened, paths: list[str]) -> list[dict[str, Any]]:
    """Both models on the same examples; the difference has a smaller interval than either AUC."""
    import numpy as np

    from gearshift.metrics import Measures, paired_auc_difference

    if not paths:
        raise UserError("name the data to compare on: gearshift evaluate RUN RUN DATA")
    both = [
        opened.predictions(open_files(paths, opened.schema, opened.config), corrected=False)
        for opened in (first, second)
    ]
    measures = [Measures(), Measures()]
    kept: list[tuple[Any, Any, Any]] = []
    for (batch, a_BT), (_, b_BT) in zip(*both, strict=True):
        for measured, scores_BT in zip(measures, (a_BT, b_BT), strict=True):
            measured.update(batch.labels_BT[:, 0], scores_BT[:, 0], batch.weights_B)
        kept.append((batch.labels_BT[:, 0], a_BT[:, 0], b_BT[:, 0]))
    labels, scores_a, scores_b = (np.concatenate(part) for part in zip(*kept, strict=True))
    found = paired_auc_difference(labels, scores_a, scores_b)
    _print_slices("run", [(first.name, measures[0]), (second.name, measures[1])])
    low, high = found.interval
    signed = [f"{value:+.4f}".replace("0.", ".", 1) for value in (-found.difference, -high, -low)]
    interval = f"{signed[0]} [{signed[1]}, {signed[2]}]"
    terminal.say(f"{second.name} - {first.name}: AUC {interval}, 95 %, paired on the same examples")
    difference = {"auc_difference": -found.difference, "low": -high, "high": -low}
    named = ((first.name, measures[0]), (second.name, measures[1]))
    return [*({"run": name, **m.as_dict()} for name, m in named), difference]
