"""`gearshift prepare`: a log is converted once, and a config beside it trains on the result."""

from __future__ import annotations

from pathlib import Path

from gearshift import run_folder
from gearshift.commands import terminal
from gearshift.config import Config, check_files, config_from, load_config
from gearshift.errors import UserError


def prepare(config: str, output: Path, settings: list[str]) -> None:
    asked = load_config(config, settings)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} exists and is not empty; choose another folder, or remove it")
    check_files(asked)

    from gearshift.data.prepare import prepare as convert
    from gearshift.train import datasets

    data = datasets(asked)
    train = data.train.fitted()
    parts = {"train": train, "valid": data.valid, "test": data.test}
    for name, dataset in parts.items():
        if dataset is not None:
            info = convert(dataset.fitted(train), output / name)
            terminal.say(
                f"{output / name}: {terminal.count(info.examples)} examples, {terminal.size(info.bytes)}"
            )
    there = [name for name, dataset in parts.items() if dataset is not None]
    run_folder.write_text(output / "config.yaml", prepared_config(asked, output, there).to_yaml())
    terminal.say(f"Wrote {output / 'config.yaml'}. Next: gearshift train {output / 'config.yaml'}")


def prepared_config(config: Config, output: Path, parts: list[str]) -> Config:
    """The same run on the converted data, which bring their own schema.

    A split that is not by time gives parts that overlap in time, which only the split itself can justify.
    """
    split = config.data.split
    overlap = config.data.allow_overlap or (split is not None and split.by != "time")
    values = config.values()
    gone = {"split", "synthetic", "features", "csv", "bad_lines"}
    data = {key: value for key, value in values["data"].items() if key not in gone}
    data |= {"format": "prepared", "allow_overlap": overlap} | {part: str(output / part) for part in parts}
    return config_from({**values, "data": data, "features": None})
