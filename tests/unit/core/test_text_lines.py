"""Records, columns and line numbers, with any quoting and any buffer boundary."""

from __future__ import annotations

import csv
import io

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gearshift import _core

PIECE = st.text(st.sampled_from('ab ,"\n\r\té|0'), max_size=6)
TABLES = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(PIECE, min_size=width, max_size=width), max_size=8)
)


def split(
    text: bytes,
    columns: int,
    *,
    delimiter: str = ",",
    quote: str = '"',
    last: bool = True,
    trim: bool = False,
    rest: bool = False,
    quoted_lines: int = 100,
    doubt: bool = False,
) -> tuple[list[list[bytes]], list[int], int, list[tuple[int, int]]]:
    """(records, their lines, bytes consumed, (line, problem) of bad records)."""
    data = np.zeros(len(text) + 64, np.uint8)
    data[: len(text)] = np.frombuffer(text, np.uint8)
    data[len(text) :] = ord(delimiter)  # what lies behind the end must not count
    spans, lines = np.empty((100, columns, 2), np.uint32), np.empty(100, np.uint32)
    slots = np.arange(columns, dtype=np.int32)
    found, consumed, _, bad, *_ = _core.split_lines(
        data, len(text), delimiter, quote, slots, columns, rest, trim, last, quoted_lines, doubt, spans, lines
    )
    records = [[data[a : a + n].tobytes() for a, n in record] for record in spans[:found].tolist()]
    return records, lines[:found].tolist(), consumed, [(line, problem) for line, problem, *_ in bad]


@settings(deadline=None)
@given(TABLES, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.sampled_from(",;\t|"))
def test_any_table_of_text_survives_csv(
    table: list[list[str]], newline: str, newline_last: bool, delimiter: str
) -> None:
    # Python's writer leaves a "\r" at the end of a line unquoted: nobody can tell it from CRLF.
    assume(newline == "\r\n" or not any("\r" in value for row in table for value in row))
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator=newline).writerows(table)
    text = out.getvalue() if newline_last else out.getvalue().removesuffix(newline)
    records, _, consumed, bad = split(text.encode(), len(table[0]) if table else 1, delimiter=delimiter)
    assert [[value.decode() for value in record] for record in records] == table
    assert bad == []
    assert consumed == len(text.encode())


