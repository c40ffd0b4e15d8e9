"""Labels of real exports: an ambiguous one is refused, or guessed with a warning."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import gearshift as gs
from gearshift.config.data import DataSection
from gearshift.config.overrides import parse_value
from gearshift.data import encode
from gearshift.data.dataset import read
from gearshift.data.infer.schema import InferredSchema, infer
from gearshift.data.label_rule import likely_click
from gearshift.data.schema import Categorical, Label, Schema
from gearshift.errors import UserError

USER = (Categorical("user"),)


def labelled(tmp_path: Path, labels: list[object], name: str = "click") -> Path:
    path = tmp_path / "a.csv"
    path.write_text("\n".join([f"user,{name}", *(f"u{i % 20},{v}" for i, v in enumerate(labels))]) + "\n")
    return path


def refused(path: Path, label: Label) -> str:
    with pytest.raises(UserError) as error:
        read(path, Schema(USER, (label,))).read(0, 9999)
    return str(error.value)


def warned(inferred: InferredSchema) -> str:
    return " ".join(inferred.warnings)


def test_minus_one_among_zeros_and_ones_is_refused_with_its_line(tmp_path: Path) -> None:
    path = labelled(tmp_path, [-1 if i == 70 else i % 3 // 2 for i in range(400)])
    assert refused(path, Label("click")) == (
        f"{path} line 72: label `click` is '-1'; expected 0 or 1. If -1 means no click, set the value that means a "
        'click: data.label={column: click, positive: "1"}. If not: fix the line, or allow some: '
        "data.bad_lines={skip: 1000}"
    )
    assert read(path, Schema(USER, (Label("click", "1"),))).read(70, 1).labels_BT.tolist() == [[0]]


@pytest.mark.parametrize("pair", [("-1", "1"), ("-1", "+1"), ("-1.0", "1.0")])
def test_minus_one_and_one_get_a_rule(tmp_path: Path, pair: tuple[str, str]) -> None:
    path = labelled(tmp_path, [pair[i % 3 // 2] for i in range(400)])
    inferred = infer(path)
    assert inferred.schema.labels == (Label("click", "1"),)
    assert read(path, inferred.schema).read(0, 400).labels_BT.sum() == 133


@pytest.mark.parametrize(
    ("values", "advised"),
    [(("N", "Y"), "Y"), (("no", "yes"), "yes"), (("no_click", "tap"), "tap")],
)
def test_the_advice_names_the_click_whichever_value_comes_first(
    tmp_path: Path, values: tuple[str, str], advised: str
) -> None:
    sentence = refused(labelled(tmp_path, [values[i % 3 // 2] for i in range(9)]), Label("click"))
    assert sentence.endswith(
        f'Set the value that means a click: data.label={{column: click, positive: "{advised}"}}'
    )


def test_a_slip_among_labels_that_are_read_needs_no_rule(tmp_path: Path) -> None:
    path = labelled(tmp_path, [("false ", "TRUE!")[i % 3 // 2] for i in range(9)])
    assert refused(path, Label("click")) == (
        f"{path} line 4: label `click` is 'TRUE!'; expected 0 or 1. Fix the line, or allow some: "
        "data.bad_lines={skip: 1000}"
    )


def test_the_rule_in_the_advice_can_be_pasted(tmp_path: Path) -> None:
    sentence = refused(labelled(tmp_path, ["a", ""]), Label("click", ('say "yes"', "b")))
    setting = sentence.partition("data.")[2].partition("}.")[0] + "}"
    stated = DataSection.model_validate({"label": parse_value(setting.partition("=")[2], "label")}).label
    assert stated is not None
    assert (stated[0].positive, stated[0].missing) == (('say "yes"', "b"), "no_click")


def test_blanks_are_missing_labels_without_a_rule_too(tmp_path: Path) -> None:
    schema = Schema(USER, (Label("click", missing="no_click"),))
    assert read(labelled(tmp_path, ["", "1", " ", "0"]), schema).read(0, 9).labels_BT[:, 0].tolist() == [
        0,
        1,
        0,
        0,
    ]


def test_advice_is_not_made_for_lines_that_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def advice(_label: Label, text: str, *_rest: object) -> str:
        made.append(text)
        return "Do it."

    monkeypatch.setattr(encode, "label_advice", advice)
    path = labelled(tmp_path, [7 if i % 2 else i % 3 // 2 for i in range(100)])
    data = read(path, Schema(USER, (Label("click"),)), bad_lines=50)
    assert (len(data.read(0, 999)), len(data.skipped), made) == (50, 50, [])
    with pytest.raises(UserError, match="Do it"):
        read(path, Schema(USER, (Label("click"),)), bad_lines=49).read(0, 999)
    assert made == ["7"]


def test_the_advice_leaves_open_what_the_words_do_not_tell(tmp_path: Path) -> None:
    alone = refused(labelled(tmp_path, ["no"] * 5), Label("click"))
    assert alone.endswith("Name the value that means a click: data.label={column: click, positive: VALUE}")
    either = refused(labelled(tmp_path, ["a", "b"] * 5), Label("click"))
    assert "It holds 'a', 'b': set the value that means a click, such as data.label=" in either
    assert likely_click(["not clicked", "clicked"]) == "clicked"


def test_labels_of_a_left_join(tmp_path: Path) -> None:
    path = labelled(tmp_path, ["" if i % 3 else 1 for i in range(400)])
    assert "was not clicked, set data.label={column: click, missing: no_click}" in refused(
        path, Label("click")
    )
    inferred = infer(path)
    assert inferred.schema.labels == (Label("click", missing="no_click"),)
    assert "click is 1 or missing (266 of 400 examples): missing counts as no click" in warned(inferred)
    assert read(path, inferred.schema).read(0, 400).labels_BT[:4, 0].tolist() == [1, 0, 0, 1]


def test_missing_labels_under_other_rules_and_in_tables(tmp_path: Path) -> None:
    path = labelled(tmp_path, ["", "3", "0", " ", "x"])
    label = Label("click", "> 0", missing="no_click")
    assert "line 6: label `click` is 'x'" in refused(path, label)
    batch = read(path, Schema(USER, (label,)), bad_lines=1).read(0, 9)
    assert batch.labels_BT[:, 0].tolist() == [0, 1, 0, 0]
    for values in ([1.0, None, float("nan")], [True, None, False], ["1", None, ""]):
        table = pa.table({"user": ["a", "b", "c"], "click": values})
        labels = read(table, Schema(USER, (Label("click", missing="no_click"),))).read(0, 9).labels_BT
        assert labels[:, 0].tolist() == [1, 0, 0]
    with pytest.raises(UserError, match="missing `skip`"):
        Label("click", missing="skip")  # type: ignore[arg-type]


def test_missing_labels_among_zeros_and_ones_are_warned_of(tmp_path: Path) -> None:
    inferred = infer(labelled(tmp_path, ["" if i % 10 == 9 else i % 3 // 2 for i in range(400)]))
    assert inferred.schema.labels == (Label("click"),)
    assert "click is missing in 40 of 400 sampled examples, first in line 11" in warned(inferred)


def test_a_guess_of_two_values_that_do_not_tell_is_uncertain(tmp_path: Path) -> None:
    inferred = infer(labelled(tmp_path, [1 + i % 3 // 2 for i in range(400)], "outcome"))
    assert inferred.schema.labels == (Label("outcome", "2"),)
    assert "to choose the other one: --label outcome --positive 1 (in Python: positive='1')" in warned(
        inferred
    )
    inferred = infer(labelled(tmp_path, ["tap" if i % 3 else "no_click" for i in range(400)], "outcome"))
    assert (inferred.schema.labels, inferred.warnings) == ((Label("outcome", "tap"),), ())


def test_several_columns_that_could_be_the_label(tmp_path: Path) -> None:
    lines = [f"{i % 2},{i % 5 // 4},u{i % 20},{i % 3 // 2}" for i in range(400)]
    (tmp_path / "a.csv").write_text("\n".join(["a,b,user,c", *lines]) + "\n")
    inferred = infer(tmp_path / "a.csv")
    assert "`c` is used as the label by its position alone, but `a`, `b` are 0/1 too" in warned(inferred)
    assert "--label a" in warned(inferred)
    (tmp_path / "a.csv").write_text("\n".join(["a,b,user,click", *lines]) + "\n")
    assert infer(tmp_path / "a.csv").warnings == ()


def test_without_a_label_the_columns_delimiter_and_lost_lines_are_shown(tmp_path: Path) -> None:
    lines = [f"x{i % 11},{i}" + ",9" * (i == 3) for i in range(200)]
    (tmp_path / "a.csv").write_text("\n".join(["kind,number", *lines]) + "\n")
    with pytest.raises(UserError) as error:
        gs.infer_schema(tmp_path / "a.csv")
    assert "2 columns: kind, number; header found, delimiter ','" in str(error.value)
    assert f"1 line could not be read, the first is {tmp_path}/a.csv line 5: 3 columns" in str(error.value)


@pytest.mark.parametrize("name", ["not_clicked", "no_click", "is_unclicked", "notClicked", "non_click"])
def test_a_label_named_like_the_opposite_of_a_click_is_doubted(tmp_path: Path, name: str) -> None:
    path = labelled(tmp_path, [int(i % 5 == 0) for i in range(400)], name)
    for inferred in (infer(path), infer(path, label=name)):
        assert inferred.warnings[0] == (
            f"{name} is named like the opposite of a click, and 1 counts as the click; if 0 means the click: "
            f'--label {name} --positive 0 (in Python: label="{name}", positive="0")'
        )
    stated = infer(path, label=name, positive="0")
    assert stated.warnings == ()
    assert read(path, stated.schema).read(0, 400).labels_BT.sum() == 320
    words = infer(labelled(tmp_path, ["no" if i % 5 else "yes" for i in range(400)], name))
    assert "and yes counts as the click; if no means the click: --label" in warned(words)


def test_a_label_of_mostly_ones_is_doubted(tmp_path: Path) -> None:
    inferred = infer(labelled(tmp_path, [int(i % 5 > 0) for i in range(400)]))
    assert inferred.warnings[0].startswith(
        "click is 1 in 80.0 % of the sampled examples, and 1 counts as the click; if 0 means the click: "
        "--label click --positive 0"
    )
    slip = infer(labelled(tmp_path, ["x" if i == 7 else int(i % 5 > 0) for i in range(400)]))
    assert "if 0 means the click" in warned(slip)
    minus = infer(labelled(tmp_path, [1 if i % 5 else -1 for i in range(400)]))
    assert "--label click --positive=-1" in warned(minus)
    assert infer(labelled(tmp_path, [i % 2 for i in range(401)])).warnings == ()
    assert infer(labelled(tmp_path, [i % 2 for i in range(400)], "notification_click")).warnings == ()
