"""Text to numbers, labels, times and lists of ids; the first value that cannot be read is named."""

from __future__ import annotations

import datetime as dt
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gearshift import _core


def column(values: list[str]) -> tuple[np.ndarray, np.ndarray]:
    encoded = [value.encode() for value in values]
    sizes = [len(value) for value in encoded]
    starts = np.cumsum([0, *sizes])[:-1] if values else []
    spans = np.array(list(zip(starts, sizes, strict=True)), np.uint32).reshape(-1, 2)
    return np.frombuffer(b"".join(encoded) + b"#", np.uint8), spans


def parse_floats(values: list[str], decimal: str = ".") -> tuple[list[float], int]:
    out = np.zeros(len(values))
    stopped = _core.parse_floats(*column(values), 0, decimal, out)
    return out.tolist(), stopped


@settings(deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**20), 10**20), min_size=1)
)
def test_every_number_python_writes_is_read_exactly(numbers: list[float]) -> None:
    assert parse_floats([repr(n) for n in numbers]) == ([float(n) for n in numbers], len(numbers))


def test_numbers_with_signs_spaces_and_commas() -> None:
    assert parse_floats([" 7 ", "+5", "-0012", ".5", "5.", "1E3"])[0] == [7, 5, -12, 0.5, 5, 1000]
    assert parse_floats(["1,5", "-2"], ",")[0] == [1.5, -2]
    assert parse_floats(["1.5"], ",")[1] == 0
    assert parse_floats(["1e-999"])[0] == [0]


@pytest.mark.parametrize("text", ["", "  ", "nan", "NULL", "None", "NA", "n/a", "\\N", "?", "-"])
def test_missing_is_nan(text: str) -> None:
    values, stopped = parse_floats([text])
    assert math.isnan(values[0])
    assert stopped == 1


@pytest.mark.parametrize("text", ["inf", "-inf", "1e999", "x", "1x", "1 2", "--1", "0x1", "1_000"])
def test_what_is_no_number_stops_there(text: str) -> None:
    assert parse_floats(["1", text, "2"])[1] == 1


def test_parsing_goes_on_behind_a_bad_value() -> None:
    out = np.zeros(3)
    assert _core.parse_floats(*column(["a", "2", "3"]), 1, ".", out) == 3
    assert out.tolist() == [0, 2, 3]


def labels(values: list[str], *positives: str, decimal: str = ".") -> tuple[list[float], int]:
    out = np.zeros(len(values), np.float32)
    stopped = _core.parse_labels(*column(values), 0, list(positives), decimal, out)
    return out.tolist(), stopped


def test_labels() -> None:
    assert labels(["0", "1", "+1", "1.0", "0.0", " 1", "true", "False"]) == ([0, 1, 1, 1, 0, 1, 1, 0], 8)
    assert labels(["-1", "1", "+1", "-1.0"], "1") == ([0, 1, 1, 0], 4)
    assert labels(["yes", "no", " yes "], "yes") == ([1, 0, 1], 3)
    for bad in ("2", "-1", "0.5", "yes", "", "nan"):
        assert labels(["1", bad])[1] == 1
    assert labels([""], "yes")[1] == 0


def test_labels_with_several_positive_values() -> None:
    assert labels(["view", "click", "buy", "buys"], "click", "buy") == ([0, 1, 1, 0], 4)
    assert labels(["4", "4.0", "5.00", "3", "04x", "x"], "4", "5") == ([1, 1, 1, 0, 0, 0], 6)
    assert labels(["4,5", "4.5", "4"], "4.5", decimal=",") == ([1, 1, 0], 3)
    assert labels(["4", ""], "4", "5")[1] == 1


def times(values: list[str]) -> tuple[list[int], int]:
    out = np.zeros(len(values), np.int64)
    stopped = _core.parse_times(*column(values), 0, out)
    return out.tolist(), stopped


