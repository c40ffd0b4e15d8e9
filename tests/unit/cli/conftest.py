from collections.abc import Callable
from pathlib import Path

import pytest

from gearshift.cli.app import run

CONFIG = """\
name: shop
data: {train: clicks.csv, label: click}
features: [{name: user, type: categorical}]
"""

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with a config and its data."""
    monkeypatch.chdir(tmp_path)
    Path("clicks.yaml").write_text(CONFIG)
    Path("clicks.csv").write_text("click,user\n1,a\n")
    return tmp_path


@pytest.fixture
def shell(folder: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Runs a command line in this process: (exit code, stdout, stderr)."""

    def shell(*arguments: str, debug: bool = False) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(list(arguments), debug=debug)
        out, err = capsys.readouterr()
        return code, out, err

    return shell
