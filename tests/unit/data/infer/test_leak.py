"""Columns that reveal the label, by numbers, missing values or values; and legitimate columns that do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gearshift.cli.init import init
from gearshift.config import load_config
from gearshift.data.infer.leak import FEWEST
from gearshift.data.infer.schema import InferredSchema, infer

SIZE = 4000
RANDOM = np.random.default_rng(7)
CLICK = RANDOM.random(SIZE) < 0.2
NOISE = RANDOM.normal(size=SIZE)


def look_at(values: object, click: np.ndarray = CLICK) -> InferredSchema:  # type: ignore[type-arg]
    honest = np.round(NOISE, 3)
    return infer(pa.table({"other": honest[: len(click)], "it": values, "click": click.astype(int)}))


def why(inferred: InferredSchema) -> str:
    return next(guess.why for guess in inferred.guesses if guess.column == "it")


def is_feature(inferred: InferredSchema) -> bool:
    return "it" in [feature.name for feature in inferred.schema.features]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.where(CLICK, np.exp(NOISE), 0), "is not '0' exactly when the label is 1"),
        (np.where(CLICK, NOISE, 0), "is not '0' exactly when the label is 1"),  # both signs: its AUC is .5
        (NOISE + 20 * CLICK, "is larger for clicks, an AUC of 1.000 by itself"),
        (NOISE - 4 * CLICK, "is smaller for clicks, an AUC of 0.99"),
        (pa.array(NOISE, mask=~CLICK), "has a value exactly when the label is 1"),
        (pa.array(NOISE, mask=CLICK), "is missing exactly when the label is 1"),
        (
            pa.array(NOISE, mask=np.where(np.arange(SIZE) % 400 == 0, CLICK, ~CLICK)),
            "has a value nearly exactly when",
        ),
        (
            np.where(CLICK, NOISE > 0, 2 + (NOISE > 0)).astype(int),
            "each of its values belongs to one label value",
        ),
    ],
)
def test_a_column_that_knows_the_label_is_left_out(values: object, reason: str) -> None:
    inferred = look_at(values)
    assert reason in why(inferred)
    assert "it would reveal the label" in why(inferred)
    assert not is_feature(inferred)
    assert [feature.name for feature in inferred.schema.features] == ["other"]


CONVERTED = CLICK & (RANDOM.random(SIZE) < 0.25)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (CONVERTED.astype(int), "is not '0' only when the label is 1 (in"),
        (CONVERTED, "is not 'false' only when the label is 1 (in"),
        (np.where(CONVERTED, np.exp(NOISE), 0), "is not '0' only when the label is 1 (in"),
        (pa.array(NOISE, mask=~CONVERTED), "has a value only when the label is 1 (in"),
        (pa.array(np.ones(SIZE), mask=~CONVERTED), "has a value only when the label is 1 (in"),
    ],
)
def test_a_column_that_only_some_clicks_set_is_left_out(values: object, reason: str) -> None:
    inferred = look_at(values)
    assert reason in why(inferred)
    assert f"in {CONVERTED.sum()} examples, all of them clicks): it would reveal the label" in why(inferred)
    assert not is_feature(inferred)
    assert next(guess.left_out for guess in inferred.guesses if guess.column == "it") is not None


def test_one_value_that_only_clicks_have_is_a_question() -> None:
    inferred = look_at(np.where(CONVERTED, "bought", np.where(NOISE > 0, "seen", "new")))
    assert is_feature(inferred)
    assert inferred.warnings[0] == (
        f"it is 'bought' only when the label is 1 (in {CONVERTED.sum()} examples, all of them clicks): "
        "is it known before the click?"
    )


def test_a_few_clicks_in_a_row_are_chance() -> None:
    few = CONVERTED & (np.cumsum(CONVERTED) < 30)
    assert is_feature(look_at(few.astype(int)))
    often = RANDOM.random(SIZE) < 0.9  # 40 clicks of 40 examples are no wonder
    assert is_feature(look_at((often & (np.cumsum(often) <= 40)).astype(int), often))


def test_a_column_that_is_too_good_is_kept_with_a_question() -> None:
    inferred = look_at(NOISE + 2.6 * CLICK)
    assert is_feature(inferred)
    assert "is larger for clicks, an AUC of 0.96" in why(inferred)
    assert inferred.warnings[0].startswith("it is larger for clicks")
    assert inferred.warnings[0].endswith("by itself: is it known before the click?")


@pytest.mark.parametrize(
    "values",
    [
        NOISE + 1.5 * CLICK,  # an AUC of .86 is a good feature
        pa.array(NOISE, mask=RANDOM.random(SIZE) < np.where(CLICK, 0.5, 0.2)),
        np.where(RANDOM.random(SIZE) < 0.9, 0.0, np.exp(NOISE)),
        RANDOM.integers(0, 30, SIZE),
    ],
)
def test_honest_columns_are_not_suspected(values: object) -> None:
    inferred = look_at(values)
    assert is_feature(inferred)
    assert "label" not in why(inferred)
    assert inferred.warnings == ()


def test_too_few_clicks_prove_nothing() -> None:
    click = np.arange(SIZE) < FEWEST - 1
    assert is_feature(look_at(np.where(click, 5.5, NOISE), click))


def test_the_config_keeps_the_leak_as_a_comment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        f"u{i % 50},{30 * np.exp(n) if c else 0:.1f},{int(c)}"
        for i, (n, c) in enumerate(zip(NOISE, CLICK, strict=True))
    ]
    (tmp_path / "clicks.csv").write_text("user,dwell,click\n" + "\n".join(lines))
    init(tmp_path / "clicks.csv", tmp_path / "clicks.yaml", label=None, time=None, force=False)
    text = (tmp_path / "clicks.yaml").read_text()
    assert "# - {name: dwell, type: numeric, transform: log1p}" in text
    assert "is not '0.0' exactly when the label is 1" in capsys.readouterr().out
    schema = load_config(tmp_path / "clicks.yaml").schema()
    assert schema is not None
    assert [feature.name for feature in schema.features] == ["user"]


def test_a_question_ends_with_one_mark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{n + 2.6 * c:.3f},{int(c)}" for n, c in zip(NOISE, CLICK, strict=True)]
    (tmp_path / "clicks.csv").write_text("it,click\n" + "\n".join(lines))
    init(tmp_path / "clicks.csv", tmp_path / "clicks.yaml", label=None, time=None, force=False)
    out = capsys.readouterr().out
    assert "Warning: it is larger for clicks" in out
    assert "is it known before the click?" in out
    assert "?." not in out
