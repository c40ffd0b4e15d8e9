"""Batches by position: in order, shuffled, resumed, cut and split."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gearshift.data import reading_order
from gearshift.data.batch import Batch
from gearshift.data.dataset import Dataset, read
from gearshift.data.schema import Bag, Categorical, Label, Numeric, Schema

SCHEMA = Schema(
    (Numeric("price"), Categorical("user"), Bag("tags")), (Label("click"),), time="ts", group="user"
)
EXAMPLES = 1000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "clicks.csv"
    lines = ["click,ts,user,price,tags"]
    lines += [
        f"{i % 2},{1_761_955_200 + i * 60},u{i % 37},{i},{'|'.join('abcdef'[: i % 5])}"
        for i in range(EXAMPLES)
    ]
    path.write_text("\n".join(lines))
    return path


def rows(batches: list[Batch]) -> list[tuple[object, ...]]:
    """One comparable value per example."""
    return [
        (*b.labels_BT[i], *b.numeric_BN[i], *b.ids_BF[i], *(tuple(r.slice(i, i + 1).ids) for r in b.ragged))
        for b in batches
        for i in range(len(b))
    ]


def test_batches_have_the_size_asked_for_and_know_their_position(log: Path) -> None:
    batches = list(read(log, SCHEMA).batches(300))
    assert [len(b) for b in batches] == [300, 300, 300, 100]
    assert [b.first for b in batches] == [0, 300, 600, 900]
    assert np.concatenate([b.numeric_BN[:, 0] for b in batches]).tolist() == list(range(EXAMPLES))


@settings(deadline=None, max_examples=40)
@given(size=st.integers(1, 1200), start=st.integers(0, EXAMPLES))
def test_starting_late_equals_slicing(log: Path, size: int, start: int) -> None:
    whole = rows(list(read(log, SCHEMA).batches(EXAMPLES)))
    batches = list(read(log, SCHEMA).batches(size, start=start))
    assert rows(batches) == whole[start:]
    assert all(b.first == start + i * size for i, b in enumerate(batches))


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_shuffle_is_a_permutation_that_depends_on_seed_and_epoch(
    log: Path, in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_memory:
        monkeypatch.setattr(reading_order, "IN_MEMORY_BYTES", 0)
        monkeypatch.setattr(reading_order, "BLOCK_EXAMPLES", 64)
        monkeypatch.setattr(reading_order, "BLOCKS_MIXED", 3)

    def order(seed: int, epoch: int, size: int = 100, start: int = 0) -> list[float]:
        batches = read(log, SCHEMA).batches(size, start=start, shuffle=(seed, epoch))
        return [float(v) for b in batches for v in b.numeric_BN[:, 0]]

    first = order(1, 0)
    assert sorted(first) == list(range(EXAMPLES)) != first
    assert order(1, 0, size=333) == first
    assert order(1, 0, start=450) == first[450:]
    assert order(1, 1) != first
    assert order(2, 0) != first
    assert np.corrcoef(first, range(EXAMPLES))[0, 1] < 0.3


def test_read_gives_examples_by_position(log: Path) -> None:
    data = read(log, SCHEMA)
    assert data.read(990, 20).numeric_BN[:, 0].tolist() == list(range(990, 1000))
    assert data.read(3, 2).numeric_BN[:, 0].tolist() == [3, 4]
    with pytest.raises(IndexError):
        data.read(EXAMPLES, 1)


def test_an_iterator_that_is_left_early_stops_its_thread(log: Path) -> None:
    import threading

    before = threading.active_count()
    batches = read(log, SCHEMA).batches(1)
    next(batches)
    assert threading.active_count() == before + 1
    batches.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_head_and_memory(log: Path) -> None:
    head = read(log, SCHEMA).head(150)
    assert [len(b) for b in head.batches(100)] == [100, 50]
    kept = head.in_memory()
    assert kept.count() == 150
    assert rows(list(kept.batches(64, start=10))) == rows(list(head.batches(64, start=10)))


def test_a_batch_in_memory_is_a_data_set(log: Path) -> None:
    batch = read(log, SCHEMA).read(100, 50)
    data = read(batch, SCHEMA)
    assert isinstance(data, Dataset)
    assert data.count() == 50
    assert [b.first for b in data.batches(20)] == [0, 20, 40]


def test_describe_names_files_days_and_ignored_columns(log: Path) -> None:
    schema = Schema((Categorical("user"),), (Label("click"),), time="ts")
    words = read(log, schema).describe()
    assert words.endswith("kB; 2025-11-01. Ignored columns: price, tags")


@pytest.mark.parametrize("kind", ["memory", "blocks", "compressed", "part"])
def test_a_range_of_a_shuffled_epoch_can_be_read_again(
    log: Path, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if kind != "memory":
        monkeypatch.setattr(reading_order, "IN_MEMORY_BYTES", 0)
        monkeypatch.setattr(reading_order, "BLOCK_EXAMPLES", 64)
        monkeypatch.setattr(reading_order, "BLOCKS_MIXED", 3)
    path = log
    if kind == "compressed":
        path = tmp_path / "clicks.csv.gz"
        path.write_bytes(gzip.compress(log.read_bytes()))
    data = read(path, SCHEMA)
    data = data.split(hash="user", valid="30%")[0] if kind == "part" else data
    for shuffle in ((1, 0), (1, 1), (1, 0)):
        for batch in data.batches(150, shuffle=shuffle):
            again = data.read(batch.first, 150, shuffle=shuffle)
            assert again.first == batch.first
            assert rows([again]) == rows([batch])
    last = data.counted()
    assert len(data.read(last - 10, 150, shuffle=(1, 0))) == 10
    with pytest.raises(IndexError):
        data.read(last, 1, shuffle=(1, 0))


def test_places_of_examples_with_bad_lines_left_out(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    lines = [f"{'maybe' if i in (2, 5) else i % 2},{i},u{i % 3},{i}.5,a" for i in range(10)]
    lines[7] = "1,7"
    path.write_text("\n".join(["click,ts,user,price,tags", *lines]))
    data = read(path, SCHEMA, bad_lines=3)
    assert data.read(2, 1).numeric_BN[0, 0] == 3.5
    assert data.locate(2, 1) == f"{path} line 5-5"
    assert data.locate(1, 4) == f"{path} line 3-8"
    assert data.locate(6, 1) == f"{path} line 11-11"
    assert data.locate(7, 2) == "examples 7-8"
    assert data.head(5).locate(2, 1) == data.locate(2, 1)
