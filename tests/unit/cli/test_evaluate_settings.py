"""What `evaluate` advises about labels and lines, `evaluate` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gearshift.cli.evaluate import evaluate
from gearshift.cli.init import init
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
