"""`init` accepts the settings for reading data that its advice names."""

from __future__ import annotations

from pathlib import Path

import pytest

from gearshift.cli.init import init
from gearshift.config import load_config
from gearshift.errors import UserError


def run(tmp_path: Path, *settings: str) -> Path:
    lines = [f"{i % 3 // 2};u{i % 20};{i % 80 + 1},{i % 900 + 100}" for i in range(400)]
    (tmp_path / "a.csv").write_text("\n".join(["click;user;views", *lines]) + "\n")
    target = tmp_path / "a.yaml"
    init(tmp_path / "a.csv", target, label=None, time=None, force=True, settings=settings)
    return target


def test_settings_are_taken_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config(run(tmp_path))
    assert (config.data.csv.decimal, config.data.csv.thousands) == (".", ",")
    assert "if they are decimal commas: data.csv={decimal: ','}" in capsys.readouterr().out
    config = load_config(run(tmp_path, "data.csv={decimal: ','}", "data.bad_lines={skip: 7}"))
    assert (config.data.csv.decimal, config.data.csv.thousands, config.data.bad_lines.skip) == (",", None, 7)
    assert "Warning" not in capsys.readouterr().out


@pytest.mark.parametrize("setting", ["train.epochs=2", "data.label=click", "data.csv={quoting: none}"])
def test_other_settings_are_refused_and_nothing_is_written(tmp_path: Path, setting: str) -> None:
    with pytest.raises(UserError, match=setting.partition("=")[0]):
        run(tmp_path, setting)
    assert not (tmp_path / "a.yaml").exists()


def test_the_rule_for_missing_labels_is_written(tmp_path: Path) -> None:
    lines = [f"{'' if i % 3 else 1},u{i % 20}" for i in range(400)]
    (tmp_path / "a.csv").write_text("\n".join(["click,user", *lines]) + "\n")
    init(tmp_path / "a.csv", tmp_path / "a.yaml", label=None, time=None, force=False)
    (label,) = load_config(tmp_path / "a.yaml").labels()
    assert (label.column, label.missing) == ("click", "no_click")
