import io
import re
from dataclasses import replace

import pytest

from gearshift.cli import progress

from .fake_training import Status


def test_figures_as_far_as_they_are_known() -> None:
    assert progress.figures(Status()) == " 41 %  41,000 ex/s  loss .1312  AUC(so far) .7698  ETA 0:14"
    early = Status(examples=0, examples_per_second=0.0, loss=float("nan"), auc_so_far=float("nan"))
    assert progress.figures(early) == "  0 %"
    assert progress.figures(replace(early, total=None, examples=1234)) == "1,234 examples"


def test_a_line_for_a_log() -> None:
    line = progress.logged(Status(), 0.0)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d phase=training day=day_3 step=812 examples=410000 total=1000000 "
        r"examples_per_second=41000 loss=0.1312 auc_so_far=0.7698 seconds=10.0 seconds_left=14",
        line,
    )


def test_a_log_gets_one_line_per_30_seconds_and_each_message_once(capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter(range(1000))
    now = 0.0

    def tell() -> float:
        return now

    shown = progress.LoggedProgress(now=tell)
    with shown:
        for now in clock:
            shown.show(Status(), ["valid AUC .70"] if now >= 10 else [])
            if now >= 95:
                break
    lines = capsys.readouterr().out.splitlines()
    assert sum("valid AUC .70" in line for line in lines) == 1
    assert sum("step=812" in line for line in lines) == 3
    assert not any("\x1b" in line for line in lines)


def test_a_terminal_gets_a_bar_and_messages_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with progress.progress() as shown:
        assert isinstance(shown, progress.TerminalProgress)
        shown.show(Status(), ["valid [AUC] .70"])
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert "  valid [AUC] .70\n" in text.replace("\r", "")
    assert "day 3" in text and "AUC(so far) .7698" in text and "41 %" in text