@settings(deadline=None)
@given(st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2099, 1, 1)))
def test_iso_times(moment: dt.datetime) -> None:
    moment = moment.replace(microsecond=0, tzinfo=dt.UTC)
    seconds = int(moment.timestamp())
    texts = [
        moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        moment.strftime("%Y-%m-%d %H:%M:%S"),
        moment.strftime("%Y/%m/%d %H:%M:%S.123456"),
        moment.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=30))).isoformat(),
        moment.strftime("%Y%m%d%H%M%S"),
        moment.strftime("%d.%m.%Y %H:%M:%S"),
    ]
    assert times(texts) == ([seconds] * len(texts), len(texts))


def test_dates_with_dots() -> None:
    assert times(["1.11.2026", "01.11.2026", "01.11.2026 00:10"])[0] == [1793491200, 1793491200, 1793491800]
    for bad in ("32.1.2026", "1.13.2026", "1.1.26", "1..2026", ".1.2026"):
        assert times([bad])[1] == 0


def test_times_as_numbers() -> None:
    day = 1_413_849_600  # 2014-10-21
    assert times(["14102107", "20141021", "2014-10-21", "2014-10-21T07:30"])[0] == [
        day + 7 * 3600,
        day,
        day,
        day + 7 * 3600 + 1800,
    ]
    assert times(["1413849600", "1413849600000", "1413849600000000", "1413849600.75", "0"])[0] == [
        day
    ] * 4 + [0]
    assert times(["2014/10/21 7:30", "2014-10-21T7"])[0] == [day + 7 * 3600 + 1800, day + 7 * 3600]
    for bad in ("", "yesterday", "2014-13-01", "2014-02-29", "2014-10-21T", "12:30", "21/10/2014"):
        assert times([bad])[1] == 0


def test_parts_are_cut_shortened_and_hashed_like_single_values() -> None:
    data, spans = column(["a|b||c", "", "d", "|"])
    seed = _core.table_seed("t")

    def ids(*texts: str) -> list[int]:
        return [_core.xxh64(t.encode(), seed) >> 1 for t in texts]

    for keep_last, kept in ((True, ("b", "c")), (False, ("a", "b"))):
        found, offsets = _core.hash_parts(data, spans, "|", 2, keep_last, seed)
        assert found.tolist() == ids(*kept, "d")
        assert offsets.tolist() == [0, 2, 2, 3, 3]
    found, _ = _core.hash_parts(*column(["a, b, c"]), ", ", 9, True, seed)
    assert found.tolist() == ids("a", "b", "c")
    found, offsets = _core.hash_parts(*column(["['a', \"b\", 7]", "[]", "[ c]", "d]"]), ",", 9, True, seed)
    assert found.tolist() == ids("a", "b", "7", "c", "d]")
    assert offsets.tolist() == [0, 3, 3, 4, 5]
    with pytest.raises(ValueError, match="separator"):
        _core.hash_parts(data, spans, "", 2, True, seed)


def test_vectors() -> None:
    out = np.zeros((3, 2), np.float32)
    assert _core.parse_vectors(*column(["1|2.5", "", "3|4"]), 0, "|", ".", out) == 3
    np.testing.assert_array_equal(out, [[1, 2.5], [np.nan, np.nan], [3, 4]])
    for bad in ("1", "1|2|3", "1|x"):
        assert _core.parse_vectors(*column(["1|2", bad, "3|4"]), 0, "|", ".", out) == 1


def test_a_column_of_a_row_major_array_is_written_in_place() -> None:
    out = np.zeros((3, 4), np.int64)
    _core.hash_text(*column(["a", "b", "a"]), 5, out[:, 2])
    assert out[0, 2] == out[2, 2] == _core.xxh64(b"a", 5) >> 1 != out[1, 2]
    assert (out[:, [0, 1, 3]] == 0).all()


def test_words_for_missing_become_empty() -> None:
    data, spans = column(["NULL", "a", "NUL"])
    _core.blank_values(data, spans, ["NULL", "?"])
    assert spans[:, 1].tolist() == [0, 1, 3]
