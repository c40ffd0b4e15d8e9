"""Stray quotes: each costs its own line and never hides another."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gearshift.data.dataset import Dataset, read
from gearshift.data.infer.schema import infer
from gearshift.data.prepare import prepare
from gearshift.data.readers.csv_format import CsvFormat
from gearshift.data.schema import Categorical, Label, Numeric, Schema
from gearshift.errors import UserError

SCHEMA = Schema((Categorical("user"), Numeric("price")), (Label("click"),), keep=("user", "price"))
HEADER = ["click", "user", "price"]
LINES = 3000
ENDINGS = ("csv", "csv.gz", "csv.zst")


def rows(count: int = LINES) -> list[list[str]]:
    return [[str(i % 2), f"u{i}", str(i)] for i in range(2, count + 2)]  # `price` is the line


def write(
    folder: Path, table: list[list[str]], *, delimiter: str = ",", newline: str = "\n", ending: str = "csv"
) -> Path:
    data = "".join(delimiter.join(row) + newline for row in [HEADER, *table]).encode()
    if ending.endswith("gz"):
        data = gzip.compress(data)
    elif ending.endswith("zst"):
        data = pa.compress(data, codec="zstd", asbytes=True)
    path = folder / f"clicks.{ending}"
    path.write_bytes(data)
    return path


def prices(data: Dataset) -> list[int]:
    return [int(p) for block in data.blocks() if block.kept for p in block.kept.column("price").to_pylist()]


def bad(data: Dataset) -> list[int]:
    return [line.place.number for line in data.skipped]


def refusal(path: Path, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        read(path, SCHEMA, **options).counted()  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("chunk", [1000, 8 << 20])
def test_one_stray_quote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, newline: str, chunk: int
) -> None:
    monkeypatch.setattr("gearshift.data.readers.text.CHUNK_BYTES", chunk)
    table = rows()
    table[1499][1] = '"' + table[1499][1]
    path = write(tmp_path, table, newline=newline, ending=ending)
    assert refusal(path) == (
        f"{path} line 1,501: the quote that opens here does not close within 8 lines. Close it, allow more lines: "
        "data.csv={quoted_lines: 80}, read without quoting: data.csv={quote: none}, "
        "or allow some: data.bad_lines={skip: 1000}"
    )
    data = read(path, SCHEMA, bad_lines=1)
    assert prices(data) == [line for line in range(2, LINES + 2) if line != 1501]
    assert bad(data) == [1501]
    assert len(read(path, SCHEMA, csv=CsvFormat(quote="none")).read(0, 9999)) == LINES


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_second_one_hides_nothing(tmp_path: Path, delimiter: str) -> None:
    table = rows()
    table[1499][1] = '"' + table[1499][1]
    table[2499][1] += '"'
    data = read(write(tmp_path, table, delimiter=delimiter), SCHEMA, bad_lines=2)
    assert prices(data) == [line for line in range(2, LINES + 2) if line != 1501]
    table[2499][1] = '"u'
    again = read(write(tmp_path, table, delimiter=delimiter), SCHEMA, bad_lines=2)
    assert len(prices(again)) == LINES - 2
    assert bad(again) == [1501, 2501]


def test_two_close_to_each_other(tmp_path: Path) -> None:
    table = rows(20)
    table[4][1], table[7][1] = '"u6', 'u9"'
    path = write(tmp_path, table)
    assert refusal(path).startswith(
        f"{path} line 6: the quote that opens here closes in line 9, but each line has 3 columns by itself: "
        "two stray quotes. Remove them"
    )
    data = read(path, SCHEMA, bad_lines=1)
    assert prices(data) == [line for line in range(2, 22) if line != 6]
    trusted = read(path, SCHEMA, csv=CsvFormat(quoted_lines=8))
    assert prices(trusted) == [*range(2, 6), *range(9, 22)]


def test_values_of_several_lines_are_read(tmp_path: Path) -> None:
    table = rows(20)
    table[4][1] = '"a\nb, ""c""\n\nd"'
    assert len(prices(read(write(tmp_path, table), SCHEMA))) == 20
    table[4][1] = '"' + "x\n" * 8 + '"'
    path = write(tmp_path, table)
    assert "line 6: the quote that opens here does not close within 8 lines" in refusal(path)
    assert len(prices(read(path, SCHEMA, csv=CsvFormat(quoted_lines=9)))) == 20


def test_lines_are_counted_not_records(tmp_path: Path) -> None:
    table = rows(20)
    table[4] = ["1", '"a\nb\nc"', "oops"]
    path = write(tmp_path, table)
    assert "clicks.csv lines 6-8: feature `price` is 'oops'" in refusal_of_values(path, 0)
    assert "that is bad line 3 where data.bad_lines allows 2" in refusal_of_values(path, 2)
    data = read(path, SCHEMA, bad_lines=3)
    assert sum(len(b) for b in data.blocks()) == 19
    assert prepare(data, tmp_path / "ready").skipped == 3


def refusal_of_values(path: Path, allowed: int) -> str:
    with pytest.raises(UserError) as caught:
        list(read(path, SCHEMA, bad_lines=allowed).blocks())
    return str(caught.value)


def test_too_many_stray_quotes(tmp_path: Path) -> None:
    table = rows()
    for i in range(0, LINES, 10):
        table[i][1] = '"u'
    path = write(tmp_path, table)
    assert "line 52: the quote that opens here" in refusal(path, bad_lines=5)
    data = read(path, SCHEMA, bad_lines=LINES)
    assert (len(prices(data)), len(data.skipped)) == (LINES * 9 // 10, LINES // 10)


def test_a_header_cannot_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text('click,user,"price\n' + "".join(",".join(row) + "\n" for row in rows(20)))
    schema = Schema((Categorical("user"),), (Label("click"),))
    with pytest.raises(UserError, match=r"line 1, the header: the quote that opens here does not close"):
        read(path, schema, bad_lines=100).counted()


def test_a_file_that_loses_its_lines_in_quotes(tmp_path: Path) -> None:
    """Quotes that fit each other take up most of a file whose start has none."""
    good, eaten = rows(30_000), [["1", f'"u\n{i}\n{i}\n{i}\n{i}"', "1"] for i in range(12_000)]
    path = write(tmp_path, good + eaten)
    message = refusal(path)
    assert message.startswith(
        f"{path}: 90,000 lines contain 42,000 examples, but the start of the file suggests 90,0"
    )
    assert "from line 30,002 on. Look for stray quotes there" in message
    assert read(path, SCHEMA, csv=CsvFormat(quoted_lines=8)).counted() == 42_000
    legitimate = write(tmp_path, eaten)
    assert read(legitimate, SCHEMA).counted() == 12_000


def test_init_tells_of_them(tmp_path: Path) -> None:
    table = rows()
    table[0][1] = '"u'
    found = infer(write(tmp_path, table))
    assert (found.csv.delimiter, found.csv.header) == (",", True)
    assert "2,999 examples, header found, delimiter ',', 1 line could not be read" in found.sample
    (warning,) = [w for w in found.warnings if "cannot be read" in w]
    assert "clicks.csv line 2: the quote that opens here does not close within 8 lines" in warning


STRAYS = st.lists(
    st.tuples(
        st.integers(0, 59), st.integers(0, 2), st.sampled_from(["before", "inside", "behind", "alone"])
    ),
    max_size=6,
)


def _with_stray(value: str, where: str) -> str:
    return {"before": f'"{value}', "inside": f'{value[:1]}"{value[1:]}', "behind": f'{value}"', "alone": '"'}[
        where
    ]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    strays=STRAYS,
    quoted=st.sets(st.integers(0, 59), max_size=10),
    multiline=st.sets(st.integers(0, 59), max_size=5),
    delimiter=st.sampled_from(",;|"),
    newline=st.sampled_from(["\n", "\r\n"]),
    ending=st.sampled_from(ENDINGS),
    chunk=st.sampled_from([64, 700, 1 << 20]),
)
def test_no_line_is_lost_in_silence(
    monkeypatch: pytest.MonkeyPatch,
    strays: list[tuple[int, int, str]],
    quoted: set[int],
    multiline: set[int],
    delimiter: str,
    newline: str,
    ending: str,
    chunk: int,
) -> None:
    """Every line belongs to an example or is listed, and lines away from stray quotes are examples."""
    table = rows(60)
    for i in quoted | multiline:
        table[i][1] = f'"{table[i][1]}{delimiter}{newline if i in multiline else ""}x"'
    for i, column, where in strays:
        table[i][column] = _with_stray(table[i][column], where)
    monkeypatch.setattr("gearshift.data.readers.text.CHUNK_BYTES", chunk)
    schema = Schema((Categorical("user"), Categorical("price")), (), keep=("price",))
    total = 1 + sum(newline.join(row).count("\n") for row in table) + 60 - 60 * 2 * newline.count("\n")
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), table, delimiter=delimiter, newline=newline, ending=ending)
        csv = CsvFormat(delimiter, header=True, quote='"')
        data = read(path, schema, csv=csv, bad_lines=10_000, labelled=False)
        covered = [1]
        for block, _ in data.examples.raw_blocks(None):  # type: ignore[attr-defined]
            for place in map(block.place, range(block.size)):
                covered += range(place.number, place.number + place.lines)
        covered += bad(data)
        assert sorted(covered) == list(range(1, total + 1))
        kept = {p for block in data.blocks() if block.kept for p in block.kept.column("price").to_pylist()}
    far = [row for i, row in enumerate(table) if all(abs(i - at) > 8 for at, *_ in strays)]
    assert {row[2] for row in far} <= kept
