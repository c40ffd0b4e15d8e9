"""The names of columns: each once, the same in all files, spaces only where they matter."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gearshift.data.dataset import read
from gearshift.data.infer.schema import infer
from gearshift.data.readers.csv_format import CsvFormat
from gearshift.data.schema import Categorical, Label, Numeric, Schema
from gearshift.errors import UserError

SCHEMA = Schema((Categorical("user"), Numeric("price")), (Label("click"),))


def file(folder: Path, text: str, name: str = "clicks.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(source: object, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        read(source, SCHEMA, **options).counted()  # type: ignore[arg-type]
    return str(caught.value)


def test_headers_that_differ(tmp_path: Path) -> None:
    first = file(tmp_path, "click,user,price\n1,a,2.5\n", "a.csv")
    for header, words in {
        "click,user,cost": "lacks column `price`",
        "click,user,price,more": "has a column `more` that is not in",
        "user,click,price": "has column `user` where `click` is in",
    }.items():
        second = file(tmp_path, header + "\n1,2,3" + (",4" if "more" in header else "") + "\n", "b.csv")
        message = refusal([first, second])
        assert message.startswith(f"{second} line 1: the header {words}")
        assert str(first) in message


@pytest.mark.parametrize("expected", [None, SCHEMA])
def test_a_name_that_occurs_twice(tmp_path: Path, expected: Schema | None) -> None:
    """It is named, also to `init`: the header must not become the first example."""
    path = file(tmp_path, "\nclick,user,price,user\n1,a,2,b\n0,c,3,d\n")
    with pytest.raises(UserError) as caught:
        infer(path) if expected is None else read(path, expected)
    assert str(caught.value) == (
        f"{path} line 2: `user` is the name of columns 2 and 4; give each column a unique name, "
        "or, if this line is not a header, set data.csv={header: false}."
    )
    with pytest.raises(UserError, match="`user` is the name of columns 2 and 4"):
        infer(path, label="c1")
    stated = CsvFormat(",", header=False, columns=("click", "user", "user", "x"))
    assert refusal(path, csv=stated) == (
        "data.csv.columns: `user` is the name of columns 2 and 3; give each column a unique name."
    )


def test_a_name_that_occurs_twice_in_a_table(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1, 0])] * 3, ["click", "user", "user"])
    assert refusal(table) == "table: several columns are called `user`; give each column a unique name."
    pq.write_table(table, tmp_path / "a.parquet")
    assert refusal(tmp_path / "a.parquet").startswith(
        f"{tmp_path}/a.parquet: several columns are called `user`"
    )


def test_names_that_only_spaces_tell_apart(tmp_path: Path) -> None:
    path = file(tmp_path, "click ,user,user ,price\n1,a,x,1\n0,b,x,2\n1,c,y,3\n")
    both = Schema((Categorical("user"), Categorical("user ")), (Label("click"),))
    ids = read(path, both).read(0, 9).ids_BF
    assert [len(set(column)) for column in ids.T.tolist()] == [3, 2]
    assert [guess.column for guess in infer(path).guesses] == ["click", "user", "user ", "price"]
