"""A schema survives JSON: it is saved with every model."""

import json

import pytest

from gearshift.data.schema import (
    Bag,
    Bucketized,
    Categorical,
    Label,
    Numeric,
    NumericFit,
    Schema,
    Sequence,
    Vector,
)

FULL = Schema(
    (
        Numeric("price", "log1p", 0.5, NumericFit(1.5, 2.0)),
        Numeric("plain"),
        Bucketized("age", (18.0, 25.0), dim=2),
        Bucketized("height", 10),
        Categorical("user", share_embedding="other"),
        Bag("tags", ",", "sum", 3),
        Sequence("recent", keep="first", share_embedding="user"),
        Vector("text", 128),
    ),
    (Label("click"), Label("buy", "yes", "buy")),
    time="ts",
    group="user",
    weight="w",
    negatives_kept=0.1,
    keep=("user", "ts"),
)


@pytest.mark.parametrize("schema", [FULL, Schema(())])
def test_a_schema_survives_json(schema: Schema) -> None:
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


def test_fields_and_their_tables() -> None:
    assert [f.name for f in FULL.single_fields] == ["age", "height", "user"]
    assert [f.name for f in FULL.ragged_fields] == ["tags", "recent"]
    assert FULL.numeric_width == 130
    assert [FULL.table(f) for f in FULL.fields] == ["age", "height", "other", "tags", "user"]


def test_all_rows_of_a_shared_table_are_as_wide_as_its_owners() -> None:
    owner, wide = Categorical("item"), Categorical("user", dim=4)
    sharers = Sequence("recent", share_embedding="item", dim=8), Bag("liked", share_embedding="user")
    schema = Schema((owner, wide, *sharers))
    assert [schema.row_width(f, 16) for f in schema.fields] == [16, 4, 16, 4]
    from gearshift.models import row_width

    assert [row_width(schema, f, 16) for f in schema.fields] == [16, 4, 16, 4]