@settings(deadline=None)
@given(TABLES.filter(bool), st.data())
def test_a_buffer_may_end_anywhere(table: list[list[str]], data: st.DataObject) -> None:
    """What is unfinished stays untouched and is read whole with the next buffer."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(table)
    text = out.getvalue().encode()
    cut = data.draw(st.integers(0, len(text)))
    first, _, consumed, _ = split(text[:cut], len(table[0]), last=False)
    second, _, _, bad = split(text[consumed:], len(table[0]))
    assert [[value.decode() for value in record] for record in first + second] == table
    assert bad == []


@settings(deadline=None)
@given(st.lists(st.text(st.sampled_from("ab"), max_size=150), min_size=1, max_size=5))
def test_long_values_cross_the_64_byte_windows(values: list[str]) -> None:
    text = (",".join(values) + "\n") * 2
    records, lines, _, _ = split(text.encode(), len(values))
    if text.strip():
        assert [[v.decode() for v in r] for r in records] == [values, values]
        assert lines == [0, 1]


def test_lines_count_newlines_inside_quotes_and_blank_lines() -> None:
    _, lines, _, bad = split(b'a,b\n\n"x\ny\n",1\n\r\nc\nd,e', 2)
    assert lines == [0, 2, 7]
    assert bad == [(6, 1)]


def test_text_after_a_closing_quote_belongs_to_the_value() -> None:
    records, *_ = split(b'"a"b,"c""d"e\n', 2)
    assert records == [[b"ab", b'c"de']]


def test_a_quote_inside_a_value_is_text() -> None:
    records, *_ = split(b'5" pipe,a"b"\n', 2)
    assert records == [[b'5" pipe', b'a"b"']]


def test_an_open_quote_is_bad_at_the_end_and_unfinished_before() -> None:
    records, lines, _, bad = split(b'1,2\n3,"4\n5,6\n', 2)
    assert (records, lines, bad) == ([[b"1", b"2"], [b"5", b"6"]], [0, 2], [(1, -1)])
    records, _, consumed, bad = split(b'1,2\n3,"4\n5,6\n', 2, last=False)
    assert (len(records), consumed, bad) == (1, 4, [])


def test_trim_and_rest() -> None:
    assert split(b' a , "b, c" ,d  \n', 3, trim=True)[0] == [[b"a", b"b, c", b"d"]]
    assert split(b" a  b\n", 4, delimiter=" ", trim=True)[0] == [[b"", b"a", b"", b"b"]]
    assert split(b"1 a b c\n0\n0 d\n", 2, delimiter=" ", quote="", rest=True)[0] == [
        [b"1", b"a b c"],
        [b"0", b"d"],
    ]


def test_columns_that_are_not_wanted_are_skipped() -> None:
    data = np.frombuffer(b"a,b,c\n" + bytes(64), np.uint8).copy()
    spans, lines = np.empty((5, 1, 2), np.uint32), np.empty(5, np.uint32)
    slots = np.array([-1, 0, -1], np.int32)
    found, *_ = _core.split_lines(data, 6, ",", '"', slots, 1, False, False, True, 8, True, spans, lines)
    assert (found, spans[0].tolist()) == (1, [[2, 1]])


def test_libfm_lines_become_plain_text() -> None:
    def strip(text: bytes, last: bool = True) -> tuple[bytes, int, int]:
        out = np.zeros(2 * len(text) + 66, np.uint8)
        data = np.frombuffer(text, np.uint8) if text else np.empty(0, np.uint8)
        written, consumed, bad = _core.strip_libfm(data, len(text), last, out)
        return out[:written].tobytes(), consumed, bad

    assert strip(b"1 3:1 4:1.0 \n-1  5:1 # a comment\n\n0 7:1") == (b"1 3 4\n-1 5\n\n0 7\n", 39, -1)
    assert strip(b"1 3:1\n0 4:", last=False) == (b"1 3\n", 6, -1)
    assert strip(b"1 3:1 4:0.5\n")[2] == 6


OPEN, TOO_MANY_LINES, TEXT_AFTER, WHOLE_LINES = -1, -2, -3, -4


def test_a_quote_that_is_open_for_too_long_costs_one_line() -> None:
    text = b'1,"2\n3,4\n5,6\n7,"8"\n'
    assert split(text, 2, quoted_lines=3)[1:4:2] == ([1, 2, 3], [(0, TOO_MANY_LINES)])
    assert split(text, 2, quoted_lines=3, last=False)[1:4:2] == ([1, 2, 3], [(0, TOO_MANY_LINES)])
    assert split(text, 2)[1:4:2] == ([1, 2, 3], [(0, TEXT_AFTER)])  # it closes before the 8
    assert split(b'1,"a\nb\nc"\n', 2, quoted_lines=3)[0] == [[b"1", b"a\nb\nc"]]


def test_a_record_of_several_lines_has_all_columns_or_is_none() -> None:
    assert split(b'1,"a\n2,b"\n3,c,d\n4,e,f\n', 3)[1:4:2] == ([2, 3], [(0, 2), (1, 2)])


def test_two_stray_quotes_among_whole_lines() -> None:
    text = b'1,"a,b\n2,c,d\n3,e",f\n4,"g\nh",i\n'
    assert split(text, 3)[1] == [0, 3]
    records, lines, _, bad = split(text, 3, doubt=True)
    assert (lines, bad) == ([1, 2, 3], [(0, WHOLE_LINES)])
    assert records[1:] == [[b"3", b'e"', b"f"], [b"4", b"g\nh", b"i"]]


LINES = st.lists(
    st.lists(st.text(st.sampled_from('ab" '), max_size=4), min_size=3, max_size=3).map(",".join), max_size=30
)


@settings(deadline=None)
@given(LINES, st.integers(1, 9), st.booleans(), st.data())
def test_every_line_is_of_one_record_or_bad(
    rows: list[str], quoted_lines: int, doubt: bool, data: st.DataObject
) -> None:
    """With quotes anywhere and the buffer cut anywhere, no line is lost and none counts twice."""
    text = "".join(row + "\n" for row in rows).encode()
    cut = data.draw(st.integers(0, len(text)))
    seen: list[int] = []
    at = line = 0
    for end in (cut, len(text)):
        buffer = np.zeros(len(text) + 64, np.uint8)
        buffer[: end - at] = np.frombuffer(text[at:end], np.uint8)
        spans, lines = np.empty((100, 3, 2), np.uint32), np.empty(100, np.uint32)
        slots = np.arange(3, dtype=np.int32)
        found, consumed, passed, bad, long, _ = _core.split_lines(
            buffer, end - at, ",", '"', slots, 3, False, False, end == len(text), quoted_lines, doubt, spans, lines
        )  # fmt: skip
        sizes = dict(zip(long[::2], long[1::2], strict=True))
        assert all(2 <= size <= 3 * quoted_lines for size in sizes.values())
        for i in range(found):
            seen += range(line + int(lines[i]), line + int(lines[i]) + sizes.get(i, 1))
        seen += [line + number for number, *_ in bad]
        at, line = at + consumed, line + passed
    assert sorted(seen) == list(range(len(rows)))
