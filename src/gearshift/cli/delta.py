"""`gearshift delta` and `gearshift apply-delta`: the changes between two checkpoints, and a full one made from them."""

from __future__ import annotations

from pathlib import Path

from gearshift.cli import terminal
from gearshift.cli.arguments import find_model
from gearshift.errors import UserError
from gearshift.run.delta import apply_deltas, write_delta
from gearshift.training.estimate import size_text


def delta(run: str, since: int | None, to: int | None, out: Path | None) -> None:
    if since is None:
        raise UserError("name the step of the checkpoint that the receiver has: --since STEP")
    written = write_delta(run, since, to=to, path=out)
    terminal.say(
        f"delta   step {written.since:,} to {written.step:,}: {written.changed:,} of {written.rows:,} rows changed, "
        f"{written.erased:,} erased; {size_text(written.bytes)} in {written.path}"
    )


def apply_delta(base: str, deltas: list[Path], out: Path) -> None:
    full = apply_deltas(find_model(base), deltas, out)
    terminal.say(f"wrote   {full}, verified. Use it: gearshift evaluate {full} DATA")
