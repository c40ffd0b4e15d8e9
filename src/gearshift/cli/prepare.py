"""`gearshift prepare`: converts a log once, and writes a config that trains on the result."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from gearshift.cli import terminal
from gearshift.cli.arguments import report_skipped
from gearshift.config import Config, check_files, config_from, load_config
from gearshift.errors import UserError
from gearshift.run import folder as run_folder


def prepare(config: str, output: Path, settings: list[str]) -> None:
    loaded = load_config(config, settings)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} exists and is not empty; choose another folder, or remove it")
    check_files(loaded)

    from gearshift.config.build import datasets
    from gearshift.data.prepare import put_in_place

    data = datasets(loaded)
    train = data.train.fitted()
    parts = {"train": train, "valid": data.valid, "test": data.test}
    prepared_parts = {name: dataset.fitted(train) for name, dataset in parts.items() if dataset is not None}
    temporary = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        _convert(prepared_parts, temporary, output)
        config_text = prepared_config(loaded, output, list(prepared_parts)).to_yaml()
        run_folder.export_text(temporary / "config.yaml", config_text)
        put_in_place(temporary, output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    report_skipped(*prepared_parts.values())
    terminal.say(f"Wrote {output / 'config.yaml'}. Next: gearshift train {output / 'config.yaml'}")


def _convert(parts: dict[str, Any], folder: Path, output: Path) -> None:
    """Write each part below `folder`, which will be renamed to `output`."""
    from gearshift.data.prepare import prepare as convert

    for name, dataset in parts.items():
        info = convert(dataset, folder / name)
        size = f"{terminal.count(info.examples)} examples, {terminal.size(info.bytes)}"
        terminal.say(f"{output / name}: {size}")


def prepared_config(config: Config, output: Path, parts: list[str]) -> Config:
    """The same run on the converted data, which has its own schema.

    A split that is not by time gives parts that overlap in time, which is allowed only for such a split.
    """
    split = config.data.split
    overlap = config.data.allow_overlap or (split is not None and split.by != "time")
    values = config.values()
    obsolete = {"split", "synthetic", "features", "csv", "bad_lines"}
    data = {key: value for key, value in values["data"].items() if key not in obsolete}
    data |= {"format": "prepared", "allow_overlap": overlap} | {part: str(output / part) for part in parts}
    return config_from({**values, "data": data, "features": None})
