"""Ids are XXH64 of the value, seeded by the table's name, as 63 bits; equal for text and numbers."""

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gearshift import _core


def id_of(table: str, text: str) -> int:
    seed = xxhash.xxh64_intdigest(table.encode(), 0)
    return xxhash.xxh64_intdigest(text.encode(), seed) >> 1


def hash_numbers(values: np.ndarray, table: str = "t") -> list[int]:
    out = np.empty(len(values), np.int64)
    _core.hash_numbers(values, _core.table_seed(table), out)
    return out.tolist()


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2**64 - 1))
def test_xxh64_is_the_published_function(value: bytes, seed: int) -> None:
    assert _core.xxh64(value, seed) == xxhash.xxh64_intdigest(value, seed)


@pytest.mark.parametrize("size", range(70))
def test_xxh64_at_every_length_around_its_stripes(size: int) -> None:
    value = bytes(range(size))
    assert _core.xxh64(value, 7) == xxhash.xxh64_intdigest(value, 7)


def test_ids_never_change() -> None:
    """Checkpoints and prepared files hold these numbers: a failure here is a break of every saved model."""
    pinned = {
        ("country", "DE"): 8493965820401732253,
        ("country", ""): 1519464615515630681,
        ("item_id", "9007199254740993"): 7715827941318533404,
    }
    for (table, value), number in pinned.items():
        assert _core.xxh64(value.encode(), _core.table_seed(table)) >> 1 == number == id_of(table, value)


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_integers_hash_as_their_decimal_text(values: list[int]) -> None:
    assert hash_numbers(np.array(values, np.int64)) == [id_of("t", str(v)) for v in values]


def test_unsigned_integers_beyond_int64() -> None:
    assert hash_numbers(np.array([2**64 - 1], np.uint64)) == [id_of("t", str(2**64 - 1))]


def test_whole_floats_hash_as_integers_and_nan_as_missing() -> None:
    values = np.array([17.0, -3.0, 0.0, np.nan])
    assert hash_numbers(values) == [id_of("t", text) for text in ("17", "-3", "0", "")]


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False).filter(lambda v: v != int(v)))
def test_other_floats_hash_as_their_repr(value: float) -> None:
    assert hash_numbers(np.array([value])) == [id_of("t", repr(value))]


def test_float32_hashes_by_its_own_shortest_text() -> None:
    assert hash_numbers(np.array([0.1, 2.5], np.float32)) == [id_of("t", "0.1"), id_of("t", "2.5")]


def test_an_output_of_another_type_is_refused_not_converted() -> None:
    with pytest.raises(TypeError):
        _core.hash_numbers(np.array([1, 2]), 0, np.empty(2, np.int32))
    with pytest.raises(ValueError, match="length"):
        _core.hash_numbers(np.array([1, 2]), 0, np.empty(3, np.int64))
