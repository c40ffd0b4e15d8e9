"""`gearshift init`: inspects a file, explains what it infers, and writes a config that is ready to train."""

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
from gearshift.config.load import config_from
from gearshift.config.overrides import parse_value
from gearshift.data.readers.formats import ENDINGS
from gearshift.errors import DataWarning, UserError
from gearshift.run import folder as run_folder
from gearshift.settings.units import parse_text


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
    """`settings` are key=value words that define how the data is read."""
    target = output or Path(f"{stem(data)}.yaml")
    if not exists(str(data)):
        raise UserError(f"no such file: {data}{hint(str(data))}")
    check_writable(target)
    if target.exists() and not force:
        raise UserError(f"{target} exists; overwrite it with --force, or write elsewhere: -o FILE")

    from gearshift.data.dataset import read
    from gearshift.data.infer.schema import infer

    stated = _stated(settings)
    csv = stated.csv if encoding is None else replace(stated.csv, encoding=encoding)
    rule = _rule(positive)
    inferred = infer(str(data), label=label, time=time, positive=rule, csv=csv, format=stated.format)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # `inferred` has them
        dataset = read(str(data), inferred.schema, format=inferred.format, csv=inferred.csv)
    extent = Extent(dataset.estimate(), dataset.time_range())
    text = written(inferred, data, stem(data), extent, skip=stated.bad_lines.skip)
    run_folder.export_text(target, text)  # before any output: a reader of the output may stop reading
    terminal.say(f"{data}: {inferred.sample}")
    rows = [(guess.column, guess.guess, guess.why) for guess in inferred.guesses]
    terminal.say(terminal.table(("column", "guess", "why"), rows, indent=2))
    split = split_of(inferred, extent)
    terminal.say(f"  validation: split by {split.by} ({split.why.partition(';')[0]})")
    for warning in inferred.warnings:
        terminal.say(f"Warning: {warning}" + "." * (not warning.endswith(("?", "."))))
    lines = text.count("\n")
    terminal.say(
        f"Wrote {target} ({lines} lines, every guess commented). Check the label and the id columns, "
        f"then: gearshift train {target}"
    )


def _stated(settings: Sequence[str]) -> DataSection:
    """The data section with only these settings. Settings that do not affect reading are rejected."""
    for text in settings:
        key = text.partition("=")[0].strip()
        if not re.fullmatch(r"data\.(csv(\.\w+)?|bad_lines(\.skip)?|format)", key):
            raise UserError(
                f"{text}: init takes data.csv, data.bad_lines and data.format; set the label with --label and "
                "--positive, and everything else in the config that it writes"
            )
    return config_from({}, settings).data


def _rule(positive: str | None) -> str | list[str] | None:
    """A value, a list in YAML, or a threshold. Numbers keep their spelling."""
    if positive is None:
        return None
    value = parse_value(positive, "--positive")
    return [parse_text(v) for v in value] if isinstance(value, list) else positive


def stem(data: Path) -> str:
    """`clicks` for clicks.csv.gz."""
    name = data.name
    while name.endswith(ENDINGS):
        name = name.rpartition(".")[0]
    return name or "clicks"
