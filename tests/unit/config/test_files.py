# ruff: noqa: E501 (tables of whole sentences)
from pathlib import Path

import pytest

from gearshift.config import check_files
from gearshift.errors import UserError

from .conftest import SHOP, Load


def refused(load: Load, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        check_files(load(SHOP, *overrides))
    return str(caught.value)


def make(*names: str) -> None:
    Path("data").mkdir(exist_ok=True)
    for name in names:
        Path("data", name).touch()


def test_compressed_files_that_are_not(load: Load) -> None:
    make(*(f"clicks-2026-11-0{day}.csv" for day in range(1, 8)))
    assert refused(load) == (
        "clicks.yaml:4: data.train matches no file: data/clicks-2026-11-0[1-7].csv.gz "
        "(folder data/ has 7 files that end in .csv: drop .gz?)"
    )


def test_files_that_are_compressed(load: Load) -> None:
    make("a.csv.gz")
    said = refused(load, "data.train=data/a.csv")
    assert said == (
        "data.train=data/a.csv: data.train matches no file: data/a.csv (folder data/ has 1 file with .gz: add it?)"
    )


def test_a_folder_that_is_not_there(load: Load) -> None:
    assert "clicks.yaml:4: data.train matches no file" in (said := refused(load))
    assert "(there is no folder data/ in " in said


def test_a_folder_with_other_files_or_none(load: Load) -> None:
    make()
    assert refused(load).endswith("(folder data/ is empty)")
    make("b.txt")
    assert refused(load).endswith("(folder data/ has b.txt)")


def test_the_line_of_one_path_in_a_list(load: Load) -> None:
    make("a.csv")
    said = refused(load, "data.train=[data/a.csv, data/b.csv]")
    assert "data.train matches no file: data/b.csv" in said


def test_validation_files_are_looked_for_too(load: Load) -> None:
    make("a.csv")
    assert refused(load, "data.train=data/a.csv").startswith("clicks.yaml:5: data.valid matches no file")


def test_remote_paths_and_folders_are_taken(load: Load) -> None:
    make("a.csv")
    check_files(load(SHOP, "data.train=s3://bucket/x.csv", "data.valid=data"))
