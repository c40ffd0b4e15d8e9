"""Detection of a text file's layout from its first lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from gearshift.data.dataset import read
from gearshift.data.infer.schema import infer
from gearshift.data.readers.csv_format import CsvFormat
from gearshift.data.readers.files import DataFile
from gearshift.data.readers.sniff import Sniffed, find_delimiter, find_quote, has_header, sniff


def looked_at(
    folder: Path, text: str, csv: CsvFormat = CsvFormat(), expected: frozenset[str] = frozenset()
) -> Sniffed:
    path = folder / "x.csv"
    path.write_text(text)
    return sniff(DataFile(str(path), len(text)), csv, expected)


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("a,b,c\n1,2,3\n", ","),
        ("a;b;c\n1,5;2,5;3\n", ";"),
        ("1,5;2,5\n3,5;4,5\n", ";"),
        ("a\tb\n1,2\t3\n", "\t"),
        ("a|b|c\n1|2|3\n", "|"),
        ("y,tags\n1,a|b\n0,c\n1,d|e|f\n", ","),
        ('y,"name, first"\n1,"a; b"\n0,"c; d"\n', ","),
        ("time,y\n2026-11-01 10:00,1\n2026-11-02 11:00,0\n", ","),
        ("1 2 3\n4 5 6\n", " "),
        ("click,words\n1,red shoes for men\n0,green hat for all\n", ","),
        ("only\n1\n2\n", ","),
    ],
)
def test_the_delimiter(text: str, delimiter: str) -> None:
    assert find_delimiter(text) == delimiter


@pytest.mark.parametrize(
    ("records", "header"),
    [
        ([["click", "price"], ["1", "2.5"]], True),
        ([["1", "2.5"], ["0", "3"]], False),
        ([["", "click"], ["0", "1"]], True),  # the index that pandas writes
        ([["a", "red"], ["b", "blue"], ["a", "red"]], False),
        ([["city", "color"], ["Bonn", "red"], ["Rome", "red"]], True),
        ([["a", "a"], ["1", "2"]], True),  # refused by its name, which occurs twice
        ([["a", "a"], ["b", "c"]], False),
        ([["2026-11-01", "x"], ["2026-11-02", "y"]], False),
    ],
)
def test_the_header(records: list[list[str]], header: bool) -> None:
    assert has_header(records) is header


def test_names_that_the_schema_expects_make_a_header(tmp_path: Path) -> None:
    text = "a,b\nx,y\na,z\n"
    assert looked_at(tmp_path, text).header is False
    assert looked_at(tmp_path, text, expected=frozenset({"a"})).columns == ("a", "b")


def test_what_is_stated_is_not_guessed(tmp_path: Path) -> None:
    stated = CsvFormat(delimiter=";", header=False, columns=("x",), quote="none", trim=True, decimal=",")
    found = looked_at(tmp_path, "a,b\n1,2\n", stated)
    assert found == Sniffed("csv", ";", False, ("x",), True, ",", "", header_line="x")


def test_padding_and_names(tmp_path: Path) -> None:
    found = looked_at(tmp_path, 'y, name, "city, country"\n1, ann, "Bonn, DE"\n0, bob, "Rome, IT"\n')
    assert found.trim is True
    assert found.columns == ("y", "name", "city, country")


def test_known_formats(tmp_path: Path) -> None:
    assert looked_at(tmp_path, "1 3:1 4:1\n-1 5:1 6:1\n").columns == ("label", "f1", "f2")
    assert looked_at(tmp_path, "1 3:1 4:1\n-1 5:1\n").columns == ("label", "features")
    criteo = "\t".join(["0", *["1"] * 13, *["ab12"] * 26]) + "\n"
    assert looked_at(tmp_path, criteo * 3).format == "criteo"
    assert looked_at(tmp_path, criteo * 3, expected=frozenset({"c1"})).format == "csv"


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ("y,offer\n1,'a, b'\n0,'c, d'\n", "'"),
        ("y, offer, n\n1, 'a, b', 2\n0, 'c, d', 3\n", "'"),
        ("y,offer\n1,'a'\n0,'b'\n", "'"),
        ("y,offer\n1,'a'\n0,b\n", '"'),
        ("y,name\n1,O'Neil\n0,'tis\n1,rock 'n' roll\n", '"'),
        ('y,said\n1,"no, \'never\', ever"\n0,"yes"\n', '"'),
        ("y,tags\n1,\"['a', 'b']\"\n0,\"['c']\"\n", '"'),
    ],
)
def test_the_quote(text: str, quote: str) -> None:
    assert find_quote(text) == quote


@pytest.mark.parametrize("header", ["click\x01user\x01price\n", ""])
def test_the_delimiter_of_hive_is_found(tmp_path: Path, header: str) -> None:
    path = tmp_path / "000000_0"
    path.write_text(header + "".join(f"{i % 2}\x01u, {i % 7}\x01{i}.5\n" for i in range(50)))
    found = infer(path)
    assert found.csv.delimiter == "\x01" and len(found.guesses) == 3
    batch = read(path, found.schema, csv=found.csv).read(0, 50)
    assert batch.labels_BT[:, 0].tolist() == [0, 1] * 25
