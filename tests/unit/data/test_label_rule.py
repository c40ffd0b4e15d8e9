"""Which label values mean a click: values, lists, thresholds; the same from every kind of file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gearshift.config import config_from, load_config
from gearshift.config.build import datasets
from gearshift.data.dataset import read
from gearshift.data.infer.schema import infer, infer_schema
from gearshift.data.label_rule import Positive, literal, parse_positive, threshold_of
from gearshift.data.prepare import prepare
from gearshift.data.schema import Categorical, Label, Schema
from gearshift.errors import UserError

COUNTS = [0, 1, 2, 5, 0, 1]


def schema(positive: Positive) -> Schema:
    return Schema((Categorical("user"),), (Label("clicks", positive),))


def labels(source: object, rule: Schema, **options: object) -> list[float]:
    values: list[float] = read(source, rule, **options).read(0, 100).labels_BT[:, 0].tolist()  # type: ignore[arg-type]
    return values


@pytest.mark.parametrize(
    ("positive", "expected"),
    [
        ("> 0", [0, 1, 1, 1, 0, 1]),
        (">= 2", [0, 0, 1, 1, 0, 0]),
        ("<2", [1, 1, 0, 0, 1, 1]),
        ("<= 1.5", [1, 1, 0, 0, 1, 1]),
        (("2", "5"), [0, 0, 1, 1, 0, 0]),
        ("5", [0, 0, 0, 1, 0, 0]),
    ],
)
def test_text_parquet_and_tables_agree(tmp_path: Path, positive: Positive, expected: list[float]) -> None:
    rule, users = schema(positive), [f"u{i}" for i in range(len(COUNTS))]
    table = pa.table({"user": users, "clicks": COUNTS})
    floats = pa.table({"user": users, "clicks": [float(c) for c in COUNTS]})
    text = tmp_path / "clicks.csv"
    text.write_text("user,clicks\n" + "".join(f"{u},{c}\n" for u, c in zip(users, COUNTS, strict=True)))
    fractions = tmp_path / "fractions.csv"
    fractions.write_text(
        "user,clicks\n" + "".join(f"{u},{c}.0\n" for u, c in zip(users, COUNTS, strict=True))
    )
    pq.write_table(table, tmp_path / "clicks.parquet")
    for source in (text, fractions, tmp_path / "clicks.parquet", table, floats):
        assert labels(source, rule) == expected
    prepare(read(text, rule), tmp_path / "prepared")
    assert labels(tmp_path / "prepared", rule) == expected


def test_libfm_ratings(tmp_path: Path) -> None:
    path = tmp_path / "ratings.libfm"
    path.write_text("5 1:1 7:1\n3 2:1 8:1\n4 1:1 8:1\n1 2:1 7:1\n")
    rule = Schema((Categorical("f1"), Categorical("f2")), (Label("label", ">= 4"),))
    assert labels(path, rule) == [1, 0, 1, 0]


def test_libfm_labels_that_need_a_rule_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("good", "1 1:1 7:1\n-1 2:1 8:1\n"), ("ratings", "1 1:1 7:1\n5 2:1 8:1\n")):
        (tmp_path / f"{name}.libfm").write_text(text)
    assert read(tmp_path / "good.libfm").read(0, 9).labels_BT[:, 0].tolist() == [1, 0]
    with pytest.raises(
        UserError, match=r"ratings.libfm line 2: the label is 5, and libfm's labels are 0 and 1, or"
    ):
        read(tmp_path / "ratings.libfm")
    with pytest.raises(UserError, match="the label is 5"):
        read(tmp_path)
    read(tmp_path / "ratings.libfm", labelled=False)
    text = (
        "data: {train: ratings.libfm, format: libfm, label: {column: label, positive: '>= 4'}}\nmodel: lr\n"
    )
    (tmp_path / "stated.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    stated = datasets(load_config(tmp_path / "stated.yaml")).train
    assert stated.read(0, 9).labels_BT[:, 0].tolist() == [0, 1]


def test_a_schema_survives_json() -> None:
    for positive in ("> 0", ("click", "buy"), "yes", None):
        rule = schema(positive)
        assert Schema.from_dict(json.loads(json.dumps(rule.to_dict()))) == rule


def test_what_is_no_threshold_is_a_value() -> None:
    assert threshold_of(">50K") is None
    assert threshold_of((">50",)) is None
    assert threshold_of(" >= -1.5e2 ") is not None
    assert (literal(">50"), literal(">50K")) == ((">50",), ">50K")
    assert labels(pa.table({"user": ["a", "b"], "clicks": [">50", "<=50"]}), schema((">50",))) == [1, 0]
    assert parse_positive([4, 5.0, True]) == ("4", "5.0", "true")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            "=> 4",
            "label `clicks`: positive is '=> 4'; write >, >=, < or <= before the number, such as '>= 4'",
        ),
        ("== 1", "or the values alone, such as [1]"),
        ([], "name at least one value that means a click"),
        ({"a": 1}, "expected a value, a list of values, or a threshold such as '> 0'"),
    ],
)
def test_a_wrong_rule_says_what_is_right(given: object, sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        Label("clicks", given)  # type: ignore[arg-type]


def test_rules_in_a_config() -> None:
    features = [{"name": "user", "type": "categorical"}]
    for positive in ("> 0", ["2", "5"], "yes"):
        values = {"data": {"label": {"column": "clicks", "positive": positive}}, "features": features}
        config = config_from(values)
        inferred = config.schema()
        assert inferred is not None
        assert inferred.labels == (Label("clicks", parse_positive(positive)),)
        assert config_from(config.values()).schema() == inferred
    with pytest.raises(UserError, match=r"positive is `=> 4`; write >, >=, < or <="):
        config_from({"data": {"label": {"column": "a", "positive": "=> 4"}}, "features": features})


@pytest.mark.parametrize(
    ("value", "positive", "sentence"),
    [
        (
            "2",
            None,
            "If these are counts, set which of them mean a click: "
            'data.label={column: clicks, positive: "> 0"}. If not: fix',
        ),
        ("", "> 0", "label `clicks` is missing; expected a number for `positive: > 0`"),
        ("many", "> 0", "label `clicks` is 'many'; expected a number for `positive: > 0`. Fix the line"),
        (">50", None, "Fix the line, or allow some: data.bad_lines={skip: 1000}"),
    ],
)
def test_a_label_that_does_not_fit_its_rule(
    tmp_path: Path, value: str, positive: Positive, sentence: str
) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(f"user,clicks\na,0\nb,1\nc,{value}\nd,1\n")
    with pytest.raises(UserError, match=re.escape(sentence)):
        labels(path, schema(positive))
    assert labels(path, schema(positive), bad_lines=1) == [0, 1, 1]


def test_words_get_the_rule_to_write(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("user,clicks\na,<=50\nb,>50\n")
    with pytest.raises(UserError, match=re.escape('positive: ["<=50"]}')):
        labels(path, schema(None))
    with pytest.raises(UserError, match=r"List the values that mean a click: data.label=.*\[\.\.\.\]"):
        labels(path, schema("> 50"))


# What `init` proposes.


def column(name: str, values: list[object]) -> pa.Table:
    many = values * (400 // len(values))
    return pa.table({"user": [f"u{i % 40}" for i in range(len(many))], name: many})


@pytest.mark.parametrize(
    ("name", "values", "positive", "why"),
    [
        ("clicks", [0, 0, 0, 1, 2, 5], "> 0", "counts 0..5: '> 0' counts as a click (50.0 %)"),
        ("rating", [1, 2, 3, 4, 5], ">= 4", "ratings 1..5: '>= 4' counts as a click (40.0 %)"),
        ("stars", [0.5, 3.5, 4.0, 5.0], ">= 4", "ratings 0.5..5"),
        ("score", [1, 5, 8, 10], ">= 8", "ratings 1..10"),
        ("revenue", [0.0, 0.0, 1.5, 20.25], "> 0", "numbers 0..20.25"),
        ("vote", [-1, 0, 1], "> 0", "numbers -1..1"),
        ("event", ["view", "view", "click", "buy"], ("click", "buy"), "3 events"),
    ],
)
def test_init_proposes_a_rule(name: str, values: list[object], positive: Positive, why: str) -> None:
    inferred = infer(column(name, values), label=name)
    assert inferred.schema.labels == (Label(name, positive),)
    assert why in next(guess.why for guess in inferred.guesses if guess.role == "label")
    assert f"another rule: --label {name} --positive RULE" in inferred.warnings[0]


def test_click_counts_are_the_label_without_being_named() -> None:
    assert infer_schema(column("clicks", [0, 0, 1, 2, 5])).labels == (Label("clicks", "> 0"),)
    assert infer_schema(column("rating", [1, 3, 5])).labels == (Label("rating", ">= 4"),)


def test_rare_counts_are_no_slips() -> None:
    rare = [0] * 250 + [1] * 146 + [2, 3, 2, 5]
    assert infer_schema(column("clicks", rare)).labels == (Label("clicks", "> 0"),)
    slip = infer(column("click", [0] * 250 + [1] * 149 + [9]))
    assert slip.schema.labels == (Label("click"),)
    assert "0/1 except '9'" in slip.warnings[0]


def test_the_users_own_rule() -> None:
    table = column("clicks", [0, 0, 1, 2, 5])
    inferred = infer(table, label="clicks", positive=">= 2")
    assert inferred.schema.labels == (Label("clicks", ">= 2"),)
    assert inferred.warnings == ()
    with pytest.raises(UserError, match="set --label"):
        infer(table, positive=">= 2")
    with pytest.raises(UserError, match=r"no sampled example is a click: label `clicks` has 0, 1, 2, 5"):
        infer(table, label="clicks", positive="> 9")


def test_without_a_hint_the_user_is_asked() -> None:
    with pytest.raises(UserError, match=r"label `kind` has 3 values .* Set --positive RULE"):
        infer(column("kind", ["a", "b", "c"]), label="kind")
    with pytest.raises(UserError, match="which cannot be compared with '> 0'"):
        infer(column("kind", ["a", "b", "c"]), label="kind", positive="> 0")


def test_a_leak_is_found_by_the_rule() -> None:
    clicks = np.random.default_rng(1).poisson(0.6, 4000)
    table = pa.table({"clicks": clicks, "paid": np.where(clicks > 0, "yes", "no"), "site": clicks % 1})
    inferred = infer(table, label="clicks")
    assert "reveal the label" in next(g.why for g in inferred.guesses if g.column == "paid")
