"""One log in many forms gives the same examples: text or table, plain or compressed, one file or several."""

from __future__ import annotations

import gzip
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gearshift import _core
from gearshift.data.batch import Batch
from gearshift.data.dataset import read
from gearshift.data.schema import Bag, Bucketized, Categorical, Label, Numeric, Schema, Sequence, Vector
from gearshift.errors import UserError

SCHEMA = Schema(
    (
        Categorical("city"),
        Categorical("item"),
        Categorical("ratio"),
        Numeric("price", "log1p"),
        Bucketized("age", (18.0, 25.0)),
        Bag("tags"),
    ),
    (Label("click"),),
    time="ts",
    group="item",
    weight="w",
)
FRAME = pd.DataFrame(
    {
        "click": [1, 0, 0, 1] * 50,
        "city": ["Köln", None, "a, b", 'say "x"'] * 50,
        "item": [7, 8, 9_007_199_254_740_993, -1] * 50,
        "ratio": [0.5, 2.25, 0.1, np.nan] * 50,
        "price": [1.5, np.nan, 0.0, -2.25] * 50,
        "age": [17.0, 18.0, np.nan, 99.0] * 50,
        "tags": ["a|b", "", "c", None] * 50,
        "ts": [1_761_955_200 + i for i in range(200)],
        "w": [1.0, 0.5, 2.0, 0.0] * 50,
    }
)


