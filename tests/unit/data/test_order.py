"""Files grouped by user, item or label are detected; logs in time order are not."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gearshift.cli.init import init
from gearshift.config import load_config
from gearshift.config.build import datasets
from gearshift.data.dataset import read
from gearshift.data.infer.schema import infer
from gearshift.data.order import ColumnGrouping, grouping_of_end, stands_together
from gearshift.data.schema import Categorical, Label, Schema

SIZE = 3000
Rows = list[dict[str, object]]


def log(seed: int = 1) -> Rows:
    draw = random.Random(seed)
    return [
        {
            "user_id": f"u{draw.randrange(200)}",
            "item": f"i{draw.randrange(60)}",
            "click": int(draw.random() < 0.3),
        }
        for _ in range(SIZE)
    ]


def table(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(rows)


def sessions() -> Rows:
    """In the order of time: a user's examples come in bursts, and users come back."""
    draw, rows = random.Random(2), Rows()
    while len(rows) < SIZE:
        visit, user = len(rows), f"u{draw.randrange(200)}"
        burst = {"user_id": user, "session_id": f"s{visit}"}
        rows += [
            burst | {"item": f"i{draw.randrange(60)}", "click": int(draw.random() < 0.3)} for _ in range(4)
        ]
    return rows


@pytest.mark.parametrize("column", ["user_id", "item"])
def test_examples_that_stand_together(column: str) -> None:
    ordered = sorted(log(), key=lambda row: str(row[column]))
    assert infer(table(ordered)).grouping == ColumnGrouping(column)
    names = sorted({str(row[column]) for row in log()})
    random.Random(4).shuffle(names)
    together = sorted(log(), key=lambda row: names.index(str(row[column])))
    assert infer(table(together)).grouping == ColumnGrouping(column)


def test_a_column_without_a_telling_name_must_be_sorted() -> None:
    rows: Rows = [{"c1": i // 25, "c2": row["item"], "click": row["click"]} for i, row in enumerate(log())]
    assert infer(table(rows)).grouping == ColumnGrouping("c1")
    shuffled = sorted(rows, key=lambda row: int(str(row["c1"])) * 77 % 211)
    assert infer(table(shuffled)).grouping is None


def test_examples_sorted_by_the_label() -> None:
    rows = sorted(log(), key=lambda row: str(row["click"]))
    assert infer(table(rows)).grouping == ColumnGrouping("click", is_label=True)


def test_logs_in_another_order_are_left_alone() -> None:
    assert infer(table(log())).grouping is None
    assert infer(table(sessions())).grouping is None
    days = [row | {"day": i // 100} for i, row in enumerate(log())]
    assert infer(table(days)).grouping is None
    once = [row | {"user_id": f"u{i}"} for i, row in enumerate(log())]  # each user a single time
    assert infer(table(once)).grouping is None
    timed = sorted(log(), key=lambda row: str(row["user_id"]))
    minutes = [row | {"ts": 1_790_000_000 + i} for i, row in enumerate(timed)]
    assert infer(table(minutes)).grouping is None


def test_single_values_do_not_stand_together() -> None:
    assert not stands_together(np.arange(1000))
    assert not stands_together(np.repeat(np.arange(5), 100))
    assert stands_together(np.repeat(np.arange(50), 10))
    assert not stands_together(np.tile(np.repeat(np.arange(50), 5), 2))


@pytest.mark.parametrize("group", ["user_id", None])
def test_missing_values_among_the_others_change_nothing(group: str | None) -> None:
    rows = sorted(log(), key=lambda row: str(row["user_id"]))
    gaps = [row | {"user_id": None} if i % 7 == 0 else row for i, row in enumerate(rows)]
    schema = Schema((Categorical("user_id"), Categorical("item")), (Label("click"),), group=group)
    assert infer(table(gaps)).grouping == ColumnGrouping("user_id")
    assert grouping_of_end(*read(table(gaps), schema).split()) == ColumnGrouping("user_id")


def test_init_then_draws_single_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = sorted(log(), key=lambda row: str(row["user_id"]))
    path = tmp_path / "clicks.csv"
    path.write_text(
        "user_id,item,click\n" + "".join(f"{r['user_id']},{r['item']},{r['click']}\n" for r in rows)
    )
    init(path, tmp_path / "clicks.yaml", label=None, time=None, force=False)
    assert "split by hash (examples are grouped by user_id, so" in capsys.readouterr().out
    text = (tmp_path / "clicks.yaml").read_text()
    assert "split: {by: hash, valid: 10%}" in text
    assert "# examples are grouped by user_id, so the end of the file is not representative" in text
    data = datasets(load_config(tmp_path / "clicks.yaml"))
    assert data.valid is not None
    train, valid = (np.unique(part.read(0, SIZE).ids_BF[:, 0]) for part in (data.train, data.valid))
    assert np.isin(valid, train).mean() > 0.95
    assert grouping_of_end(data.train, data.valid) is None


def test_a_run_knows_when_its_validation_data_are_the_end_of_a_grouped_file() -> None:
    schema = Schema((Categorical("user_id"), Categorical("item")), (Label("click"),))
    by_user = read(table(sorted(log(), key=lambda row: str(row["user_id"]))), schema)
    assert grouping_of_end(*by_user.split()) == ColumnGrouping("user_id")
    assert grouping_of_end(*by_user.split(hash=True)) is None
    assert grouping_of_end(*by_user.split(hash="user_id")) is None
    assert grouping_of_end(by_user, None) is None
    assert grouping_of_end(*read(table(log()), schema).split()) is None
    assert grouping_of_end(*read(table(sessions()), schema).split()) is None
    by_label = read(table(sorted(log(), key=lambda row: str(row["click"]))), schema)
    assert grouping_of_end(*by_label.split()) == ColumnGrouping("click", is_label=True)
