"""How results look: text and HTML that say the figures, and tables for pandas and Arrow."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

import gearshift as gs
from gearshift.errors import UserError

LOG = gs.ClickLog(4000, days=2)
DATA = gs.read(LOG)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> gs.Run:
    folder = tmp_path_factory.mktemp("runs")
    trainer = gs.Trainer(
        global_batch=400,
        checkpoint=gs.CheckpointPolicy(None, path=folder),
        training=gs.TrainingSettings(evaluation=gs.EvaluationSettings(every=gs.Every(steps=5))),
    )
    run = trainer.start(gs.models.LR(DATA.schema), DATA, DATA.head(1000), test=DATA.head(500))
    run.wait()
    return run


def test_an_evaluation_says_its_figures(run: gs.Run) -> None:
    found = run.wait().evaluate(DATA.head(1000))
    assert found.auc == found.measures.auc and found.examples == 1000
    assert repr(found).startswith(
        f"Evaluation(auc={found.auc:.4f}, logloss={found.logloss:.4f}, normalized_entropy="
    )
    assert f"<td>{found.auc:.4f}</td>" in found._repr_html_()
    table = found.to_arrow()
    assert table.num_rows == 1 and table.column("auc")[0].as_py() == found.auc
    assert found.to_pandas()["logloss"][0] == found.logloss and found.as_dict()["auc"] == found.auc


def test_a_result_says_what_was_measured_on_what(run: gs.Run) -> None:
    result = run.wait()
    assert repr(result).startswith(f"Result(LR: auc={result.auc:.4f} on valid, examples_per_second=")
    page = result._repr_html_()
    for part in ("valid", "training data, so far", "test"):
        assert f"<td>{part}</td>" in page
    assert result.calibration == result.report["calibration"]
    result.report["auc"] = None  # one class only
    assert math.isnan(result.auc) and "auc=- on" in repr(result)


def test_a_run_is_shown_and_its_measurements_are_a_table(run: gs.Run) -> None:
    assert repr(run) == f"Run({run.folder}: done, step 10, 100 %, AUC so far {run.status().auc_so_far:.4f})"
    assert "<td>done</td>" in run._repr_html_()
    steps = [row["step"] for row in run.history()]
    assert steps == [5, 10]
    for source in (run, run.wait(), gs.attach(run.folder)):
        assert (
            source.to_pandas()["valid_auc"].notna().all() and source.to_arrow()["step"].to_pylist() == steps
        )


def test_a_dataset_is_shown_with_its_columns(tmp_path: Path) -> None:
    LOG.write_csv(tmp_path / "log.csv")
    data = gs.read(tmp_path / "log.csv", gs.infer_schema(tmp_path / "log.csv", label="click"))
    assert repr(data).startswith(f"Dataset({tmp_path}/log.csv, ") and repr(data).endswith(
        " features, label click)"
    )
    assert "<td>click</td><td>label</td>" in data._repr_html_()


def test_pandas_is_optional(run: gs.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setattr("gearshift.tables.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install pandas; to_arrow\(\) gives the same"):
        run.to_pandas()
    assert run.to_arrow().num_rows == 2
