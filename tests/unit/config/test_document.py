"""YAML as people expect it, with the line of every value."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gearshift.config.document import dump, dump_flow, parse, resolve
from gearshift.errors import UserError
from gearshift.settings.units import parse_text


def read(text: str) -> Any:
    return parse(text, "a.yaml").values


def test_scalars_that_plain_pyyaml_gets_wrong() -> None:
    values = read(
        "lr: 1e-3\ncountries: [NO, SE]\non: yes\nat: 12:30\nday: 2026-11-08\nbig: 1_000\nhex: 0x10\noct: 010\n"
    )
    assert values == {
        "lr": 0.001,
        "countries": ["NO", "SE"],
        "on": "yes",
        "at": "12:30",
        "day": "2026-11-08",
        "big": "1_000",
        "hex": "0x10",
        "oct": 10,
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("-7", -7), ("+3", 3), ("1.", 1.0), (".5", 0.5), ("-1.5E+3", -1500.0), ("1e5", 1e5),
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None),
        ("NULL", "NULL"), ("Null", "Null"), ("no", "no"), ("y", "y"), (".inf", ".inf"), (".nan", ".nan"),
        ("1.2.3", "1.2.3"), ("1e", "1e"), ("-", "-"), (".", "."), ("0o17", "0o17"), ("1,5", "1,5"),
    ],
)  # fmt: skip
def test_plain_scalars(text: str, value: object) -> None:
    found = resolve(text)
    assert found == value
    assert isinstance(found, type(value))


def test_quoted_scalars_are_text() -> None:
    assert read("a: '1'\nb: \"true\"\nc: |\n  5\n") == {"a": "1", "b": "true", "c": "5\n"}


def test_keys_are_always_text() -> None:
    assert read("null: 1\ntrue: 2\n3: 4\n") == {"null": 1, "true": 2, "3": 4}


def test_a_number_remembers_how_it_was_written() -> None:
    values = read("[007, 1.50, 1e3]".join(["a: ", "\n"]))
    assert [parse_text(value) for value in values["a"]] == ["007", "1.50", "1e3"]


def test_lines() -> None:
    document = parse("a: 1\nb:\n  - x\n  - {c: 1,\n     d: 2}\n", "a.yaml")
    assert document.lines[("a",)] == 1
    assert document.lines[("b",)] == 2
    assert document.lines[("b", 1)] == 4
    assert document.lines[("b", 1, "d")] == 5


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3\n", "a.yaml:3: key `a` appears twice (first in line 1); remove one"),
        ("a: {b: 1, b: 2}\n", "a.yaml:1: key `b` appears twice (first in line 1); remove one"),
        ("a:\n\tb: 1\n", "a.yaml:2: not valid YAML: a tab where YAML allows only spaces; indent with spaces"),
        ("a: [1, 2\nb: 3\n", "a.yaml:2: not valid YAML: "),
        ("a: b: c\n", "a.yaml:1: not valid YAML: a second `:` on the line"),
        ("a: 'x\n", "a.yaml:2: not valid YAML: found unexpected end of stream"),
        ("a: !!python/object:os.system x\n", "a.yaml:1: the tag "),
        ("a: &x [*x]\n", "a.yaml:1: an alias (*name) that contains itself"),
        ("? [a, b]\n: 1\n", "a.yaml:1: a key must be plain text"),
        ("- a\n- b\n", "a.yaml:1: expected `key: value` lines at the top"),
        ("# nothing\n", "a.yaml: the file is empty"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2: not valid YAML: "),
        ("a: \x07\n", "a.yaml: not valid YAML: "),
    ],
)
def test_text_that_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        read(text)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_anchors_are_allowed() -> None:
    assert read("a: &x {b: 1}\nc: *x\n") == {"a": {"b": 1}, "c": {"b": 1}}


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.sampled_from(
        ["NO", "on", "1e-3", "12:30", "2026-11-08", "null", "~", "", " x ", "a: b", "#", "- a", "*", "0x1"]
    ),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abnull1: -", min_size=1), inner),
    max_leaves=10,
)


@settings(deadline=None)
@given(st.dictionaries(st.text("abcnulltrue1", min_size=1), values, min_size=1))
def test_whatever_is_written_is_read_back(value: dict[str, Any]) -> None:
    assert read(dump(value)) == value


@settings(deadline=None)
@given(values)
def test_one_line_reads_back_too(value: Any) -> None:
    line = dump_flow(value)
    assert "\n" not in line
    assert read(f"a: {line}") == {"a": value}
