"""`gearshift rows`: the embedding rows of a model as one file to look up."""

from __future__ import annotations

from pathlib import Path

from gearshift.cli import terminal
from gearshift.cli.arguments import find_model
from gearshift.embedding.frozen_rows import precision_named
from gearshift.run.row_export import write_rows
from gearshift.training.estimate import size_text


def rows(model: str, out: Path, precision: str, store: int | None) -> None:
    written = write_rows(find_model(model), out, precision_named(precision), store=store)
    error = f", largest error of a weight {written.largest_error:.2g}" if precision != "float32" else ""
    terminal.say(
        f"rows    {written.rows:,} of width {written.width} as {precision}, {size_text(written.bytes)} in {out}{error}"
    )
