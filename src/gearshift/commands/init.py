"""`gearshift init`: looks at a file, says what it guesses and why, writes a config that trains as it is."""

from __future__ import annotations

from pathlib import Path

from gearshift import run_folder
from gearshift.commands import terminal
from gearshift.commands.guessed_config import Extent, written
from gearshift.commands.train import check_writable
from gearshift.config.files import exists, hint
from gearshift.config.load import DATA_ENDINGS
from gearshift.errors import UserError


def init(
    data: Path,
    output: Path | None,
    *,
    label: str | None,
    time: str | None,
    encoding: str | None = None,
    force: bool,
) -> None:
    target = output or Path(f"{stem(data)}.yaml")
    if not exists(str(data)):
        raise UserError(f"no such file: {data}{hint(str(data))}")
    check_writable(target)
    if target.exists() and not force:
        raise UserError(f"{target} exists; overwrite it with --force, or write elsewhere: -o FILE")

    from gearshift.data.dataset import CsvFormat, read
    from gearshift.data.infer import infer

    found = infer(str(data), label=label, time=time, csv=CsvFormat(encoding=encoding))
    dataset = read(str(data), found.schema, format=found.format, csv=found.csv)
    text = written(found, data, stem(data), Extent(dataset.estimate(), dataset.time_range()))
    run_folder.write_text(target, text)  # before a word is said: who reads along may stop reading
    terminal.say(f"{data}: {found.sample}")
    rows = [(guess.column, guess.guess, guess.why) for guess in found.guesses]
    terminal.say(terminal.table(("column", "guess", "why"), rows, indent=2))
    for warning in found.warnings:
        terminal.say(f"Warning: {warning}.")
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
