"""Sources in Python: a list of dicts, a lazy frame, several labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars
import pyarrow as pa
import pytest

import gearshift as gs
from gearshift.errors import UserError

SCHEMA = gs.Schema((gs.Numeric("price"), gs.Categorical("user"), gs.Bag("tags")), (gs.Label("click"),))
EXAMPLES = [
    {"click": 1, "price": 2.5, "user": "a", "tags": ["x", "y"]},
    {"click": 0, "user": "b", "tags": []},  # no price
    {"click": 0, "price": 1, "user": "a", "tags": ["x"], "extra": 3},
]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> gs.Result:
    trainer = gs.Trainer(global_batch=3, checkpoint=gs.CheckpointPolicy(path=tmp_path_factory.mktemp("runs")))
    return trainer.fit(gs.models.LR(SCHEMA), gs.read(EXAMPLES, SCHEMA))


def test_a_list_of_dicts_is_read_like_a_table() -> None:
    (batch,) = gs.read(EXAMPLES, SCHEMA).batches(10)
    assert batch.labels_BT[:, 0].tolist() == [1, 0, 0]
    assert batch.numeric_BN[:, 0].tolist() == [2.5, 0.0, 1.0]
    assert np.diff(batch.ragged[0].offsets).tolist() == [2, 0, 1]


def test_predict_takes_dicts_without_a_label(result: gs.Result) -> None:
    scores = result.predict([{k: v for k, v in one.items() if k != "click"} for one in EXAMPLES])
    np.testing.assert_array_equal(scores, result.predict(gs.read(EXAMPLES, SCHEMA)))
    np.testing.assert_array_equal(result.predict(EXAMPLES[:1]), scores[:1])  # one example is a list too


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (EXAMPLES[0], r"pass a list of examples, \[\{...\}\], or pyarrow\.table"),
        ([EXAMPLES[0], 3], "example 2 of the list is a int; all examples must be dicts"),
        ([{**EXAMPLES[0], "user": 3}, EXAMPLES[1]], r"column `user` .* of different types \(int, str\)"),
        (3, "cannot read an object of type int"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(result: gs.Result, source: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        result.predict(source)


def test_a_lazy_frame_is_collected(result: gs.Result) -> None:
    frame = polars.DataFrame(EXAMPLES[:1] * 50 + [{**EXAMPLES[1], "price": 1.0}] * 50)
    np.testing.assert_array_equal(result.predict(frame.lazy()), result.predict(frame))
    lazy, eager = (gs.infer_schema(one, label="click") for one in (frame.lazy(), frame))
    assert lazy == eager


def test_several_labels_are_several_tasks(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    click, buy = rng.random(2000) < 0.4, rng.random(2000) < 0.3
    table = pa.table(
        {
            "click": click.astype(int),
            "buy": (click & buy).astype(int),
            "user": rng.integers(0, 40, 2000).astype(str),
            "paid": np.where(click & buy, "yes", "no"),  # gives `buy` away
        }
    )
    schema = gs.infer_schema(table, label=["click", "buy"])
    assert schema.labels == (gs.Label("click", task="click"), gs.Label("buy", task="buy"))
    assert [feature.name for feature in schema.features] == ["user"]
    data = gs.read(table, schema)
    trainer = gs.Trainer(global_batch=500, checkpoint=gs.CheckpointPolicy(path=tmp_path))
    result = trainer.fit(gs.models.DNN(schema, dim=4, hidden=[8]), data, data)
    assert result.report["tasks"].keys() == {"click", "buy"} and result.predict(data).shape == (2000, 2)
    with pytest.raises(UserError, match="distinct columns"):
        gs.infer_schema(table, label=["click", "click"])
    with pytest.raises(UserError, match="has no column `like`"):
        gs.infer_schema(table, label=["click", "like"])
    assert len(gs.infer_schema(table, label=["click"]).labels) == 1


def test_examples_that_were_not_fitted_say_what_to_write(tmp_path: Path) -> None:
    schema = gs.Schema((gs.Numeric("price", "standardize"),), (gs.Label("click"),))
    data = gs.read(EXAMPLES, schema)
    with pytest.raises(
        UserError, match=r"^`price`: means, .* train = gs\.read\(\.\.\.\)\.fitted\(\); .*fitted\(train"
    ):
        next(data.batches(2))
    train = data.fitted()
    (batch,), (other,) = train.batches(3), data.head(1).fitted(train).batches(3)
    assert abs(batch.numeric_BN.mean()) < 1e-6 and other.numeric_BN[0] == batch.numeric_BN[0]
