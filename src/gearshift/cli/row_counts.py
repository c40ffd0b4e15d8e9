"""`gearshift inspect --rows`: the rows of a checkpoint by feature, by occurrences and by age."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gearshift.cli import terminal
from gearshift.cli.arguments import find_model
from gearshift.run import folder as run_folder
from gearshift.run.row_counts import MIN_COUNTS, RowClass, RowCounts, count_rows


def show_rows(model: str, json_file: Path | None) -> None:
    counts = count_rows(find_model(model))
    if json_file is not None:
        run_folder.export_json(json_file, counts.as_dict())
    terminal.say("\n".join(row_lines(counts)))


def row_lines(counts: RowCounts) -> Iterator[str]:
    step, rows = terminal.count(counts.step), terminal.count(counts.rows)
    yield f"checkpoint {counts.checkpoint}  step {step}, {rows} rows"
    if not counts.rows:
        return
    names = [terminal.features(table.features) for table in counts.tables]
    yield "\n" + _summary(names, counts)
    yield "\nShare of the rows by occurrences of their id"
    yield _shares(names, [_labelled(table.by_occurrences) for table in counts.tables])
    yield "\nShare of the rows by steps since they were trained"
    ages = [{**_labelled(table.by_age), "not in this run": table.untrained} for table in counts.tables]
    yield _shares(names, ages)


def _summary(names: Sequence[str], counts: RowCounts) -> str:
    """A line per table: what it has, and what a setting would save."""
    heads = ("rows of", "rows", "share", "seen once", *(f"min_count={count} saves" for count in MIN_COUNTS))
    lines = [
        (
            name,
            terminal.count(table.rows),
            terminal.percent(table.rows / counts.rows),
            _percent(table.seen_once),
            *(_percent(table.saved_by(count)) for count in MIN_COUNTS),
        )
        for name, table in zip(names, counts.tables, strict=True)
    ]
    return terminal.table(heads, lines, right="l" + "r" * (len(heads) - 1))


def _percent(share: float | None) -> str:
    """A dash for nothing at all, or for what is not known."""
    return terminal.percent(share) if share else "-"


def _shares(names: Sequence[str], rows: Sequence[dict[str, int]]) -> str:
    """A line per table and a column per class, without the classes that have no rows in any table."""
    total = {label: sum(of_table[label] for of_table in rows) for label in rows[0]}
    labels = [label for label, count in total.items() if count]
    named = list(zip(names, rows, strict=True))
    if len(named) > 1:
        named.append(("all", total))
    lines = [
        (name, *(_percent(of_table[label] / sum(of_table.values())) for label in labels))
        for name, of_table in named
    ]
    return terminal.table(("rows of", *labels), lines, right="l" + "r" * len(labels))


def _labelled(classes: Sequence[RowClass]) -> dict[str, int]:
    return {_label(one): one.rows for one in classes}


def _label(one: RowClass) -> str:
    """3-4, or 1 if there is only one number, or > 1,024."""
    if one.most is None:
        return f"> {one.least - 1:,}"
    return f"{one.least:,}" if one.least == one.most else f"{one.least:,}-{one.most:,}"
