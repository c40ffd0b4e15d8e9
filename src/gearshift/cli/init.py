"""`gearshift init`: looks at a file, says what it guesses and why, writes a config that trains as it is."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gearshift.cli import terminal
from gearshift.cli.init_config import Extent, split_of, written
from gearshift.cli.train import check_writable
from gearshift.config.data import DataSection
from gearshift.config.files import exists, hint
from gearshift.config.load import DATA_ENDINGS, config_from
from gearshift.config.overrides import parse_value
from gearshift.config.units import parse_text
from gearshift.errors import DataWarning, UserError
from gearshift.run import folder as run_folder


def init(
    data: Path,
    output: Path | None,
    *,
    label: str | None,
    time: str | None,
    positive: str | None = None,
    encoding: str | None = None,
    force: bool,
    settings: Sequence[str] = (),
) -> None:
    """`settings` are key=value, of how the data are read."""
    target = output or Path(f"{stem(data)}.yaml")
    if not exists(str(data)):
        raise UserError(f"no such file: {data}{hint(str(data))}")
    check_writable(target)
    if target.exists() and not force:
        raise UserError(f"{target} exists; overwrite it with --force, or write elsewhere: -o FILE")

    from gearshift.data.dataset import CsvFormat, read
    from gearshift.data.infer.schema import infer

    stated = _stated(settings)
    csv = CsvFormat(**stated.csv.settings())
    csv = csv if encoding is None else replace(csv, encoding=encoding)
    found = infer(str(data), label=label, time=time, positive=_rule(positive), csv=csv, format=stated.format)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # `found` has them
        dataset = read(str(data), found.schema, format=found.format, csv=found.csv)
    extent = Extent(dataset.estimate(), dataset.time_range())
    text = written(found, data, stem(data), extent, skip=stated.bad_lines.skip)
    run_folder.export_text(target, text)  # before a word is said: who reads along may stop reading
    terminal.say(f"{data}: {found.sample}")
    rows = [(guess.column, guess.guess, guess.why) for guess in found.guesses]
    terminal.say(terminal.table(("column", "guess", "why"), rows, indent=2))
    split = split_of(found, extent)
    terminal.say(f"  validation: split by {split.by} ({split.why.partition(';')[0]})")
    for warning in found.warnings:
        terminal.say(f"Warning: {warning}" + "." * (not warning.endswith(("?", "."))))
    lines = text.count("\n")
    terminal.say(
        f"Wrote {target} ({lines} lines, every guess commented). Check the label and the id columns, "
        f"then: gearshift train {target}"
    )


def _stated(settings: Sequence[str]) -> DataSection:
    """The data section of these settings alone; others than those of reading are refused."""
    for text in settings:
        key = text.partition("=")[0].strip()
        if not re.fullmatch(r"data\.(csv(\.\w+)?|bad_lines(\.skip)?|format)", key):
            raise UserError(
                f"{text}: init takes data.csv, data.bad_lines and data.format; the label is --label and --positive, "
                "all else is set in the config that it writes"
            )
    return config_from({}, settings).data


def _rule(positive: str | None) -> str | list[str] | None:
    """A value, a list in YAML, or a threshold; numbers as they were typed."""
    if positive is None:
        return None
    value = parse_value(positive, "--positive")
    return [parse_text(v) for v in value] if isinstance(value, list) else positive


def stem(data: Path) -> str:
    """`clicks` for clicks.csv.gz."""
    name = data.name
    while name.endswith(DATA_ENDINGS):
        name = name.rpartition(".")[0]
    return name or "clicks"
