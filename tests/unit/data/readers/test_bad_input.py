"""Defects of users' files are handled, or give one sentence with the file, the line and the fix."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gearshift.data.dataset import read
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
from gearshift.data.split import check_parts
from gearshift.errors import UserError

SCHEMA = Schema((Categorical("user"), Numeric("price")), (Label("click"),))
GOOD = "click,user,price\n1,a,2.5\n0,b,\n"


def file(folder: Path, text: str | bytes, name: str = "clicks.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(source: object, schema: Schema = SCHEMA, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        list(read(source, schema, **options).batches(10))  # type: ignore[arg-type]
    return str(caught.value)


def values(path: Path, **options: object) -> list[tuple[float, float]]:
    batch = read(path, SCHEMA, **options).read(0, 100)  # type: ignore[arg-type]
    return list(zip(batch.labels_BT[:, 0].tolist(), batch.numeric_BN[:, 0].tolist(), strict=True))


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.replace("\n", "\r\n"),
        "\ufeff" + GOOD,
        "\ufeff" + GOOD.replace("\n", "\r\n"),
        GOOD.rstrip("\n"),
        GOOD.replace("\n", "\n\n"),
        '"click","user","price"\n"1","a","2.5"\n0,b,""\n',
        "price;user;click\n2,5;a;1\n;b;0\n",
        "click\tuser\tprice\n1\ta\t2.5\n0\tb\tNaN\n",
    ],
)
def test_harmless_differences_do_not_matter(tmp_path: Path, text: str) -> None:
    assert values(file(tmp_path, text)) == [(1, 2.5), (0, 0)]


def test_quoted_separators_newlines_and_quotes(tmp_path: Path) -> None:
    text = 'click,user,price\n1,"a, ""b""\nc",1\n0,"x",2\n1,y,oops\n'
    keep = Schema(SCHEMA.features, SCHEMA.labels, keep=("user",))
    batch = read(file(tmp_path, text.replace("oops", "3")), keep).read(0, 9)
    assert batch.kept is not None
    assert batch.kept.column("user").to_pylist() == ['a, "b"\nc', "x", "y"]
    assert "line 5: feature `price` is 'oops'" in refusal(file(tmp_path, text))


def test_a_missing_file_says_what_is_there(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.csv").startswith(f"no such file: {tmp_path}/no.csv")
    for day in range(1, 8):
        file(tmp_path, GOOD, f"clicks-0{day}.csv")
    pattern = str(tmp_path / "clicks-0[1-7].csv.gz")
    assert refusal(pattern) == (
        f"no such file: {pattern} (folder {tmp_path}/ has 7 files that end in .csv: drop .gz?)"
    )
    assert "did you mean" in refusal(tmp_path / "cliks-01.csv")
    assert "there is no folder" in refusal(tmp_path / "nowhere" / "clicks.csv")
    (tmp_path / "empty").mkdir()
    assert "the folder contains no data files" in refusal(tmp_path / "empty")


def test_a_wrong_column_count(tmp_path: Path) -> None:
    path = file(tmp_path, "click,user,price\n1,a,2\n0,b\n1,c,3,4\n")
    assert refusal(path) == (
        f"{path} line 3: 2 columns where the header has 3. "
        "Fix the line, or allow some: data.bad_lines={skip: 1000}"
    )


def test_a_foreign_label(tmp_path: Path) -> None:
    path = file(tmp_path, "click,user,price\nyes,a,2\nno,b,3\n")
    assert refusal(path) == (
        f"{path} line 2: label `click` is 'yes'; expected 0 or 1. "
        'Set the value that means a click: data.label={column: click, positive: "yes"}'
    )
    mapped = Schema(SCHEMA.features, (Label("click", positive="yes"),))
    assert read(path, mapped).read(0, 9).labels_BT[:, 0].tolist() == [1, 0]
    assert "line 2: label `click` is missing" in refusal(file(tmp_path, "click,user,price\n,a,2\n"))


def test_a_foreign_label_among_zeros_and_ones(tmp_path: Path) -> None:
    path = file(tmp_path, "click,user,price\n1,a,2\nmaybe,b,3\n0,b,3\n")
    assert refusal(path) == (
        f"{path} line 3: label `click` is 'maybe'; expected 0 or 1. "
        "Fix the line, or allow some: data.bad_lines={skip: 1000}"
    )


@pytest.mark.parametrize("bad", ["abc", "inf", "-Infinity", "1e999", "1,5", "0x10", "1.2.3"])
def test_what_is_no_finite_number(tmp_path: Path, bad: str) -> None:
    path = file(tmp_path, f'click,user,price\n1,a,1\n1,a,"{bad}"\n')
    message = refusal(path, csv=CsvFormat(","))
    assert message.startswith(f"{path} line 3: feature `price` is '{bad}'; expected a finite number.")


@pytest.mark.parametrize("missing", ["", "NaN", "nan", "NULL", "NA", "\\N", "?", " "])
def test_words_for_a_missing_number(tmp_path: Path, missing: str) -> None:
    path = file(tmp_path, f"click,user,price\n1,a,{missing}\n0,b,7\n")
    assert values(path, csv=CsvFormat(",")) == [(1, 0), (0, 7)]


def test_bad_lines_are_skipped_counted_and_listed(tmp_path: Path) -> None:
    path = file(tmp_path, "click,user,price\n1,a,1\n0,b\nmaybe,c,3\n1,d,four\n0,e,5\n")
    data = read(path, SCHEMA, bad_lines=3)
    for _ in range(2):  # a second pass counts nothing twice
        assert [len(b) for b in data.batches(10)] == [2]
    assert [(bad.place.number, bad.reason) for bad in data.skipped] == [
        (3, "2 columns where the header has 3"),
        (4, "label `click` is 'maybe'; expected 0 or 1"),
        (5, "feature `price` is 'four'; expected a finite number"),
    ]
    assert data.read(1, 1).numeric_BN.tolist() == [[5]]
    assert "that is bad line 3 where data.bad_lines allows 2" in refusal(path, bad_lines=2)


def test_empty_files(tmp_path: Path) -> None:
    assert refusal(file(tmp_path, "")) == f"{tmp_path}/clicks.csv is empty."
    assert refusal(file(tmp_path, "\n\n")) == f"{tmp_path}/clicks.csv is empty."
    assert "has no examples, only a header" in refusal(file(tmp_path, "click,user,price\n"))
    assert refusal(file(tmp_path, "", "x.parquet")) == f"{tmp_path}/x.parquet is empty."
    assert "no examples" in refusal(pa.table({"click": pa.array([], pa.int8()), "user": [], "price": []}))


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    path = file(tmp_path, "click,usr,price\n1,a,2\n")
    assert refusal(path) == f"{path} has no column `user`. Did you mean `usr`?"


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_compressed_file_that_ends_early(tmp_path: Path, ending: str) -> None:
    random = np.random.default_rng(1)
    lines = "".join(f"{i % 2},u{random.integers(10**9)},{i}\n" for i in range(40_000))
    text = ("click,user,price\n" + lines).encode()
    packed = gzip.compress(text) if ending == "gz" else pa.compress(text, codec="zstd", asbytes=True)
    whole = file(tmp_path, packed, f"a.csv.{ending}")
    assert sum(len(b) for b in read(whole, SCHEMA).batches(1000)) == 40_000
    cut = file(tmp_path, packed[: len(packed) // 2], f"b.csv.{ending}")
    kind = {"gz": "gzip", "zst": "zstd"}[ending]
    message = refusal([cut, whole])
    start = rf"{cut}: the {kind} stream ends early after ([\d,]+) examples; the copy is incomplete"
    match = re.fullmatch(start + r" \(.*, the other files about .*\)\.", message)
    assert match, message
    assert 10_000 < int(match[1].replace(",", "")) < 30_000


def test_a_damaged_compressed_file(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(GOOD.encode() * 1000))
    packed[len(packed) // 2] ^= 0xFF
    message = refusal(file(tmp_path, bytes(packed), "c.csv.gz"))
    assert "c.csv.gz" in message
    assert "gzip" in message
    assert "gzip" in refusal(file(tmp_path, GOOD, "plain.csv.gz"))


def test_a_quote_that_never_closes(tmp_path: Path) -> None:
    path = file(tmp_path, 'click,user,price\n1,a,1\n0,"b,2\n1,c,3\n')
    assert f"{path} line 3: the quote that opens here never closes" in refusal(path)
    plain = read(path, SCHEMA, csv=CsvFormat(quote="none"))
    assert plain.read(0, 9).numeric_BN[:, 0].tolist() == [1, 2, 3]


def test_text_that_is_none(tmp_path: Path) -> None:
    assert "UTF-16" in refusal(file(tmp_path, GOOD.encode("utf-16")))
    assert "not a text file" in refusal(file(tmp_path, b"\x7fELF\0\0\0"))
    assert "not a readable Parquet file" in refusal(file(tmp_path, GOOD, "x.parquet"))


def test_an_object_that_holds_no_table() -> None:
    assert refusal(7).startswith(
        "cannot read an object of type int: pass file names, or an object with __arrow_c_stream__"
    )
    assert refusal([]) == "the list of data files is empty"


def test_a_separator_that_never_occurs(tmp_path: Path) -> None:
    rows = "".join(f"{i % 2},a b c {'d' * (i % 3)}\n" for i in range(30))
    schema = Schema((Sequence("recent", separator="|"),), (Label("click"),))
    data = read(file(tmp_path, "click,recent\n" + rows), schema)
    with pytest.raises(UserError) as caught:
        data.fitted()
    assert str(caught.value) == (
        "feature `recent`: no value contains '|' in the first 30 examples; "
        "the separator seems to be ' ' (set separator: \" \")."
    )


def test_single_values_need_no_separator(tmp_path: Path) -> None:
    schema = Schema((Sequence("recent", separator="|"),), (Label("click"),))
    assert (
        read(file(tmp_path, "click,recent\n1,a\n0,b\n1,a\n"), schema).fitted().read(0, 3).ragged[0].ids.size
        == 3
    )


def test_validation_that_starts_before_training_ends(tmp_path: Path) -> None:
    schema = Schema((Categorical("user"),), (Label("click"),), time="ts")
    train = read(file(tmp_path, "click,user,ts\n1,a,2026-11-01\n0,b,2026-11-07\n", "t.csv"), schema)
    early = read(file(tmp_path, "click,user,ts\n1,a,2026-11-05\n0,b,2026-11-09\n", "v.csv"), schema)
    late = read(file(tmp_path, "click,user,ts\n1,a,2026-11-08\n0,b,2026-11-09\n", "l.csv"), schema)
    with pytest.raises(UserError) as caught:
        check_parts(train, early, None)
    assert str(caught.value) == (
        "valid starts 2026-11-05, before train ends 2026-11-07: future data would leak into the score. "
        "Move the split, or set data.allow_overlap=true"
    )
    check_parts(train, late, None)
    check_parts(train, early, None, allow_overlap=True)


def test_an_all_null_column(tmp_path: Path) -> None:
    schema = Schema((Categorical("user"), Numeric("price", "standardize", "mean")), (Label("click"),))
    path = file(tmp_path, "click,user,price\n1,,\n0,,\n")
    batch = read(path, schema).fitted().read(0, 2)
    assert batch.numeric_BN.tolist() == [[0], [0]]
    assert batch.ids_BF[0] == batch.ids_BF[1]


def test_libfm_values_other_than_one(tmp_path: Path) -> None:
    path = file(tmp_path, "1 3:1 4:1\n-1 3:1 5:0.5\n", "a.libfm")
    message = refusal(path, None, format="libfm")  # type: ignore[arg-type]
    assert message.startswith(f"{path} line 2: feature `5:0.5` has a value other than 1")
    assert "does not look like libfm" in refusal(file(tmp_path, GOOD), format="libfm")


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (gzip.compress(GOOD.encode(), mtime=0), "its name must end in .gz"),
        (pa.compress(GOOD.encode(), codec="zstd", asbytes=True), "its name must end in .zst"),
        (b"PK\x03\x04rest", "unpack it first"),
        (b"PAR1rest", "is a Parquet file"),
    ],
)
def test_a_file_with_the_wrong_ending(tmp_path: Path, start: bytes, words: str) -> None:
    assert words in refusal(file(tmp_path, start))


def test_a_parquet_file_that_is_said_to_be_csv(tmp_path: Path) -> None:
    path = file(tmp_path, b"PAR1rest", "p.parquet")
    assert refusal(path, format="csv") == f"{path} is a Parquet file; set data.format=parquet"


def test_the_stated_columns_are_named_when_lines_have_others(tmp_path: Path) -> None:
    path = file(tmp_path, "1,a,2\n0,b,3\n")
    four = CsvFormat(",", header=False, columns=("click", "user", "price", "more"))
    assert "line 1: 3 columns where data.csv.columns has 4" in refusal(path, csv=four)
    criteo = file(tmp_path, "1\t2\t3\n", "day_0.tsv")
    assert "3 columns where Criteo's format has 40" in refusal(criteo, None, format="criteo")  # type: ignore[arg-type]


NUMBERS = Schema((Numeric("n"),), (Label("click"),), time="ts")
VECTOR = Schema((Vector("v", 2),), (Label("click"),))
CLICKS = pa.array([1, 0, 1])


def test_integers_beyond_what_a_float_holds() -> None:
    nanoseconds = [1_793_491_200_123_456_789, 1_793_491_200_999_999_999, 1_793_491_201_000_000_000]
    table = pa.table({"click": CLICKS, "n": [2**53 + 1, -(2**60) - 1, None], "ts": nanoseconds})
    batch = read(table, NUMBERS).read(0, 3)
    assert batch.times_B is not None
    assert batch.times_B.tolist() == [1_793_491_200, 1_793_491_200, 1_793_491_201]
    np.testing.assert_array_equal(batch.numeric_BN[:, 0], np.float32([2**53, -(2**60), 0]))


def test_times_that_are_no_numbers() -> None:
    table = pa.table({"click": CLICKS, "n": CLICKS, "ts": [1.7e9, float("nan"), float("inf")]})
    assert refusal(table, NUMBERS).startswith("table example 2: time `ts` is 'nan'; expected epoch seconds")
    batch = read(table, NUMBERS, bad_lines=2).read(0, 3)
    assert batch.times_B is not None and batch.times_B.tolist() == [1_700_000_000]


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (pa.array([0.5, 1.5, None]), "table example 1: feature `v` is '0.5'; expected 2 finite numbers"),
        (pa.array([[1.0, 2.0], [1.0, float("inf")], None]), "table example 2: feature `v` is 'inf'; expected"),
        (pa.array([[1.0, 2.0], [1.0, 1e300], None]), "table example 2: feature `v` is '[1.0, 1e+300]'; expected"),
        (pa.array([["1", "2"], None, ["1", "x"]]), "table example 3: feature `v` is 'x'; expected"),
        (pa.array(["1|2", "1|inf", ""]), "table example 2: feature `v` is '1|inf'; expected"),
        (pa.array(["1|2", "", "1|1e300"]), "table example 3: feature `v` is '1|1e300'; expected"),
    ],
)  # fmt: skip
def test_what_is_no_vector_of_finite_numbers(column: pa.Array, sentence: str) -> None:
    table = pa.table({"click": CLICKS, "v": column})
    assert refusal(table, VECTOR).startswith(sentence)


def test_a_vector_of_large_integers_is_rounded() -> None:
    table = pa.table({"click": CLICKS, "v": [[2**53 + 1, 1], None, [3, 4]]})
    expected = np.float32([[2**53, 1], [0, 0], [3, 4]])
    np.testing.assert_array_equal(read(table, VECTOR).read(0, 3).numeric_BN, expected)


LISTS = pa.array([[1], [2], None])
STRUCTS = pa.array([{"a": 1}, None, {"a": 2}])


@pytest.mark.parametrize(
    ("feature", "column", "words"),
    [
        (Categorical("x"), LISTS, "lists; use type: bag or sequence"),
        (Bucketized("x", (1.5,)), LISTS, "lists; use type: bag or sequence"),
        (Numeric("x"), LISTS, "lists; use type: bag or sequence, or vector"),
        (Numeric("x", "standardize"), LISTS, "lists; use type: bag or sequence, or vector"),
        (Categorical("x"), STRUCTS, "structs; write each of their fields as a separate column"),
        (Numeric("x"), STRUCTS, "structs; write each of their fields as a separate column"),
        (Bag("x"), STRUCTS, "structs; write each of their fields as a separate column"),
        (Vector("x", 2), STRUCTS, "structs; write each of their fields as a separate column"),
        (Sequence("x"), pa.array([[{"a": 1}], [], None]), "lists of structs; write lists of single values"),
        (Bag("x"), pa.array([[[1]], [], None]), "lists of lists; write lists of single values"),
    ],
)
@pytest.mark.parametrize("form", ["table", "parquet"])
def test_lists_and_structs_where_one_value_is_expected(
    tmp_path: Path, form: str, feature: Feature, column: pa.Array, words: str
) -> None:
    table = pa.table({"click": CLICKS, "x": column})
    pq.write_table(table, tmp_path / "x.parquet")
    source = table if form == "table" else tmp_path / "x.parquet"
    with pytest.raises(UserError) as caught:
        list(read(source, Schema((feature,), (Label("click"),))).fitted().batches(10))
    assert str(caught.value) == f"feature `x`: the column holds {words}"


@pytest.mark.parametrize("role", ["time", "group", "weight"])
def test_lists_in_a_column_that_is_no_feature(role: str) -> None:
    table = pa.table({"click": CLICKS, "n": CLICKS, "x": LISTS})
    schema = Schema((Numeric("n"),), (Label("click"),), **{role: "x"})
    assert refusal(table, schema) == f"{role} `x`: the column holds lists; it must hold one value per example"


def test_lists_as_labels_or_to_split_by() -> None:
    table = pa.table({"x": LISTS, "click": CLICKS, "n": CLICKS})
    schema = Schema((Numeric("n"),), (Label("x"),))
    assert refusal(table, schema) == "label `x`: the column holds lists; it must hold one value per example"
    assert len(read(table, schema, labelled=False).read(0, 3)) == 3
    whole = read(table, Schema((Numeric("n"),), (Label("click"),)))
    with pytest.raises(UserError, match=r"^hash\(x\): the column holds lists"):
        list(whole.split(hash="x")[0].batches(10))


def test_numbers_too_large() -> None:
    large = pa.table({"click": CLICKS, "n": [1.0, 2.0, 1e300], "ts": CLICKS})
    assert refusal(large, NUMBERS).startswith("table example 3: feature `n` is '1e+300'; expected a finite")


def test_a_missing_timestamp_is_a_missing_number() -> None:
    times = pa.array([60, None, 120], pa.timestamp("s"))
    schema = Schema((Numeric("n", missing=-1.0),), (Label("click"),))
    assert read(pa.table({"click": CLICKS, "n": times}), schema).read(0, 3).numeric_BN[:, 0].tolist() == [
        *(60, -1, 120)
    ]
