"""docs/adding_a_strategy.md works as written: its strategy, its trace and its test."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.traces.trace import retell

PAGE = Path(__file__).parents[3] / "docs" / "adding_a_strategy.md"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The page's blocks as files, importable."""
    strategy, use, test = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (story,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.S)
    files = {"freshest.py": strategy, "use.py": use, "test_freshest.py": test, "freshest.txt": story}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    sys.modules.pop("freshest", None)


def test_use(folder, capsys):
    runpy.run_path(str(folder / "use.py"))
    assert capsys.readouterr().out.splitlines()[:2] == ["[]", "[]"]


def test_story(folder):
    text = (folder / "freshest.txt").read_text()
    assert retell(text) == text


def test_its_test(folder):
    runpy.run_path(str(folder / "test_freshest.py"))["test_freshest"]()
