"""A model reads all data with the number marks of its training data; explicit settings take precedence."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from gearshift.config.build import datasets
from gearshift.config.load import config_from
from gearshift.data.dataset import CsvFormat, Dataset, read
from gearshift.data.prepare import prepare
from gearshift.data.schema import Label, Numeric, Schema

SCHEMA = Schema((Numeric("price"),), (Label("click"),))


def written(path: Path, *prices: str) -> Path:
    lines = [f"{i % 3 // 2};{prices[i % len(prices)]}" for i in range(60)]
    path.write_text("\n".join(["click;price", *lines]) + "\n")
    return path


def prices(dataset: Dataset, count: int = 2) -> list[float]:
    return dataset.read(0, count).numeric_BN[:, 0].tolist()


def test_other_data_take_the_marks_of_the_training_data(tmp_path: Path) -> None:
    train = read(written(tmp_path / "train.csv", "3,5", "7,212"), SCHEMA).fitted()
    assert (train.schema.decimal, train.schema.thousands) == (",", "")
    assert Schema.from_dict(train.schema.to_dict()) == train.schema
    other = written(tmp_path / "valid.csv", "7,212", "12,000")  # alone: thousands
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is guessed, so there is nothing in doubt
        assert prices(read(other, train.schema)) == pytest.approx([7.212, 12])
    with pytest.warns(match="three digits after every comma"):
        alone = read(other, SCHEMA)
    assert prices(alone) == [7212, 12000]
    assert prices(alone.fitted(train)) == pytest.approx([7.212, 12])
    assert prices(alone.head(9).with_schema(train.schema)) == pytest.approx([7.212, 12])


def test_what_is_stated_goes_before_what_was_learned(tmp_path: Path) -> None:
    schema = replace(SCHEMA, decimal=",", thousands=".")
    path = written(tmp_path / "a.csv", "7.212", "3")
    assert prices(read(path, schema)) == [7212, 3]
    assert prices(read(path, schema, csv=CsvFormat(decimal=","))) == [7212, 3]
    assert prices(read(path, schema, csv=CsvFormat(decimal="."))) == pytest.approx([7.212, 3])


def test_models_of_before_guess(tmp_path: Path) -> None:
    old = {k: v for k, v in SCHEMA.to_dict().items() if k not in ("decimal", "thousands")}
    path = written(tmp_path / "a.csv", "7,2", "3")
    assert prices(read(path, Schema.from_dict(old))) == pytest.approx([7.2, 3])


def test_formats_with_fixed_marks_have_none_to_learn(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"click": 1, "price": 3.5}\n{"click": 0, "price": "7.212"}\n')
    assert read(tmp_path / "a.jsonl", SCHEMA).fitted().schema == SCHEMA
    marked = replace(SCHEMA, decimal=",", thousands=".")
    assert prices(read(tmp_path / "a.jsonl", marked)) == pytest.approx([3.5, 7.212])


def test_prepared_data_remember_them(tmp_path: Path) -> None:
    prepare(read(written(tmp_path / "a.csv", "3,5"), SCHEMA), tmp_path / "prepared")
    found = read(tmp_path / "prepared", SCHEMA).schema
    assert (found.decimal, found.thousands) == (",", "")


def test_validation_data_of_a_config(tmp_path: Path) -> None:
    train = written(tmp_path / "train.csv", "3,5", "7,212")
    valid = written(tmp_path / "valid.csv", "7,212", "12,000")
    plain = {"data": {"train": str(train), "valid": str(valid), "label": "click"}}
    plain["features"] = [{"name": "price", "type": "numeric", "transform": "none"}]  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = datasets(config_from(plain, []))
    assert data.valid is not None
    assert prices(data.valid) == pytest.approx([7.212, 12])