def assert_same(a: Batch, b: Batch) -> None:
    for name in ("labels_BT", "numeric_BN", "ids_BF", "weights_B", "times_B", "groups_B"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    for left, right in zip(a.ragged, b.ragged, strict=True):
        np.testing.assert_array_equal(left.ids, right.ids)
        np.testing.assert_array_equal(left.offsets, right.offsets)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forms")
    FRAME.to_csv(path / "log.csv", index=False)
    return path


@pytest.fixture(scope="module")
def expected(folder: Path) -> Batch:
    return read(folder / "log.csv", SCHEMA).read(0, 1000)


def large_strings(table: pa.Table) -> pa.Table:
    texts = (pa.string(), pa.large_string())
    return table.cast(
        pa.schema([(f.name, pa.large_string() if f.type in texts else f.type) for f in table.schema])
    )


TABLES = {
    "pandas": FRAME,
    "pandas categories": FRAME.astype({"city": "category"}),
    "polars": pl.from_pandas(FRAME),
    "polars categories": pl.from_pandas(FRAME).with_columns(pl.col("city").cast(pl.Categorical)),
    "arrow": pa.Table.from_pandas(FRAME),
    "arrow slice": pa.concat_tables([pa.Table.from_pandas(FRAME)] * 2).slice(200),
    "large strings": large_strings(pa.Table.from_pandas(FRAME)),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_tables_in_memory_equal_the_csv(table: object, expected: Batch) -> None:
    assert_same(read(table, SCHEMA).read(0, 1000), expected)


def test_duckdb_equals_the_csv(expected: Batch) -> None:
    frame = FRAME  # duckdb finds it by name
    relation = duckdb.sql("select * from frame order by ts")
    assert_same(read(relation, SCHEMA).read(0, 1000), expected)
    assert len(frame) == 200


def test_parquet_equals_the_csv_also_from_the_middle(folder: Path, expected: Batch) -> None:
    pq.write_table(pa.Table.from_pandas(FRAME), folder / "log.parquet", row_group_size=64)
    data = read(folder / "log.parquet", SCHEMA)
    assert data.count() == 200
    assert_same(data.read(0, 1000), expected)
    assert_same(data.read(100, 50), expected.slice(100, 150))
    assert data.time_range() == (1_761_955_200, 1_761_955_399)


@pytest.mark.parametrize("form", ["gz", "gz in two members", "zst"])
def test_compressed_text_equals_plain_text(folder: Path, expected: Batch, form: str) -> None:
    text = (folder / "log.csv").read_bytes()
    path = folder / f"packed.csv.{form[:3].strip()}"
    if form == "zst":
        path.write_bytes(pa.compress(text, codec="zstd", asbytes=True))
    else:
        half = len(text) // 2 if "two" in form else len(text)
        path.write_bytes(
            gzip.compress(text[:half]) + (gzip.compress(text[half:]) if half < len(text) else b"")
        )
    data = read(path, SCHEMA)
    assert_same(data.read(0, 1000), expected)
    assert_same(data.read(150, 20), expected.slice(150, 170))
    assert data.time_range() == (1_761_955_200, 1_761_955_399)


def test_chunks_of_any_size_give_the_same(
    folder: Path, expected: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (64, 300, 1000, 4096):
        monkeypatch.setattr("gearshift.data.readers.text.CHUNK_BYTES", size)
        data = read(folder / "log.csv", SCHEMA)
        assert_same(data.read(0, 1000), expected)
        assert_same(data.read(77, 60), expected.slice(77, 137))  # now from the marks of the first pass
        assert_same(data.read(190, 60), expected.slice(190, 200))


def test_several_files_by_list_glob_and_dated_folders(folder: Path, expected: Batch) -> None:
    lines = (folder / "log.csv").read_text().splitlines(keepends=True)
    parts = []
    for day, (a, b) in enumerate([(1, 51), (51, 52), (52, 201)], 1):
        part = folder / "days" / f"dt=2026-11-0{day}" / "part-0.csv"
        part.parent.mkdir(parents=True)
        part.write_text(lines[0] + "".join(lines[a:b]))
        parts.append(part)
    (folder / "days" / "_SUCCESS").write_text("")
    for source in (parts, str(folder / "days" / "*" / "part-0.csv"), folder / "days"):
        data = read(source, SCHEMA)
        assert_same(data.read(0, 1000), expected)
        assert_same(data.read(51, 10), expected.slice(51, 61))
    dated = read(folder / "days", Schema((Categorical("dt"),), (Label("click"),), time="dt"))
    ids = dated.read(0, 1000).ids_BF[:, 0]
    assert ids[0] == _core.xxh64(b"2026-11-01", _core.table_seed("dt")) >> 1
    assert len(set(ids.tolist())) == 3
    assert dated.describe().startswith("3 files, ")
    assert "2026-11-01..03" in dated.describe()


def test_an_address_reads_like_a_path(folder: Path, expected: Batch) -> None:
    assert_same(read(f"file://{folder}/log.csv", SCHEMA).read(0, 1000), expected)
    assert_same(read(f"file://{folder}/lo?.csv", SCHEMA).read(0, 1000), expected)
    with pytest.raises(UserError, match="no such file"):
        read(f"file://{folder}/no.csv", SCHEMA)


def test_lists_and_vectors_of_parquet_equal_joined_text(tmp_path: Path) -> None:
    schema = Schema((Sequence("recent", max_len=2), Vector("v", 2)), (Label("y"),))
    lists = pa.table(
        {"y": [1, 0, 1], "recent": [["a", "b", "c"], None, ["d"]], "v": [[1.0, 2.0], None, [3.0, 4.5]]}
    )
    texts = pa.table({"y": [1, 0, 1], "recent": ["a|b|c", None, "d"], "v": ["1|2", None, "3|4.5"]})
    pq.write_table(lists, tmp_path / "l.parquet")
    a, b = read(tmp_path / "l.parquet", schema).read(0, 9), read(texts, schema).read(0, 9)
    assert_same(a, b)
    assert a.ragged[0].offsets.tolist() == [0, 2, 2, 3]
    assert a.numeric_BN.tolist() == [[1, 2], [0, 0], [3, 4.5]]
    fixed = pa.table({"y": [1], "recent": [["a"]], "v": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))})
    assert read(fixed, schema).read(0, 1).numeric_BN.tolist() == [[1, 2]]


def test_criteo_avazu_and_libfm_know_their_schema(tmp_path: Path) -> None:
    criteo = tmp_path / "day_0.tsv"
    criteo.write_text(
        "".join(f"{i % 2}\t" + "\t".join(["-1", *["3"] * 12, *["a1b2"] * 25, ""]) + "\n" for i in range(5))
    )
    batch = read(criteo).read(0, 9)
    assert (batch.numeric_BN.shape, batch.ids_BF.shape) == ((5, 13), (5, 26))
    assert batch.numeric_BN[0, :2].tolist() == pytest.approx([-np.log(2), np.log(4)])

    avazu = tmp_path / "train.csv"
    names = "id click hour C1 banner_pos site_id site_domain site_category app_id app_domain app_category"
    names += " device_id device_ip device_model device_type device_conn_type C14 C15 C16 C17 C18 C19 C20 C21"
    row = ["10009", "0", "14102100", *["x"] * 21]
    avazu.write_text(names.replace(" ", ",") + "\n" + ",".join(row) + "\n")
    data = read(avazu)
    assert data.time_range() == (1_413_849_600, 1_413_849_600)
    assert data.read(0, 1).ids_BF.shape == (1, 21)

    libfm = tmp_path / "train.libfm"
    libfm.write_text("1 106:1 1792:1\n-1 165:1 1766:1\n")
    batch = read(libfm).read(0, 9)
    assert batch.labels_BT.tolist() == [[1], [0]]
    assert batch.ids_BF[0, 1] == _core.xxh64(b"1792", _core.table_seed("f2")) >> 1

    requested = Schema((Bag("features", separator=" "),), (Label("label", "1"),))
    assert read(libfm, requested).read(0, 9).ragged[0].offsets.tolist() == [0, 2, 4]

    libfm.write_text("1 106:1 1792:1 \n-1 165:1\n0\n")
    batch = read(libfm, format="libfm").read(0, 9)
    assert batch.ragged[0].offsets.tolist() == [0, 2, 3, 3]


def test_tasks_weights_and_data_without_labels(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("click,buy,x\n1,no,3\n0,yes,4\n")
    schema = Schema((Numeric("x"),), (Label("click"), Label("buy", "yes", "buy")))
    assert read(path, schema).read(0, 9).labels_BT.tolist() == [[1, 0], [0, 1]]
    path.write_text("x\n3\n4\n")
    with pytest.raises(UserError, match="has no columns `click`, `buy`"):
        read(path, schema)
    batch = read(path, schema, labelled=False).read(0, 9)
    assert np.isnan(batch.labels_BT).all()
    assert batch.numeric_BN.tolist() == [[3], [4]]


def test_numeric_transforms_and_their_fit(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_text("y,x\n1,0\n0,3\n1,\n0,-3\n1,8\n")
    label = (Label("y"),)

    def column(*features: Numeric) -> list[float]:
        return read(path, Schema(features, label)).fitted().read(0, 9).numeric_BN[:, 0].tolist()

    assert column(Numeric("x")) == [0, 3, 0, -3, 8]
    assert column(Numeric("x", missing=-1.0)) == [0, 3, -1, -3, 8]
    assert column(Numeric("x", missing="mean")) == [0, 3, 2, -3, 8]
    assert column(Numeric("x", "log1p")) == pytest.approx([0, np.log(4), 0, -np.log(4), np.log(9)])
    spread = np.std([0, 3, -3, 8])
    assert column(Numeric("x", "standardize", "mean")) == pytest.approx(
        [(v - 2) / spread for v in (0, 3, 2, -3, 8)]
    )
    bucketized = read(path, Schema((Bucketized("x", 4),), label)).fitted()
    bounds = bucketized.schema.features[0].buckets  # type: ignore[union-attr]
    assert bounds == (0.0, 3.0, 8.0)
    ids = bucketized.read(0, 9).ids_BF[:, 0]
    seed = _core.table_seed("x")
    assert ids.tolist() == [_core.xxh64(t, seed) >> 1 for t in (b"1", b"2", b"", b"0", b"3")]
    with pytest.raises(ValueError, match="must be learned from the training data first"):
        read(path, Schema((Bucketized("x", 4),), label)).read(0, 1)


def test_libfm_labels_of_minus_one_in_a_later_file_are_no_clicks(tmp_path: Path) -> None:
    (tmp_path / "a.libfm").write_text("0 1:1 7:1\n1 2:1 8:1\n")
    (tmp_path / "b.libfm").write_text("-1 1:1 7:1\n+1 2:1 8:1\n")
    assert read(tmp_path).read(0, 4).labels_BT[:, 0].tolist() == [0, 1, 0, 1]
