"""`evaluate` and `predict` accept the settings that their advice about labels, lines and numbers names."""

from __future__ import annotations

from pathlib import Path

import pytest

from gearshift.cli.evaluate import evaluate
from gearshift.cli.init import init
from gearshift.cli.predict import predict
from gearshift.cli.train import train
from gearshift.errors import UserError


def measured(run: str, *arguments: str) -> None:
    evaluate([run, *arguments], by=None, json_file=None)


def test_settings_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("click,user\n" + "".join(f"{i % 3 // 2},u{i % 20}\n" for i in range(600)))
    Path("b.csv").write_text("click,user\n" + "".join(f"{'NY'[i % 3 // 2]},u{i % 20}\n" for i in range(60)))
    Path("c.csv").write_text("click,user\n1,u1\n0,u2\n7,u3\n1,u4\n")
    init(Path("a.csv"), None, label=None, time=None, force=False)
    train("a.yaml", [], json_file=None, resume=None, init_from=None)
    with pytest.raises(UserError, match=r'data\.label=\{column: click, positive: "Y"\}'):
        measured("last", "b.csv")
    capsys.readouterr()
    measured("last", "b.csv", 'data.label={column: click, positive: "Y"}')
    assert "33.3 %" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"line 4: label `click` is '7'"):
        measured("last", "c.csv")
    measured("last", "c.csv", "data.bad_lines={skip: 1}")
    assert "1 bad line was skipped" in capsys.readouterr().err


def test_settings_without_effect_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        measured("last", "data.group=user")
    assert str(error.value) == (
        "data.group=user: evaluate takes data.csv, data.bad_lines, data.format and data.label, which define how the "
        "data is read; everything else is as in training"
    )
    for setting in ("data.bad_lines={skip: 1}", "data.label=click"):
        with pytest.raises(UserError, match=r"predict takes data\.csv and data\.format, which"):
            predict("last", ["a.csv", setting], tmp_path / "out.csv", keep=[])


def test_numbers_are_read_with_the_marks_of_training_unless_others_are_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prices = ("3,5", "7,212")
    Path("a.csv").write_text("click;price\n" + "".join(f"{i % 3 // 2};{prices[i % 2]}\n" for i in range(600)))
    Path("a.yaml").write_text(
        "data: {train: a.csv, label: click}\nfeatures: [{name: price, type: numeric, transform: none}]\nmodel: lr\n"
    )
    train("a.yaml", [], json_file=None, resume=None, init_from=None)
    Path("b.csv").write_text("user;price\n" + "u;7,212\n" * 9)  # alone: thousands
    Path("c.csv").write_text("user;price\n" + "u;7.212\n" * 9)

    def scores(file: str, *settings: str) -> list[str]:
        predict("last", [file, *settings], Path("out.csv"), keep=[])
        return Path("out.csv").read_text().splitlines()

    known = scores("b.csv", "data.csv={decimal: ','}")
    assert scores("b.csv") == known
    assert scores("b.csv", "data.csv={decimal: '.', thousands: ','}") != known
    with pytest.raises(UserError) as error:
        scores("c.csv")
    assert str(error.value) == (
        "c.csv line 2: feature `price` is '7.212'; expected a finite number. If '.' separates thousands, set "
        "data.csv={thousands: '.'}. If it is the decimal mark, set data.csv={decimal: '.'}. If not: fix the line, or "
        "remove it: each example gets a score"
    )
    assert scores("c.csv", "data.csv={decimal: '.'}") == known
