"""Parts of one log: every example is in exactly one, in the log's order."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gearshift.data.dataset import Dataset, read
from gearshift.data.prepare import prepare
from gearshift.data.schema import Categorical, Label, Numeric, Schema
from gearshift.data.split import (
    check_parts,
    days_in_words,
    parse_duration,
    parse_moment,
    parse_share,
)
from gearshift.errors import UserError

DAY = 86_400
START = 1_793_491_200  # 2026-11-01
SCHEMA = Schema((Numeric("n"), Categorical("item")), (Label("click"),), time="ts")
EXAMPLES = 1000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10 days of 100 examples, 50 users."""
    path = tmp_path_factory.mktemp("split") / "log.csv"
    rows = (f"{i % 2},{START + i * DAY // 100},{i},u{i * 7 % 50},i{i % 9}\n" for i in range(EXAMPLES))
    path.write_text("click,ts,n,user,item\n" + "".join(rows))
    return path


def numbers(data: Dataset, **options: int) -> list[int]:
    return [int(v) for b in data.batches(64, **options) for v in b.numeric_BN[:, 0]]  # type: ignore[arg-type]


def test_by_time(log: Path) -> None:
    train, valid = read(log, SCHEMA).split(time="2026-11-08")
    assert numbers(train) == list(range(700))
    assert numbers(valid) == list(range(700, 1000))
    assert numbers(valid, start=250) == list(range(950, 1000))
    assert valid.read(10, 3).numeric_BN[:, 0].tolist() == [710, 711, 712]
    assert train.time_range() == (START, START + 7 * DAY - 1)
    assert valid.time_range() == (START + 7 * DAY, START + 999 * DAY // 100)
    assert train.estimate() == pytest.approx(700, abs=10)
    assert "2026-11-01..07" in train.describe()


def test_by_the_end_of_the_log(log: Path) -> None:
    train, valid = read(log, SCHEMA).split(valid="1d")
    assert numbers(valid) == list(range(900, 1000))
    assert numbers(train) + numbers(valid) == list(range(1000))
    train, valid = read(log, replace(SCHEMA, time=None)).split(valid=0.25)
    assert numbers(train) == list(range(750))
    assert numbers(valid) == list(range(750, 1000))


@pytest.mark.parametrize("column", ["user", "item"])
def test_by_hash_keeps_all_examples_of_a_value_together(log: Path, column: str) -> None:
    schema = replace(SCHEMA, keep=("user", "item"))
    train, valid = read(log, schema).split(hash=column, valid="30%")
    assert sorted(numbers(train) + numbers(valid)) == list(range(1000))
    sides = [
        {v for b in part.batches(99) for v in b.kept.column(column).to_pylist()} for part in (train, valid)
    ]  # type: ignore[union-attr]
    assert not sides[0] & sides[1]
    assert sides[0]
    assert sides[1]


def test_the_hash_split_is_the_same_whatever_the_schema_reads(log: Path, tmp_path: Path) -> None:
    """As a plain column, as a group, as a field, and from prepared data."""
    plain = read(log, SCHEMA)
    grouped = read(log, replace(SCHEMA, group="user"))
    field = read(log, replace(SCHEMA, features=(Numeric("n"), Categorical("user"))))
    prepare(grouped, tmp_path / "ready")
    ready = read(tmp_path / "ready")
    parts = [numbers(data.split(hash="user", valid=0.3)[1]) for data in (plain, grouped, field, ready)]
    assert 150 < len(parts[0]) < 450
    assert parts[0] == parts[1] == parts[2] == parts[3]
    kept = plain.split(hash="user")[0].read(0, 5)
    assert kept.kept is None


def test_a_part_can_be_shuffled_and_split_again(log: Path) -> None:
    rest, test = read(log, SCHEMA).split(time="2026-11-10")
    train, valid = rest.split(time="2026-11-09")
    assert (len(numbers(train)), len(numbers(valid)), len(numbers(test))) == (800, 100, 100)
    shuffled = [int(v) for b in train.batches(64, shuffle=(1, 0)) for v in b.numeric_BN[:, 0]]
    assert sorted(shuffled) == list(range(800)) != shuffled


def test_what_a_split_needs(log: Path) -> None:
    timeless = read(log, replace(SCHEMA, time=None))
    for wrong in ({"time": "2026-11-08"}, {"valid": "1d"}):
        with pytest.raises(UserError, match=r"needs data\.time"):
            timeless.split(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="is not a date or time"):
        read(log, SCHEMA).split(time="tomorrow")
    with pytest.raises(UserError, match="has no column `usr`"):
        read(log, SCHEMA).split(hash="usr", valid=0.1)


def test_words() -> None:
    assert parse_moment("2026-11-01") == START
    assert [parse_duration(t) for t in ("1d", "12h", "30min", "90 s", "2w", "10%")] == [
        DAY,
        43200,
        1800,
        90,
        14 * DAY,
        None,
    ]
    assert [parse_share(v) for v in ("10%", 0.25, "0.5")] == [0.1, 0.25, 0.5]
    for wrong in (0, 1.5, "150%", "many"):
        with pytest.raises(UserError):
            parse_share(wrong)
    assert days_in_words(START, START + 6 * DAY) == "2026-11-01..07"
    assert days_in_words(START, START + 40 * DAY) == "2026-11-01..2026-12-11"
    assert days_in_words(START, START + 5) == "2026-11-01"


def test_positions_of_parts_are_stable_across_passes(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gearshift.data.readers.text.CHUNK_BYTES", 700)
    _, valid = read(log, SCHEMA).split(hash="user", valid=0.3)
    whole = np.array(numbers(valid))
    for first in (0, 5, 100, len(whole) - 1):
        assert valid.read(first, 3).numeric_BN[:, 0].tolist() == whole[first : first + 3].tolist()


def test_a_share_of_a_log_with_time_is_its_latest_part(log: Path) -> None:
    train, valid = read(log, SCHEMA).split(valid="20%")
    assert len(numbers(valid)) == pytest.approx(200, abs=20)
    check_parts(train, valid, None)


def test_a_split_by_hash_may_overlap_in_time(log: Path) -> None:
    train, valid = read(log, SCHEMA).split(hash="user", valid="20%")
    check_parts(train, valid, None)
    early, late = read(log, SCHEMA).split(time="2026-11-05")
    check_parts(early, late, None)
    with pytest.raises(UserError, match="future data would leak"):
        check_parts(late, early, None)


def test_places_of_a_part(log: Path) -> None:
    data = read(log, SCHEMA)
    _, valid = data.split(time="2026-11-08")
    assert valid.locate(10, 3) == f"{log} line 712-714"
    train, _ = data.split(hash="user", valid="30%")
    for first in (0, 137):
        these = [int(n) for n in train.read(first, 20).numeric_BN[:, 0]]
        assert train.locate(first, 20) == f"{log} line {these[0] + 2}-{these[-1] + 2}"
    assert train.locate(10_000, 2) == "examples 10,000-10,001"


def days(folder: Path, name: str, first: int, last: int) -> Dataset:
    lines = (f"{i % 2},{START + i * DAY // 10},{i},u{i % 7},i{i % 9}\n" for i in range(10 * first, 10 * last))
    path = folder / name
    path.write_text("click,ts,n,user,item\n" + "".join(lines))
    return read(path, SCHEMA)


def test_the_same_file_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train = days(tmp_path, "a.csv", 0, 4)
    untimed = replace(SCHEMA, time=None)
    for same in (train, read("a.csv", SCHEMA), train.with_schema(untimed), read("./a.csv", untimed)):
        with pytest.raises(UserError, match=r"a\.csv is in data\.train and in data\.valid: the score would"):
            check_parts(train.with_schema(untimed), same, None)
    later = days(tmp_path, "b.csv", 4, 6)
    with pytest.raises(UserError, match=r"b\.csv is in data\.valid and in data\.test"):
        check_parts(train, later, read(["b.csv"], SCHEMA))
    check_parts(train, train, train, allow_overlap=True)


def test_a_file_that_was_split_is_not_tested_on(tmp_path: Path) -> None:
    whole = days(tmp_path, "a.csv", 0, 4)
    train, valid = whole.split(hash="user", valid="30%")
    check_parts(train, valid, None)
    check_parts(train.fitted(), valid.fitted(), None)
    with pytest.raises(UserError, match=r"a\.csv is in data\.train and in data\.test"):
        check_parts(train, valid, whole)


def test_the_same_prepared_folder_twice(tmp_path: Path) -> None:
    prepare(days(tmp_path, "a.csv", 0, 4), tmp_path / "ready")
    with pytest.raises(UserError, match=r"ready is in data\.train and in data\.valid"):
        check_parts(read(tmp_path / "ready"), read(str(tmp_path / "ready")), None)


def test_the_order_of_train_valid_and_test(tmp_path: Path) -> None:
    first, second, third = (days(tmp_path, f"{i}.csv", 3 * i, 3 * i + 3) for i in range(3))
    check_parts(first, second, third)
    with pytest.raises(UserError, match="test starts 2026-11-01, before train ends 2026-11-06"):
        check_parts(second, None, first)
    with pytest.raises(UserError, match="test starts 2026-11-04, before valid ends 2026-11-09"):
        check_parts(first, third, second)
    users, others = second.split(hash="user", valid="30%")
    with pytest.raises(UserError, match="test starts 2026-11-01, before train ends 2026-11-06"):
        check_parts(users, others, first)


def test_the_range_of_compressed_files(tmp_path: Path) -> None:
    """Their ends are looked at too, also if the files are small or their names are not in the order of time."""
    rows = [f"{i % 2},u{i % 50},{i},{START + i * 20}\n" for i in range(30_000)]
    text = "click,item,n,ts\n" + "".join(rows)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    data = read(tmp_path / "a.csv.gz", SCHEMA)
    assert data.time_range() == (START, START + 29_999 * 20)
    train, valid = data.split(valid="10%")
    assert train.describe().endswith("2026-11-01..07")
    assert valid.describe().endswith("2026-11-07")
    many = tmp_path / "many"
    many.mkdir()
    for name, part in {"b": rows[:15_000], "a": rows[15_000:]}.items():
        packed = gzip.compress(("click,item,n,ts\n" + "".join(part)).encode())
        (many / f"{name}.csv.gz").write_bytes(packed)
    assert read(many, SCHEMA).time_range() == (START, START + 29_999 * 20)


def test_a_range_is_never_reversed(tmp_path: Path) -> None:
    """In an unordered log, a part may lie outside the range at the ends of the file."""
    days = [*([0] * 15_000), *([30] * 3_000), *([1] * 15_000)]
    text = "click,item,n,ts\n" + "".join(
        f"1,u{i % 50},{i},{START + day * DAY}\n" for i, day in enumerate(days)
    )
    (tmp_path / "a.csv").write_text(text)
    data = read(tmp_path / "a.csv", SCHEMA)
    for part in data.split(time="2026-11-20"):
        span = part.time_range()
        assert span is not None and span[0] <= span[1]


def test_single_examples_by_hash() -> None:
    schema = Schema((Categorical("user"),), (Label("click"),))
    table = pa.table({"user": [f"u{i}" for i in range(5000)], "click": [i % 2 for i in range(5000)]})
    train, valid = read(table, schema).split(hash=True, valid="20%")
    parts = [set(part.read(0, 5000).ids_BF[:, 0].tolist()) for part in (train, valid)]
    assert len(parts[0]) + len(parts[1]) == 5000
    assert not parts[0] & parts[1]
    assert 900 < len(parts[1]) < 1100
    again = read(table, schema).split(hash=True, valid="20%")[1]
    assert set(again.read(0, 5000).ids_BF[:, 0].tolist()) == parts[1]
    check_parts(train, valid, None)
