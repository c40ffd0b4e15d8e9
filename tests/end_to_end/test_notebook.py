"""The notebook runs from its first cell to its last; in the repository it has no outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def test_it_has_no_outputs_in_the_repository() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and not any(cell["outputs"] or cell["execution_count"] for cell in code)


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(
        "nbclient",
        reason="the notebook was not run: nbclient is not installed (requirements-dev.lock has it)",
    )
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("TMPDIR", str(tmp_path))  # its runs go with the test
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    assert "was stopped and saved at step 20. Resume: trainer.fit" in said
    assert "sync -> gba after step" in said
    assert "Evaluation(auc=0." in said and "image/png" in said
    assert not [line for line in said.splitlines() if "Traceback" in line]
