"""`gearshift init`: looks at a file, says what it guesses and why, writes a config that trains as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gearshift import run_folder
from gearshift.commands import terminal
from gearshift.commands.guessed_config import written
from gearshift.config.files import exists, hint
from gearshift.config.load import DATA_ENDINGS
from gearshift.errors import UserError


def init(data: Path, output: Path | None, *, label: str | None, time: str | None, force: bool) -> None:
    target = output or Path(f"{stem(data)}.yaml")
    if not exists(str(data)):
        raise UserError(f"no such file: {data}{hint(str(data))}")
    if target.exists() and not force:
        raise UserError(f"{target} exists; overwrite it with --force, or write elsewhere: -o FILE")

    from gearshift.data.infer import infer  # type: ignore[import-not-found,import-untyped,unused-ignore]

    found = infer(data, label=label, time=time)
    text = written(found, data, stem(data))
    terminal.say(heading(found, data))
    rows = [(guess.column, guess.guess, guess.why) for guess in found.guesses]
    terminal.say(terminal.table(("column", "guess", "why"), rows, indent=2))
    run_folder.write_text(target, text)
    lines = text.count("\n")
    terminal.say(
        f"Wrote {target} ({lines} lines, every guess commented). Check the label and the id columns, "
        f"then: gearshift train {target}"
    )


def stem(data: Path) -> str:
    """`clicks` for clicks.csv.gz."""
    name = data.name
    while name.endswith(DATA_ENDINGS):
        name = name.rpartition(".")[0]
    return name or "clicks"


def heading(found: Any, data: Path) -> str:
    """`clicks.csv: 1,204,331 examples in a 50 MB sample of 2.1 GB, header found, delimiter ','`"""
    amount = f"{terminal.count(found.examples)} examples"
    if found.sampled_bytes < found.total_bytes:
        amount += f" in a {terminal.size(found.sampled_bytes)} sample of {terminal.size(found.total_bytes)}"
    parts = [f"{data}: {amount}"]
    if found.format == "csv":
        parts.append("header found" if found.csv.header else "no header")
        parts.append(f"delimiter {found.csv.delimiter!r}")
    else:
        parts.append(found.format)
    return ", ".join(parts)
