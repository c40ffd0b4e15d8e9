"""One-line errors for lists and reports; the details are in the run's log."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import gearshift as gs
from gearshift.cli.app import run
from gearshift.errors import MOST_LETTERS, UserError, brief
from gearshift.run import folder as run_folder

DATA = gs.read(gs.ClickLog(examples=500, days=1))


def raised(do: object) -> BaseException:
    with pytest.raises(Exception) as caught:
        do()  # type: ignore[operator]
    return caught.value


def test_an_error_is_one_line_with_its_place() -> None:
    assert brief(UserError("a sentence.\nAnd one more")) == "a sentence. And one more"
    assert brief(KeyError()) == "KeyError"
    message = brief(raised(lambda: torch.zeros(2, 3) @ torch.zeros(2, 3)))
    assert message.startswith("RuntimeError: mat1 and mat2") and "test_brief_errors.py:" in message
    assert "\n" not in message and message.endswith("in <lambda>)")
    assert len(brief(raised(lambda: int("x" * 10_000)))) < MOST_LETTERS + 100


class Failing(nn.Module):
    dim = 2

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: gs.Inputs) -> torch.Tensor:
        raise ArithmeticError("no two of these\nnumbers go together")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_that_fails_is_one_line_among_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    trainer = gs.Trainer(
        global_batch=100, workers=workers, checkpoint=gs.CheckpointPolicy(None, path=tmp_path)
    )
    started = trainer.start(Failing(), DATA)
    with pytest.raises((ArithmeticError, RuntimeError)):
        started.wait(60)
    reason = run_folder.read(started.folder).reason
    assert "\n" not in reason and "ArithmeticError: no two of these numbers go together (test_brief" in reason
    log = (started.folder / "run.log").read_text()
    assert "Traceback (most recent call last)" in log and "in forward" in log
    assert run(["runs", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert "failed" in listed and "Traceback" not in listed
