"""JSON lines: keys are columns, lists are bags, and a value is the same category as in a CSV."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gearshift import _core
from gearshift.data.dataset import read
from gearshift.data.infer.schema import infer, infer_schema
from gearshift.data.prepare import prepare
from gearshift.data.schema import Bag, Categorical, Feature, Label, Numeric, Schema, Sequence, Vector
from gearshift.errors import DataWarning, UserError

LARGE = 2**53 + 1
SCHEMA = Schema((Categorical("user.id"), Numeric("price"), Bag("tags")), (Label("click"),), keep=("user.id",))


def write(folder: Path, examples: list[Any], name: str = "clicks.jsonl") -> Path:
    lines = [example if isinstance(example, str) else json.dumps(example) for example in examples]
    data = "".join(line + "\n" for line in lines).encode()
    if name.endswith("gz"):
        data = gzip.compress(data)
    elif name.endswith("zst"):
        data = pa.compress(data, codec="zstd", asbytes=True)
    path = folder / name
    path.write_bytes(data)
    return path


def example(i: int) -> dict[str, Any]:
    return {
        "click": i % 11 == 0,
        "user": {"id": LARGE + i % 50, "country": ["DE", None, "FR"][i % 3]},
        "price": None if i % 7 == 0 else i / 4,
        "tags": ["a", "b|c", 'd\u00e9 "x"'][: i % 4],
        "recent_items": [LARGE + i % 11, 7],
    }


def as_csv(folder: Path, examples: list[dict[str, Any]]) -> Path:
    rows = ["click;user.id;user.country;price;tags"]
    for e in examples:
        price = "" if e["price"] is None else e["price"]
        tags = "~".join(e["tags"]).replace('"', '""')
        user = e["user"]
        rows.append(f'{e["click"]};{user["id"]};{user["country"] or ""};{price};"{tags}"')
    path = folder / "same.csv"
    path.write_text("\n".join(rows))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.jsonl.gz", "a.ndjson.zst", "a.log"])
def test_the_same_ids_and_numbers_as_in_a_csv(tmp_path: Path, name: str) -> None:
    examples = [example(i) for i in range(3000)]
    features = (Categorical("user.id"), Categorical("user.country"), Numeric("price"))
    of_json = read(write(tmp_path, examples, name), Schema((*features, Bag("tags")), (Label("click"),)))
    of_csv = read(as_csv(tmp_path, examples), Schema((*features, Bag("tags", "~")), (Label("click"),)))
    a, b = of_json.read(0, 9999), of_csv.read(0, 9999)
    assert len(a) == len(b) == 3000
    np.testing.assert_array_equal(a.ids_BF, b.ids_BF)
    np.testing.assert_array_equal(a.numeric_BN, b.numeric_BN)
    np.testing.assert_array_equal(a.labels_BT, b.labels_BT)
    np.testing.assert_array_equal(a.ragged[0].ids, b.ragged[0].ids)
    np.testing.assert_array_equal(a.ragged[0].offsets, b.ragged[0].offsets)
    assert len(np.unique(a.ids_BF[:, 0])) == 50  # large ids are not rounded together


@pytest.mark.parametrize("chunk", [300, 8 << 20])
def test_lines_cross_the_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr("gearshift.data.readers.text.CHUNK_BYTES", chunk)
    path = write(tmp_path, [example(i) for i in range(500)])
    data = read(path, SCHEMA)
    batch = data.read(400, 3)
    assert batch.kept is not None
    assert batch.kept.column("user.id").to_pylist() == [str(LARGE + i % 50) for i in range(400, 403)]
    assert data.locate(400, 1) == f"{path} line 401-401"


def test_missing_keys_nulls_and_other_types(tmp_path: Path) -> None:
    examples = [
        {"click": 1, "price": 2},
        {"click": "0", "price": "3.5", "user": {"id": "17"}, "tags": "a|b", "new": [1]},
        {"click": 1.0, "price": None, "user": None, "tags": None},
        '{"click": false, "price": NaN, "user": {"id": 17}, "tags": ["b", null, 3]}',
        '{"click": 0, "click": 1, "user": {"id": null}, "price": 1e2 , "tags": []}  ',
    ]
    batch = read(write(tmp_path, examples), SCHEMA).read(0, 9)
    assert batch.labels_BT[:, 0].tolist() == [1, 0, 1, 0, 1]
    assert batch.numeric_BN[:, 0].tolist() == [2, 3.5, 0, 0, 100]
    ids = batch.ids_BF[:, 0].tolist()
    assert ids[1] == ids[3] != ids[0]
    assert ids[0] == ids[2] == ids[4]
    assert batch.ragged[0].offsets.tolist() == [0, 0, 2, 2, 4, 4]
    seed = _core.table_seed("tags")
    assert batch.ragged[0].ids.tolist() == [_core.xxh64(part, seed) >> 1 for part in (b"a", b"b", b"b", b"3")]


def test_a_column_that_first_appears_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gearshift.data.readers.json_lines.SAMPLE_BYTES", 300)
    examples = [{"click": i % 2, **({"coupon": "x"} if i > 90 else {})} for i in range(100)]
    path = write(tmp_path, examples)
    schema = Schema((Categorical("coupon"),), (Label("click"),))
    assert len(np.unique(read(path, schema).read(0, 100).ids_BF)) == 2
    with pytest.raises(UserError, match=r"clicks.jsonl has no column `cupon`. Did you mean"):
        read(path, Schema((Categorical("coupon"), Categorical("cupon")), (Label("click"),)))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"click": 1, "price": 3', "expected a comma or } at character 24"),
        ('{"click": 1} {"click": 0}', "expected the end of the line behind the object at character 14"),
        ("[1, 2]", "expected a JSON object at character 1"),
        ("click,price", "expected a JSON object at character 1"),
        ('{"click": 01}', "expected a value at character 11"),
        ('{"click": 1, "x": "\\q"}', "a bad escape in the string at character 20"),
        ('{"click": 1, "x": "abc}', "the string does not end in this line at character 24"),
        ('{"click" 1}', "expected a colon at character 10"),
        ("{click: 1}", "expected a string in double quotes at character 2"),
        ('{"x": ' + "[" * 5000 + "]" * 5000 + "}", "nested too deeply at character"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, reason: str) -> None:
    path = write(tmp_path, [{"click": 1, "price": 1}, line, "", {"click": 0, "price": 2}])
    schema = Schema((Numeric("price"),), (Label("click"),))
    with pytest.raises(UserError) as caught:
        read(path, schema).counted()
    assert str(caught.value).startswith(f"{path} line 2: not a JSON object: {reason}")
    assert str(caught.value).endswith("Fix the line, or allow some: data.bad_lines={skip: 1000}")
    data = read(path, schema, bad_lines=1)
    assert data.read(0, 9).numeric_BN[:, 0].tolist() == [1, 2]
    assert [bad.place.number for bad in data.skipped] == [2]


def test_which_lines_are_bad_does_not_depend_on_what_is_read(tmp_path: Path) -> None:
    lines = ['{"click": 1, "x": "\\q"}', '{"click": 1, "x": [1,}', {"click": 0, "x": 2}]
    for column in ("click", "x"):
        data = read(write(tmp_path, lines), Schema((Categorical(column),), ()), bad_lines=5)
        assert data.counted() == 1


def test_a_bad_value_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, [{"click": 1, "price": 1}, {"click": 0, "price": "much"}])
    with pytest.raises(UserError, match="line 2: feature `price` is 'much'; expected a finite number"):
        read(path, Schema((Numeric("price"),), (Label("click"),))).read(0, 9)


@pytest.mark.parametrize(
    ("value", "feature", "sentence"),
    [
        (["a"], Categorical("x"), "feature `x`: the column holds lists; use type: bag or sequence"),
        ({"a": 1}, Bag("x"), "feature `x`: the column holds structs; write each of their fields"),
        (
            [{"a": 1}],
            Bag("x"),
            "feature `x`: the column holds lists of structs; write lists of single values",
        ),
        ([[1]], Sequence("x"), "feature `x`: the column holds lists of lists; write lists of single values"),
    ],
)
def test_values_that_are_no_single_ones(tmp_path: Path, value: Any, feature: Feature, sentence: str) -> None:
    path = write(tmp_path, [{"click": 1, "x": "a"}, {"click": 0, "x": value}])
    with pytest.raises(UserError) as caught:
        read(path, Schema((feature,), (Label("click"),))).read(0, 9)
    assert str(caught.value).startswith(sentence)


def test_vectors(tmp_path: Path) -> None:
    path = write(tmp_path, [{"click": 1, "v": [1, 2.5]}, {"click": 0}, {"click": 0, "v": [-1e-3, 4]}])
    batch = read(path, Schema((Vector("v", 2),), (Label("click"),))).read(0, 9)
    np.testing.assert_array_equal(batch.numeric_BN, np.float32([[1, 2.5], [0, 0], [-1e-3, 4]]))


def test_init_guesses_them(tmp_path: Path) -> None:
    path = write(tmp_path, [{**example(i), "v": [i / 3, 0.5]} for i in range(600)])
    found = infer(path)
    assert found.format == "jsonl"
    features = {f.name: type(f) for f in found.schema.features}
    assert features == {
        "user.id": Categorical,
        "user.country": Categorical,
        "price": Numeric,
        "tags": Bag,
        "recent_items": Sequence,
        "v": Vector,
    }
    assert found.schema.labels == (Label("click"),)
    assert read(path, found.schema, format="jsonl").fitted().counted() == 600
    assert infer_schema(path) == found.schema


def test_prepared_data_are_the_same(tmp_path: Path) -> None:
    data = read(write(tmp_path, [example(i) for i in range(300)]), SCHEMA)
    prepare(data, tmp_path / "ready")
    a, b = read(tmp_path / "ready").read(0, 999), data.read(0, 999)
    np.testing.assert_array_equal(a.ids_BF, b.ids_BF)
    np.testing.assert_array_equal(a.ragged[0].ids, b.ragged[0].ids)


def test_a_folder_of_files_with_different_keys(tmp_path: Path) -> None:
    write(tmp_path, [{"click": 1, "a": 1}], "x.jsonl")
    write(tmp_path, [{"click": 0, "b": 2}], "y.jsonl.gz")
    data = read(tmp_path, Schema((Numeric("a"), Numeric("b")), (Label("click"),)))
    assert data.read(0, 9).numeric_BN.tolist() == [[1, 0], [0, 2]]


def test_latin_1_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"click": 1, "x": "ü"}\n'.encode("latin-1"))
    with pytest.warns(DataWarning, match="line 1: byte 0xFC is not UTF-8"):
        read(path, Schema((Categorical("x"),), (Label("click"),))).read(0, 9)


def test_a_file_without_any_object(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 1: not a JSON object: expected a JSON object at character 1"):
        infer(write(tmp_path, ["hello", "world"]))


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
OBJECTS = st.dictionaries(
    st.text(st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1),
    st.one_of(SCALARS, st.lists(SCALARS), st.dictionaries(st.sampled_from("ab"), SCALARS)),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(OBJECTS, min_size=1, max_size=5), st.booleans())
def test_any_object_is_read_as_python_reads_it(objects: list[dict[str, Any]], ascii_only: bool) -> None:
    text = "".join(json.dumps(o, ensure_ascii=ascii_only) + "\n" for o in objects)
    data, expected = text.encode(), [flat(o) for o in objects]
    paths = sorted({path for o in expected for path in o})
    buffer = np.frombuffer(bytearray(data), np.uint8)
    found = _core.json_paths(buffer.copy(), len(buffer))
    assert set(found) <= set(paths)
    spans, lines = np.empty((10, len(paths), 2), np.uint32), np.empty(10, np.uint32)
    records, consumed, passed, bad, _ = _core.split_json(buffer, len(buffer), paths, True, spans, lines)
    assert (records, consumed, passed, bad) == (len(objects), len(data), len(objects), [])
    for spans_of_line, wanted in zip(spans[:records].tolist(), expected, strict=True):
        for path, (start, size) in zip(paths, spans_of_line, strict=True):
            assert value_of(buffer[start : start + size].tobytes(), wanted.get(path)) == wanted.get(path)


def flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, inner in value.items():
        out |= flat(inner, f"{prefix}{key}.") if isinstance(inner, dict) else {prefix + key: inner}
    return out


def value_of(text: bytes, like: Any) -> Any:
    if isinstance(like, str):
        return text.decode()
    return json.loads(text) if text else None
