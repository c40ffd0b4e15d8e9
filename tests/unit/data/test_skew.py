"""Columns that are written differently than in training are reported; columns with only new values are not."""

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import gearshift as gs
from gearshift.data import skew
from gearshift.data.dataset import Dataset
from gearshift.data.schema import Form, Schema
from gearshift.data.skew import ENOUGH_EXAMPLES, SkewWatch, differences
from gearshift.data.value_forms import observed_forms

N = 2_000


def column(make: Callable[[random.Random], Any], n: int = N, seed: int = 1) -> list[Any]:
    draw = random.Random(seed)
    return [make(draw) for _ in range(n)]


def data(values: Any, feature: Any = None) -> Dataset:
    table = pa.table({"click": [i % 2 for i in range(len(values))], "x": values})
    return gs.read(table, Schema((feature or gs.Categorical("x"),), (gs.Label("click"),)))


def forms(values: Any, feature: Any = None) -> tuple[Form, ...]:
    return observed_forms(data(values, feature).examples)


def told(trained: Any, given: Any, feature: Any = None) -> str | None:
    found = differences(forms(trained, feature), forms(given, feature), "new.csv")
    return found.get("x")


PADDED = column(lambda d: f"{d.randrange(300):05d}")
IDS = column(lambda d: d.randrange(1, 90_000))
FLAGS = column(lambda d: d.random() < 0.5)
DAYS = [dt.date(2026, 11, 1 + i % 20) for i in range(N)]
TIMES = [dt.datetime(2026, 11, 1 + i % 20, i % 24) for i in range(N)]


def text(values: list[Any]) -> list[str]:
    return [str(value) for value in values]


@pytest.mark.parametrize(
    ("trained", "given", "there", "here", "fix"),
    [
        (PADDED, [int(v) for v in PADDED], "text like 00007", "integers like 1", 'dtype={"x": str}'),
        (PADDED, [int(PADDED[0])], "text like 00007", "integers like ", 'dtype={"x": str}'),
        (PADDED, text([int(v) for v in PADDED]), "text like 00007", "text like 1", 'dtype={"x": str}'),
        (PADDED, [float(v) for v in PADDED], "text like 00007", "floats like 7.0", 'dtype={"x": str}'),
        ([int(v) for v in PADDED], PADDED, "integers like 1", "text like 00007", 'astype("Int64")'),
        (IDS, ["00017"], "integers like 1", "text like 00007", 'astype("Int64")'),
        (text(IDS), text([float(v) for v in IDS]), "text like 1", "text like 7.0", 'astype("Int64")'),
        (text([float(v) for v in IDS]), IDS, "text like 7.0", "integers like 1", "like 7.0"),
        (text(FLAGS), FLAGS, "text like True", "booleans like true", "astype(str)"),
        (FLAGS, text(FLAGS), "booleans like true", "text like True", "astype(bool)"),
        ([int(v) for v in FLAGS], FLAGS, "integers like 1", "booleans like true", "astype(int)"),
        (FLAGS, [int(v) for v in FLAGS], "booleans like true", "integers like 1", "astype(bool)"),
        (text(DAYS), TIMES, "text like 2026-11-01", "times like 2026-11-01 10:30:00", "like 2026-11-01"),
        (TIMES, text(DAYS), "times like 2026-11-01 10:30", "text like 2026-11-01", "pd.to_datetime(df['x'])"),
        ([10**17 + v for v in IDS], [float(10**17 + v) for v in IDS], "integers of many", "round", '"Int64"'),
    ],
)  # fmt: skip
def test_a_column_written_differently_is_told_with_the_fix(
    trained: Any, given: Any, there: str, here: str, fix: str
) -> None:
    sentence = told(trained, given)
    assert sentence is not None
    assert sentence.startswith("column `x` of new.csv is written differently than in training (")
    was, now = sentence.partition("(")[2].partition("), so")[0].split(" there, ")
    assert there in was and here in now and fix in sentence.partition("its values: ")[2]


