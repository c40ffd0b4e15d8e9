"""Repeated headers, escaped quotes, duplicate files, and ids that went through floats."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gearshift.data.dataset import CsvFormat, read
from gearshift.data.encode import RawBlock
from gearshift.data.id_spellings import spelling_remarks
from gearshift.data.infer.schema import infer
from gearshift.data.readers.duplicate_files import copy_remarks
from gearshift.data.readers.files import find_files
from gearshift.data.readers.source_opener import open_source
from gearshift.data.readers.text import TextSource
from gearshift.data.schema import Categorical, Label, Schema
from gearshift.errors import DataWarning, UserError

SCHEMA = Schema((Categorical("user"), Categorical("item")), (Label("click"),))
LINES = "".join(f"{i % 3 // 2},u{i % 20},i{i % 7}\n" for i in range(300))
SWAPPED = "".join(f"u{i % 20},{i % 3 // 2},i{i % 7}\n" for i in range(300))


@pytest.mark.parametrize("rule", [None, "1"])
@pytest.mark.parametrize("quoted", [False, True])
def test_a_second_header_in_another_order_is_refused(tmp_path: Path, rule: str | None, quoted: bool) -> None:
    path = tmp_path / "a.csv"
    first, second = "click,user,item\n", "user,click,item\n"
    if quoted:
        first, second = '"click","user","item"\n', '"user","click","item"\n'
    path.write_text(first + LINES + second + SWAPPED)
    schema = Schema(SCHEMA.features, (Label("click", rule),))
    with pytest.raises(UserError) as error:
        read(path, schema, bad_lines=1000).read(0, 999)
    assert str(error.value).startswith(
        f"{path} line 302: a second header, with column `click` where `user` is in the first one: the lines "
        "below it would be read under the wrong names."
    )


def test_a_repeated_header_is_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(2 * ("click,user,item\r\n" + LINES.replace("\n", "\r\n")))
    schema = Schema(SCHEMA.features, (Label("click", "1"),))
    with pytest.raises(UserError, match="line 302: the header is repeated here"):
        read(path, schema).read(0, 999)
    data = read(path, schema, bad_lines=1)
    assert len(data.read(0, 999)) == 600
    assert data.read(300, 1).labels_BT.tolist() == data.read(0, 1).labels_BT.tolist()
    assert [line.place.number for line in data.skipped] == [302]


def test_values_with_the_letters_of_the_header_are_examples(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ab,ba\nba,ab\nba,ba\nbb,aa\n")
    schema = Schema((Categorical("ab"),), (Label("ba", "aa"),))
    with pytest.raises(UserError, match="line 2: a second header"):
        read(tmp_path / "a.csv", schema).read(0, 9)
    (tmp_path / "a.csv").write_text("ab,ba\nba,ba\nbb,aa\n")
    assert len(read(tmp_path / "a.csv", schema).read(0, 9)) == 2


def test_stated_names_do_not_reorder_a_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("click,user,item\n" + LINES)
    (tmp_path / "b.csv").write_text("user,click,item\n" + SWAPPED)
    csv = CsvFormat(header=True, columns=("click", "user", "item"))
    with pytest.raises(
        UserError, match=r"b\.csv line 1: the header has column `user` where `click` is in data"
    ):
        read(tmp_path, SCHEMA, csv=csv)
    renamed = CsvFormat(header=True, columns=("click", "user", "thing"))
    schema = Schema((Categorical("thing"),), (Label("click"),))
    assert len(read(tmp_path / "a.csv", schema, csv=renamed).read(0, 999)) == 300


def test_a_header_that_is_not_expected(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("click,user,item\n" + LINES)
    for header in (None, False):
        csv = CsvFormat(header=header, columns=("click", "user", "item"))
        with pytest.raises(UserError) as error:
            read(path, SCHEMA, csv=csv).read(0, 9)
        assert str(error.value) == f"{path} line 1: this line is a header. Set data.csv={{header: true}}"
    assert (
        len(read(path, SCHEMA, csv=CsvFormat(header=True, columns=("click", "user", "item"))).read(0, 999))
        == 300
    )
    with pytest.raises(
        UserError, match=r"line 1: this line is a header, with column `item` where data\.csv\.columns"
    ):
        read(path, SCHEMA, csv=CsvFormat(columns=("click", "item", "user"))).read(0, 9)


def kept(path: Path, csv: CsvFormat = CsvFormat()) -> list[str]:
    table = read(path, Schema((), (Label("click"),), keep=("title",)), csv=csv).read(0, 9).kept
    assert table is not None
    return table.column("title").to_pylist()


def test_quotes_behind_a_backslash_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        'click,title,x\n1,"say \\"hi\\", he said",2\n0,"5\\",wide",3\n0,"a ""b"" c\\\\",4\n1,C:\\d,5\n'
    )
    assert kept(path) == ['say "hi", he said', '5",wide', 'a "b" c\\\\', "C:\\d"]
    assert infer(path).csv.escape == "backslash"
    with pytest.raises(UserError, match="line 2: 4 columns where the header has 3"):
        kept(path, CsvFormat(escape="none"))


def test_a_backslash_before_a_closing_quote_is_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('click,title,x\n1,"C:\\",2\n0,"D:\\",3\n')
    assert kept(path) == ["C:\\", "D:\\"]


def test_the_same_file_twice_is_warned_of(tmp_path: Path) -> None:
    day = tmp_path / "day.csv"
    day.write_text("click,user,item\n" + LINES)
    (tmp_path / "day.csv.gz").write_bytes(gzip.compress(day.read_bytes()))
    sentence = (
        f"{day}.gz seems to hold the same examples as {day}: they are read twice. Move one of them away, "
        "or list the files explicitly"
    )
    with pytest.warns(DataWarning) as told:
        read(tmp_path, SCHEMA)
    assert [str(warning.message) for warning in told] == [sentence]
    assert sentence in infer(tmp_path).warnings
    (tmp_path / "day.csv.gz").unlink()
    (tmp_path / "day (1).csv").write_bytes(day.read_bytes())
    assert "seems to hold the same examples" in copy_remarks(find_files(tmp_path))[0]


def test_a_path_that_is_named_twice(tmp_path: Path) -> None:
    day = tmp_path / "day.csv"
    day.write_text("click,user,item\n" + LINES)
    sentence = f"{day} is listed twice: its examples are read twice. List it once"
    assert copy_remarks(find_files([day, day])) == (sentence,)


def test_files_that_only_look_alike_are_no_copies(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("click,user,item\n" + LINES)
    (tmp_path / "b.csv").write_text("click,user,item\n" + LINES.replace("u1,", "v1,"))  # of the same size
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"click,user,item\n0,u9,i9\n"))
    for name in ("c.csv", "d.csv"):  # hours without an example
        (tmp_path / name).write_text("click,user,item\n")
    empty = pa.table({"click": pa.array([], pa.int64())})
    for name in ("e.parquet", "f.parquet"):
        pq.write_table(empty, tmp_path / name)
    assert copy_remarks(find_files(tmp_path)) == ()


def test_no_more_files_are_looked_at_than_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(31):
        (tmp_path / f"{i:02}.csv").write_text("click,user,item\n" + LINES)
    source, _ = open_source(tmp_path)
    looked: list[int] = []
    start = TextSource.start

    def noted(self: TextSource, columns: tuple[str, ...], number: int) -> RawBlock:
        looked.append(number)
        return start(self, columns, number)

    monkeypatch.setattr(TextSource, "start", noted)
    assert spelling_remarks(source, SCHEMA.features) == ()
    assert looked == list(range(0, 31, 2))


def test_ids_that_went_through_floats_in_one_file(tmp_path: Path) -> None:
    for name, form in (("a", "{}"), ("b", "{}.0")):
        lines = [f"{i % 3 // 2},{form.format(7 + i % 20)}" for i in range(300)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["click,user_id", *lines]) + "\n")
    sentence = (
        f"column `user_id` is written as 7 in {tmp_path}/a.csv and as 7.0 in {tmp_path}/b.csv: to the model these are "
        "different values. Write it in one way, in pandas with df['user_id'].astype(\"Int64\")"
    )
    found = infer(tmp_path)
    assert found.warnings == (sentence,)
    with pytest.warns(DataWarning) as told:
        read(tmp_path, found.schema).fitted()
    assert [str(warning.message) for warning in told] == [sentence]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(tmp_path / "b.csv", found.schema).fitted()
