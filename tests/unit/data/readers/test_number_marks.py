"""Commas and points in numbers: how thousands separators are detected, and the warning for ambiguous columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from gearshift.data.dataset import CsvFormat, read
from gearshift.data.infer.schema import infer
from gearshift.data.readers.number_marks import NumberMarks, find_marks
from gearshift.data.schema import Label, Numeric, Schema, Vector
from gearshift.errors import DataWarning, UserError


def write(tmp_path: Path, values: list[str], delimiter: str = ";") -> Path:
    path = tmp_path / "a.csv"
    lines = [f"{i % 3 // 2}{delimiter}{values[i % len(values)]}" for i in range(300)]
    path.write_text("\n".join([f"click{delimiter}views", *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    ("values", "delimiter", "expected"),
    [
        (["7,212", "12,000"], ";", NumberMarks(".", ",", (0,))),
        (["7,212", "212"], ";", NumberMarks(".", ",", (0,))),
        (["7,212", "1,234,567"], ";", NumberMarks(".", ",")),
        (["7,212.5", "3"], ";", NumberMarks(".", ",")),
        (["7,212", "0,123"], ";", NumberMarks(",")),
        (["7,212", "7,2"], ";", NumberMarks(",")),
        (["7,212", "1234"], ";", NumberMarks(".")),
        (["1.234,5", "3"], ";", NumberMarks(",", ".")),
        (["1.234.567", "3"], ";", NumberMarks(",", ".")),
        (["7.212", "12.345"], ";", NumberMarks(".", "", (0,))),
        (["7.212", "212"], ";", NumberMarks(".", "", (0,))),
        (["7.212", "12.345"], ",", NumberMarks(".")),
        (["1.234", "2", "15"], ",", NumberMarks(".")),
        (["1.234.567", "3"], ",", NumberMarks(".")),
        (["1.234,5", "3"], ",", NumberMarks(".")),
        (["101,205", "330,471,222"], ";", NumberMarks(".")),  # lists of ids
        (["10.200.123.111", "10.1.2.3"], ",", NumberMarks(".")),
    ],
)
def test_what_settles_it(values: list[str], delimiter: str, expected: NumberMarks) -> None:
    assert find_marks([[value] for value in values], delimiter, None, None) == expected


def test_another_column_settles_it() -> None:
    assert find_marks([["7,212", "3.5"]], ";", None, None) == NumberMarks(".", ",")
    assert find_marks([["7,212", "3,5"]], ";", None, None) == NumberMarks(",")


def test_what_is_stated_is_taken() -> None:
    assert find_marks([["7,212"]], ";", ",", None) == NumberMarks(",")
    assert find_marks([["7.212"]], ";", None, ".") == NumberMarks(",", ".")
    assert find_marks([["7,212"]], ";", ".", "none") == NumberMarks(".")


def test_a_doubtful_column_is_read_as_thousands_and_said(tmp_path: Path) -> None:
    path = write(tmp_path, ["7,212", "58,004", "212"])
    found = infer(path)
    assert found.warnings == (
        f"{path}: column `views` has three digits after every comma, as in 7,212: read as 7212, with commas "
        "between thousands; if they are decimal commas: data.csv={decimal: ','}",
    )
    assert (found.csv.decimal, found.csv.thousands) == (".", ",")
    schema = Schema((Numeric("views"),), found.schema.labels)
    with pytest.warns(DataWarning, match="three digits after every comma"):
        batch = read(path, schema).read(0, 3)
    assert batch.numeric_BN[:, 0].tolist() == [7212, 58004, 212]
    batch = read(path, schema, csv=CsvFormat(decimal=",")).read(0, 3)
    assert batch.numeric_BN[:, 0].tolist() == pytest.approx([7.212, 58.004, 212])


def test_points_beside_whole_numbers_are_decimal_points(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("click,price\n0,1.234\n1,2\n0,15\n")
    batch = read(path, Schema((Numeric("price"),), (Label("click"),))).read(0, 3)
    assert batch.numeric_BN[:, 0].tolist() == pytest.approx([1.234, 2, 15])


@pytest.mark.parametrize("value", ["0,237", "1,234.5,6", "1,234 5", "01,234", "1,234,56"])
def test_what_only_resembles_thousands_is_refused(tmp_path: Path, value: str) -> None:
    path = write(tmp_path, ["1,234,567", value])
    with pytest.raises(UserError, match=f"line 3: feature `views` is '{value}'; expected a finite number"):
        read(path, Schema((Numeric("views"),), ()), csv=CsvFormat(decimal=".", thousands=",")).read(0, 9)


def test_thousands_with_signs_spaces_and_decimals(tmp_path: Path) -> None:
    path = write(tmp_path, ["-1,234.5", " 1,234,567 ", "12", "+2,000.", "0.5"])
    stated = CsvFormat(decimal=".", thousands=",", trim=False)
    batch = read(path, Schema((Numeric("views"),), ()), csv=stated).read(0, 5)
    assert batch.numeric_BN[:, 0].tolist() == [-1234.5, 1234567, 12, 2000, 0.5]


def test_another_decimal_mark_is_advised(tmp_path: Path) -> None:
    path = write(tmp_path, ["3.5"])
    with pytest.raises(UserError) as error:
        read(path, Schema((Numeric("views"),), ()), csv=CsvFormat(decimal=",")).read(0, 9)
    assert str(error.value).endswith(
        "is '3.5'; expected a finite number. If '.' is the decimal mark, set data.csv={decimal: '.'}. If not: fix "
        "the line, or allow some: data.bad_lines={skip: 1000}"
    )


def test_marks_are_advised_only_where_they_can_be_set(tmp_path: Path) -> None:
    json = tmp_path / "a.jsonl"
    json.write_text('{"click": 1, "views": "1,234"}\n')
    vectors = tmp_path / "v.csv"
    vectors.write_text("click;views\n1;1,234\n0;1 2\n")
    table = pa.table({"click": [1], "views": ["1,234"]})
    for source, feature in (
        (json, Numeric("views")),
        (table, Numeric("views")),
        (vectors, Vector("views", 2)),
    ):
        with pytest.raises(UserError, match="is '1,234'; expected") as error:
            read(
                source, Schema((feature,), (Label("click"),)), csv=CsvFormat(decimal=".", thousands="none")
            ).read(0, 9)
        assert "thousands" not in str(error.value)


def test_a_mark_between_other_digits_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, ["1,234,567", "12,34"])
    with pytest.raises(UserError, match="line 3: feature `views` is '12,34'; expected a finite number"):
        read(path, Schema((Numeric("views"),), ()), csv=CsvFormat(thousands=",")).read(0, 9)
    path = write(tmp_path, ["3"] * 299 + ["1,234"])
    with pytest.raises(UserError, match=r"If ',' separates thousands, set data\.csv={thousands: ','}"):
        read(path, Schema((Numeric("views"),), ()), csv=CsvFormat(decimal=".", thousands="none")).read(0, 999)
