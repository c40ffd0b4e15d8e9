"""The config that `init` writes gives the inferred schema, with a reason for each guess."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gearshift.cli.init_config import Extent, recommended_global_batch, written
from gearshift.config import load_config
from gearshift.config.few_steps import FEW_STEPS, SMALL_BATCH
from gearshift.data.readers.csv_format import CsvFormat
from gearshift.data.schema import (
    Bag,
    Bucketized,
    Categorical,
    Feature,
    Label,
    Numeric,
    Schema,
    Sequence,
    Vector,
)

FOUND = CsvFormat(",", True, quote='"', trim=False, decimal=".")


@dataclass(frozen=True)
class Guess:
    column: str
    guess: str
    why: str
    left_out: Feature | None = None


@dataclass(frozen=True)
class Inferred:
    schema: Schema
    guesses: tuple[Guess, ...] = ()
    format: str = "csv"
    csv: CsvFormat = FOUND
    grouping: Any = None


FEATURES: tuple[Feature, ...] = (
    Categorical("user_id"),
    Categorical("item id: [x]"),
    Categorical("007"),
    Numeric("price", "log1p", "mean"),
    Numeric("on", "standardize"),
    Numeric("score"),
    Bucketized("age", (18.0, 25.0)),
    Bag("tags", "|", max_len=10),
    Sequence("recent", " ", share_embedding="user_id"),
    Vector("v", 4),
)
SHOP = Schema(FEATURES, (Label("click", "yes"),), time="ts", group="user_id", weight="w")


WEEK = Extent(2_000_000, (0, 7 * 86400))


def config_of(tmp_path: Path, found: Inferred, name: str = "shop", extent: Extent | None = None) -> Any:
    extent = extent or (WEEK if found.schema.time else Extent(2_000_000))
    (tmp_path / "a.yaml").write_text(written(found, Path("clicks.csv"), name, extent))
    return load_config(tmp_path / "a.yaml")


def test_every_kind_of_feature_is_read_back(tmp_path: Path) -> None:
    config = config_of(tmp_path, Inferred(SHOP))
    assert config.schema() == SHOP
    assert config.name == "shop"
    assert config.data.train == ("clicks.csv",)


def test_every_guess_stands_beside_its_line_with_its_reason() -> None:
    guesses = (
        Guess("click", "label", "0/1, 3.4 % ones"),
        Guess("ts", "time", "integers, ascending"),
        Guess("price", "numeric, log1p", "skew 11.2"),
        Guess("request_id", "ignored", "one value per\nexample"),
    )
    lines = written(Inferred(SHOP, guesses), Path("clicks.csv"), "shop", WEEK).splitlines()
    for column, reason in (("click", "0/1"), ("ts", "integers"), ("price", "skew 11.2")):
        assert any(column in line and line.split(" # ", 1)[-1].startswith(reason) for line in lines), column
    (ignored,) = [line for line in lines if "request_id" in line]
    assert ignored.startswith("# - {name: request_id") and ignored.endswith(
        "# ignored: one value per example"
    )


def test_how_the_text_is_cut_is_written_down(tmp_path: Path) -> None:
    csv = CsvFormat("\t", False, ("a", "b"), ("", "NULL"), "none", True, ",", 20, "latin-1")
    config = config_of(tmp_path, Inferred(Schema((Categorical("a"),), (Label("b"),)), csv=csv))
    found = config.data.csv
    assert (found.delimiter, found.header, found.columns) == ("\t", False, ("a", "b"))
    assert (found.null, found.quote, found.trim, found.decimal) == (("", "NULL"), "none", True, ",")
    assert (found.quoted_lines, found.encoding) == (20, "latin-1")
    assert config.schema().null == ("", "NULL")  # so that gs.read(path, gs.Schema.load(...)) knows them too


def test_built_in_features_are_left_built_in(tmp_path: Path) -> None:
    from gearshift.data.readers.public_logs import KNOWN_LOGS

    config = config_of(tmp_path, Inferred(KNOWN_LOGS["criteo"], format="criteo"))
    assert config.features is None
    assert config.schema() == KNOWN_LOGS["criteo"]


@pytest.mark.parametrize(
    ("features", "model"),
    [
        ((Categorical("a"),), "deepfm"),
        ((Numeric("a"), Numeric("b")), "dnn"),
        ((Categorical("a"), Sequence("h", share_embedding="a")), "din"),
        ((Categorical("a"), Sequence("h")), "deepfm"),
    ],
)
def test_the_model_fits_the_features(tmp_path: Path, features: tuple[Feature, ...], model: str) -> None:
    assert config_of(tmp_path, Inferred(Schema(features))).model.name == model


@pytest.mark.parametrize(("examples", "batch"), [(1000, 32), (20_000, 256), (200_000, 1024), (10**7, 4096)])
def test_small_logs_get_small_batches(tmp_path: Path, examples: int, batch: int) -> None:
    config = config_of(tmp_path, Inferred(Schema((Categorical("a"),))), extent=Extent(examples))
    assert config.train.global_batch == batch


def test_the_split_is_by_time_where_there_are_days(tmp_path: Path) -> None:
    timed = Schema((Categorical("a"),), time="ts")
    assert config_of(tmp_path, Inferred(timed)).data.split.by == "time"
    an_hour = Extent(1000, (0, 3600))
    assert config_of(tmp_path, Inferred(timed), extent=an_hour).data.split.by == "end"
    assert config_of(tmp_path, Inferred(timed), extent=Extent(1000)).data.split.by == "end"


names = st.text(min_size=1)


@settings(deadline=None)
@given(column=names, label=names, separator=names, why=st.text(), name=names)
def test_any_text_of_a_file_survives(
    tmp_path_factory: pytest.TempPathFactory, column: str, label: str, separator: str, why: str, name: str
) -> None:
    if column == label:
        return
    schema = Schema((Bag(column, separator),), (Label(label, positive=(separator,)),))
    found = Inferred(schema, (Guess(column, "bag", why), Guess(label, "label", why)))
    config = config_of(tmp_path_factory.mktemp("init"), found, name, Extent(1000))
    assert config.schema() == schema
    assert config.name == name


def test_the_batch_leaves_steps_enough_that_train_does_not_complain() -> None:
    for examples in (1_000, 1_800, 3_000, 10_000, 14_300, 49_999, 60_000, 2_000_000):
        batch = recommended_global_batch(examples)
        assert 0.9 * examples / batch >= FEW_STEPS or batch == SMALL_BATCH
    assert [recommended_global_batch(n) for n in (300, 20_000, 500_000, 10**7)] == [32, 256, 1024, 4096]
