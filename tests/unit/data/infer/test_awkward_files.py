"""Files of real exports: a guess may be poor, but it has a reason and never causes an internal error."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import gearshift as gs


def test_a_binary_column_of_other_bytes_than_text(tmp_path: Path) -> None:
    device = pa.array([f"d{i % 4}".encode() + b"\xff" for i in range(400)], pa.binary())
    pq.write_table(
        pa.table({"click": [i % 3 // 2 for i in range(400)], "device": device}), tmp_path / "a.parquet"
    )
    schema = gs.infer_schema(tmp_path / "a.parquet", label="click")
    assert [feature.name for feature in schema.features] == ["device"]


def test_files_of_a_folder_that_store_a_column_differently(tmp_path: Path) -> None:
    users = [i % 20 for i in range(400)]
    for name, kind in (("a", pa.int64()), ("b", pa.float64())):
        table = pa.table({"click": [i % 3 // 2 for i in range(400)], "user_id": pa.array(users, kind)})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    schema = gs.infer_schema(tmp_path, label="click")
    assert [feature.name for feature in schema.features] == ["user_id"]


def test_numbers_with_two_decimal_marks(tmp_path: Path) -> None:
    lines = [f"{i % 3 // 2};u{i % 20};" + f"{i % 97 + 0.25}".replace(".", ",."[i % 2]) for i in range(2000)]
    (tmp_path / "a.csv").write_text("\n".join(["click;user;bid", *lines]) + "\n")
    schema = gs.infer_schema(tmp_path / "a.csv", label="click")
    assert {feature.name for feature in schema.features} >= {"user", "bid"}
