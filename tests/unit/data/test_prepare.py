"""Prepared data equal the raw ones bit for bit; the folder is whole or absent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gearshift.data.batch import Batch
from gearshift.data.dataset import Dataset, read
from gearshift.data.prepare import prepare
from gearshift.data.schema import (
    Bag,
    Bucketized,
    Categorical,
    Label,
    Numeric,
    Schema,
    Sequence,
    Vector,
)
from gearshift.errors import UserError

SCHEMA = Schema(
    (
        Numeric("price", "log1p", "mean"),
        Vector("place", 2, separator=";"),
        Numeric("age", "standardize"),
        Bucketized("age", 4),
        Categorical("user", dim=4),
        Bag("tags", max_len=3),
        Sequence("recent", separator=" ", max_len=2, share_embedding="user"),
    ),
    (Label("click"), Label("buy", positive="yes", task="buy")),
    time="ts",
    group="user",
    weight="w",
    keep=("user", "ts"),
)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("raw") / "clicks.csv"
    lines = ["click,buy,ts,user,price,age,tags,recent,place,w"]
    for i in range(700):
        age = "" if i % 7 == 0 else str(i % 90)
        tags, recent = "|".join("abcdef"[: i % 6]), " ".join(f"u{j}" for j in range(i % 5))
        start = f"{i % 2},{'yes' if i % 3 else 'no'},{1_761_955_200 + i},u{i % 9},{i / 8},{age}"
        lines.append(f"{start},{tags},{recent},{i};-1.5,{i % 4}")
    path.write_text("\n".join(lines))
    return read(path, SCHEMA).fitted()


def assert_equal(a: Batch, b: Batch) -> None:
    assert a.first == b.first
    for name in ("labels_BT", "numeric_BN", "ids_BF", "weights_B", "times_B", "groups_B"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    for ragged_a, ragged_b in zip(a.ragged, b.ragged, strict=True):
        np.testing.assert_array_equal(ragged_a.ids, ragged_b.ids)
        np.testing.assert_array_equal(ragged_a.offsets, ragged_b.offsets)
    assert (a.kept is None) == (b.kept is None)
    assert a.kept is None or a.kept.to_pydict() == b.kept.to_pydict()


def test_prepared_equals_raw_bit_for_bit(
    raw: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gearshift.data.prepare.GROUP_EXAMPLES", 64)
    monkeypatch.setattr("gearshift.data.prepare.FILE_GROUPS", 3)
    info = prepare(raw, tmp_path / "ready")
    assert info.examples == 700
    assert len(list((tmp_path / "ready").glob("*.parquet"))) == 4
    ready = read(tmp_path / "ready")
    assert ready.count() == 700
    assert ready.time_range() == raw.time_range()
    for size, start in ((100, 0), (33, 450), (1000, 191)):
        pairs = zip(ready.batches(size, start=start), raw.batches(size, start=start), strict=True)
        for a, b in pairs:
            assert_equal(a, b)


def test_a_schema_may_take_part_of_what_was_prepared(raw: Dataset, tmp_path: Path) -> None:
    prepare(raw, tmp_path / "ready")
    requested = Schema((Categorical("user", dim=32), Numeric("price", "log1p", "mean")), (Label("click"),))
    batch = read(tmp_path / "ready", requested).read(0, 50)
    assert batch.ids_BF.shape == (50, 1)
    assert batch.numeric_BN.shape == (50, 1)
    fitted = read(tmp_path / "ready", requested).schema.features[1]
    assert isinstance(fitted, Numeric)
    assert fitted.fit is not None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"features": (Numeric("price", "none"),)}, "feature `price` was prepared with different settings"),
        ({"features": (Categorical("city"),)}, "feature `city` is not in it"),
        ({"keep": ("city",)}, "column `city` is not in it"),
        ({"labels": (Label("like", task="like"),)}, "column `like` is not in it"),
    ],
)
def test_what_was_not_prepared_is_refused_by_name(
    raw: Dataset, tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    prepare(raw, tmp_path / "ready")
    with pytest.raises(UserError, match=sentence):
        read(tmp_path / "ready", replace(SCHEMA, **change))  # type: ignore[arg-type]


def test_a_full_folder_is_not_touched(raw: Dataset, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is not empty"):
        prepare(raw, tmp_path / "mine", overwrite=True)
    prepare(raw, tmp_path / "ready")
    with pytest.raises(UserError, match="exists and is not empty"):
        prepare(raw, tmp_path / "ready")
    prepare(raw, tmp_path / "ready", overwrite=True)


def test_nothing_is_left_behind_after_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("click,user\n1,a\n2,b\n")
    with pytest.raises(UserError, match="line 3"):
        prepare(read(path, Schema((Categorical("user"),), (Label("click"),))), tmp_path / "ready")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["clicks.csv"]


def test_an_older_or_foreign_folder_is_refused(raw: Dataset, tmp_path: Path) -> None:
    prepare(raw, tmp_path / "ready")
    manifest = tmp_path / "ready" / "manifest.json"
    plain = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(plain | {"version": 0}))
    with pytest.raises(UserError, match="prepared in format 0"):
        read(tmp_path / "ready")
    manifest.write_text("{")
    with pytest.raises(UserError, match="damaged"):
        read(tmp_path / "ready")


def test_a_missing_or_damaged_part_is_one_sentence(raw: Dataset, tmp_path: Path) -> None:
    prepare(raw, tmp_path / "ready")
    part = tmp_path / "ready" / "part-00000.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"part-00000\.parquet cannot be read"):
        list(read(tmp_path / "ready").batches(100))
    part.unlink()
    with pytest.raises(UserError, match=r"part-00000\.parquet is missing; copy the folder again"):
        read(tmp_path / "ready")
