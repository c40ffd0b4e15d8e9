"""A trained model and data that are not quite as in training: warnings with the fix, and columns that are absent."""

import random
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import gearshift as gs
from gearshift.data.schema import Schema

DOCUMENT = Path(__file__).parents[3] / "docs" / "measures.md"
SCHEMA = Schema(
    (gs.Categorical("zip"), gs.Categorical("device"), gs.Numeric("price")), (gs.Label("click"),), group="user"
)


def log(n: int = 1_500, seed: int = 1) -> pd.DataFrame:
    draw = random.Random(seed)
    rows = [(draw.randrange(200), draw.randrange(1, 30), draw.random()) for _ in range(n)]
    return pd.DataFrame(
        {
            "click": [int(draw.random() < (0.7 if z % 3 else 0.1)) for z, _, _ in rows],
            "zip": [f"{z:05d}" for z, _, _ in rows],
            "device": [d for _, d, _ in rows],
            "price": [p for _, _, p in rows],
            "user": [f"u{z % 20}" for z, _, _ in rows],
        }
    )


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> gs.Result:
    folder = tmp_path_factory.mktemp("work") / "runs"
    model = gs.models.DeepFM(SCHEMA, dim=4, hidden=[8])
    trainer = gs.Trainer(global_batch=128, epochs=3, checkpoint=gs.CheckpointPolicy(path=str(folder)))
    return trainer.fit(model, gs.read(log(), SCHEMA), gs.read(log(seed=2), SCHEMA))


def through_pandas(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Written and read again, as people do: leading zeros are gone."""
    frame.to_csv(path, index=False)
    return pd.read_csv(path)


@pytest.mark.parametrize("how", ["result", "loaded", "saved"])
def test_prediction_warns_once_of_lost_leading_zeros(result: gs.Result, tmp_path: Path, how: str) -> None:
    model = {
        "result": lambda: result,
        "loaded": lambda: gs.load(result.folder),
        "saved": lambda: gs.load(result.save(tmp_path / "model")),
    }[how]()
    good = log(500, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        right = model.predict(good)
    bad = through_pandas(good, tmp_path / "new.csv")
    with pytest.warns(gs.DataWarning) as told:
        wrong = model.predict(bad)
        model.predict(bad)
    assert [str(warning.message) for warning in told] == [
        "column `zip` of the table is written differently than in training (text like 00007 there, integers like 123 "
        'here), so the model does not recognize its values: read it as text, in pandas with dtype={"zip": str}'
    ]
    assert told[0].filename == __file__  # the line that gave the data
    assert np.abs(wrong - right).max() > 0.05
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fixed = model.predict(pd.read_csv(tmp_path / "new.csv", dtype={"zip": str}))
    np.testing.assert_array_equal(fixed, right)


def test_evaluation_and_files_warn_too(result: gs.Result, tmp_path: Path) -> None:
    through_pandas(log(500, seed=3), tmp_path / "new.csv").to_csv(tmp_path / "bad.csv", index=False)
    model = gs.load(result.folder)
    with pytest.warns(UserWarning, match=r"column `zip` of .*bad.csv is written differently"):
        model.evaluate(tmp_path / "bad.csv")


def test_validation_data_and_a_resumed_run_are_compared_with_the_training_data(tmp_path: Path) -> None:
    bad = through_pandas(log(300, seed=3), tmp_path / "new.csv")
    trainer = gs.Trainer(global_batch=128, checkpoint=gs.CheckpointPolicy(path=str(tmp_path / "runs")))
    model = gs.models.LR(SCHEMA)
    with pytest.warns(UserWarning, match="column `zip`"):
        run = trainer.start(model, gs.read(log(300), SCHEMA), gs.read(bad, SCHEMA))
    result = run.wait()
    assert sum("column `zip`" in sentence for sentence in run.messages) == 1
    again = gs.Trainer(
        global_batch=128, epochs=2, checkpoint=gs.CheckpointPolicy(path=str(tmp_path / "runs"))
    )
    with pytest.warns(UserWarning, match="column `zip`"):
        again.fit(model, gs.read(bad, SCHEMA), resume=result.folder)
    with pytest.warns(UserWarning, match="column `zip` of the training data"):
        trainer.fit(gs.models.LR(SCHEMA), gs.read(bad, SCHEMA), init_from=result.folder)


def test_a_model_without_a_record_says_nothing(result: gs.Result, tmp_path: Path) -> None:
    model = gs.load(result.folder)
    facts = dict(model.facts, schema={k: v for k, v in model.facts["schema"].items() if k != "forms"})
    model.learner.schema = Schema.from_dict(facts["schema"])  # as a checkpoint of an earlier version has it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(through_pandas(log(300, seed=3), tmp_path / "new.csv"))


def test_absent_columns_are_named_with_the_option_or_count_as_missing(result: gs.Result) -> None:
    model = gs.load(result.folder)
    data = log(200, seed=4)
    with pytest.raises(gs.UserError) as error:
        model.predict(data.drop(columns=["zip", "price"]))
    assert str(error.value) == (
        "the table has no columns `zip`, `price`. It has: click, device, user. To read absent columns as "
        'missing values: missing_columns="as_missing"'
    )
    empty = data.assign(zip=None, price=None)
    with pytest.warns(
        UserWarning, match="the table has no column `zip`: it counts as missing in every example."
    ):
        scores = model.predict(data.drop(columns=["zip", "price"]), missing_columns="as_missing")
    np.testing.assert_array_equal(scores, model.predict(empty))
    with pytest.raises(gs.UserError, match="the table has none of the features' columns"):
        model.predict(data[["click"]], missing_columns="as_missing")
    with pytest.raises(gs.UserError, match=r"unknown missing_columns `ignore`. \(fail, as_missing\)"):
        model.predict(data, missing_columns="ignore")


def test_a_group_is_no_input(result: gs.Result) -> None:
    model = gs.load(result.folder)
    data = log(200, seed=4)
    np.testing.assert_array_equal(model.predict(data.drop(columns="user")), model.predict(data))
    with pytest.raises(gs.UserError, match="has no column `user`"):
        model.evaluate(data.drop(columns="user"))
    found = model.evaluate(data.drop(columns="user"), missing_columns="as_missing")
    assert found.grouped_auc is None and found.measures.auc == model.evaluate(data).measures.auc


def test_an_evaluation_has_a_calibration_table(result: gs.Result) -> None:
    found = result.evaluate(log(400, seed=5))
    assert sum(row.count for row in found.calibration_table) == 400
    assert found.calibration_table == found.tasks[0].calibration_table
    assert found.grouped[0] is not None and found.grouped[0].auc == found.grouped_auc
    assert result.report["calibration_table"] and result.report["tasks"]["click"]["calibration_table"]


def test_the_example_of_the_document(
    result: gs.Result, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(result.folder.parent.parent)
    log(400, seed=5).to_csv("clicks-tomorrow.csv", index=False)
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S)
    exec(example, {"gs": gs})
    first, *rows = capsys.readouterr().out.splitlines()
    assert len(first.split()) == 2 and len(rows) == 10 and all(len(row.split()) == 3 for row in rows)