@pytest.mark.parametrize(
    ("trained", "given"),
    [
        (text(IDS), IDS),  # one category, however they come
        (IDS, [float(v) for v in IDS]),
        (IDS, [None, *map(float, IDS[1:])]),
        (IDS, column(lambda d: d.randrange(10**6, 10**7))),  # ids grow
        (column(lambda d: f"{d.randrange(100, 99_999):05d}"), column(lambda d: str(d.randrange(10_001, 10_999)))),
        (column(lambda d: d.choice(["nike", "7", "007"])), ["adidas"] * N),
        (column(lambda d: f"{d.getrandbits(32):08x}"), column(lambda d: f"{d.getrandbits(32):08x}", seed=2)),
        (PADDED, PADDED[:1]),
        (PADDED, pa.array(PADDED).dictionary_encode()),
        (PADDED, [None] * 10),
        (text(DAYS), text(DAYS[:3])),
        (FLAGS, [True]),
    ],
)  # fmt: skip
def test_a_column_with_new_values_written_alike_is_not(trained: Any, given: Any) -> None:
    assert told(trained, given) is None


def test_lists_are_compared_by_what_they_hold() -> None:
    bag = gs.Bag("x", separator="|")
    joined = ["|".join(PADDED[i : i + 3]) for i in range(N)]
    numbers = [[int(v) for v in PADDED[i : i + 3]] for i in range(N)]
    assert "text like 00007 there, integers like" in (told(joined, numbers, bag) or "")
    assert told(joined, [PADDED[i : i + 3] for i in range(N)], bag) is None


def test_a_number_may_be_written_in_any_way_but_a_time_is_another_number() -> None:
    number = gs.Numeric("x")
    assert told(text(IDS), [float(v) for v in IDS], number) is None
    assert told(PADDED, [int(v) for v in PADDED], number) is None
    sentence = told(TIMES, [10**18 + v for v in IDS], number)
    assert sentence is not None and "(times there, integers here)" in sentence


def test_a_schema_keeps_the_forms_and_one_without_them_still_opens() -> None:
    schema = Schema((gs.Categorical("x"),), forms=forms(PADDED))
    plain = schema.to_dict()
    assert Schema.from_dict(plain) == schema and schema.forms[0].kind == "text"
    del plain["forms"]  # as versions before wrote it
    assert Schema.from_dict(plain) == replace(schema, forms=())


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The columns whose values were looked at, call by call."""
    calls: list[list[str]] = []
    look = skew.forms_of

    def counted(source: Any, features: Any) -> tuple[Form, ...]:
        calls.append([feature.name for feature in features])
        return look(source, features)

    monkeypatch.setattr(skew, "forms_of", counted)
    return calls


@pytest.mark.parametrize("size", [1, 7, N])
def test_a_watch_looks_at_a_column_until_it_is_judged(compared: list[list[str]], size: int) -> None:
    watch, trained = SkewWatch(), forms(PADDED)
    for first in range(500):
        rows = [PADDED[(first * size + i) % N] for i in range(size)]
        assert watch.remarks(data(rows).examples, trained) == {}
    assert compared == [["x"]] * -(-ENOUGH_EXAMPLES // size)


def test_a_watch_judges_small_tables_together() -> None:
    """One example without a leading zero may be chance, many are not."""
    watch, trained = SkewWatch(), forms(column(lambda d: "00007" if d.random() < 0.3 else "nike"))
    found = [watch.remarks(data(["7"]).examples, trained) for _ in range(50)]
    assert found[0] == {} and "text like 00007 there" in found[-1]["x"]


def test_a_watch_compares_values_of_another_kind_and_another_file(
    compared: list[list[str]], tmp_path: Path
) -> None:
    watch, trained = SkewWatch(), forms(PADDED)
    assert watch.remarks(data(PADDED).examples, trained) == {}
    assert "integers like" in watch.remarks(data([7]).examples, trained)["x"]
    for name, values in (("good", PADDED), ("bad", [int(v) for v in PADDED])):
        path = tmp_path / f"{name}.csv"
        path.write_text("click,x\n" + "".join(f"{i % 2},{v}\n" for i, v in enumerate(values)))
        examples = gs.read(path, data([7]).schema).examples
        assert ("x" in watch.remarks(examples, trained)) == (name == "bad")
        assert watch.remarks(examples, trained) == {}  # judged
    assert len(compared) == 4
