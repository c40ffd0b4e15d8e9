"""The `data` section: where the click log is, and which of its columns are label, time, group and weight."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic_core import CoreSchema

from gearshift.config.section import Named, Paths, Section, Texts
from gearshift.config.units import Count, Cut, Number, Share, Text, parse_text
from gearshift.data.label_rule import Missing, parse_positive


def _rule(value: Any) -> Any:
    return parse_positive(
        [parse_text(v) for v in value] if isinstance(value, list | tuple) else parse_text(value)
    )


_VALUE: list[dict[str, str]] = [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]
_RULE_SCHEMA = WithJsonSchema(
    {"anyOf": [*_VALUE, {"type": "array", "items": {"anyOf": _VALUE}, "minItems": 1}]}
)
Rule = Annotated[str | tuple[str, ...], BeforeValidator(_rule), _RULE_SCHEMA]


class LabelColumn(Named):
    main_key: ClassVar[str] = "column"
    column: Text = Field(description="The column that says whether it was a click.")
    positive: Rule | None = Field(
        default=None,
        description='What means a click, where it is not 1: a value, a list of values, or "> 0", ">= 4".',
    )
    task: Text = Field(default="click", description="The name of this task in reports.")
    missing: Missing = Field(
        default="fail",
        description="What an example without a label is: fail (a bad line) or no_click, as a LEFT JOIN leaves it.",
    )


def _labels(value: Any) -> Any:
    """One column, one mapping with `column`, a mapping task -> column, or a list of full entries."""
    if isinstance(value, str) or (isinstance(value, dict) and "column" in value):
        return [value]
    if isinstance(value, dict):
        named = ((task, c if isinstance(c, dict) else {"column": c}) for task, c in value.items())
        return [{"task": task, **column} for task, column in named]
    return value


_LABEL_SCHEMA = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array"}]})


class Tolerated(Named):
    """How much that is bad is passed over: `fail`, or `{skip: n}`."""

    main_key: ClassVar[str] = "skip"
    skip: Count = Field(default=0, ge=0, description="Skip at most this many, counted and listed.")

    @model_validator(mode="before")
    @classmethod
    def _from_main_key(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "fail":
            raise ValueError("expected fail or {skip: 1000}")
        return {"skip": 0} if value == "fail" else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"const": "fail"}, handler.resolve_ref_schema(handler(core))]}


def _delimiter(value: Any) -> Any:
    value = {"\\t": "\t", "tab": "\t"}.get(value, value) if isinstance(value, str) else value
    if isinstance(value, str) and len(value.encode()) != 1:
        raise ValueError('expected one character, such as "," or "\\t"')
    return value


Delimiter = Annotated[str, BeforeValidator(_delimiter)]


def _encoding(value: Any) -> Any:
    try:
        "a".encode(value)
    except (LookupError, TypeError):
        raise ValueError("expected an encoding of text, such as utf-8, latin-1, cp1252 or utf-16") from None
    return value


Encoding = Annotated[str, BeforeValidator(_encoding)]


def _null_texts(value: Any) -> Any:
    return ["null" if v is None else parse_text(v) for v in value] if isinstance(value, list) else value


class CsvSection(Section):
    """What is not set is found out by looking at the start of the first file."""

    delimiter: Delimiter | None = Field(
        default=None, description="What separates two columns, such as ; or tab."
    )
    header: bool | None = Field(default=None, description="Whether the first line names the columns.")
    columns: Texts | None = Field(default=None, description="The column names, where there is no header.")
    null: Annotated[tuple[str, ...], BeforeValidator(_null_texts)] = Field(
        default=("",), description="Texts that mean a missing value."
    )
    quote: Text | None = Field(default=None, description="What encloses values; none: quotes are plain text.")
    escape: Literal["backslash", "none"] | None = Field(
        default=None,
        description="backslash: inside quotes a backslash makes a quote text, as MySQL and Spark write it.",
    )
    trim: bool | None = Field(default=None, description="Whether spaces around values do not count.")
    decimal: Literal[".", ","] | None = Field(default=None, description="The decimal mark of numbers.")
    thousands: Literal[",", ".", "none"] | None = Field(
        default=None, description="The mark between the thousands of a number, as in 1,234.5."
    )
    quoted_lines: Count | None = Field(
        default=None,
        ge=1,
        description="How many lines a quoted value may span; unset: 8, and values that look like two stray quotes "
        "are refused.",
    )
    encoding: Encoding | None = Field(
        default=None, description="The encoding of text files, such as latin-1 or utf-16; unset: utf-8."
    )

    def settings(self) -> dict[str, Any]:
        """As keyword arguments for data.CsvFormat."""
        return self.model_dump()


class SplitSection(Section):
    by: Text = Field(
        description="time or end (the last part of the log is kept back), hash (single examples) or hash(column): "
        "all examples of a value, such as a user, together."
    )
    valid: Cut = Field(
        description="For validation: a share (10%), a duration (1d) or its first day (2026-11-08)."
    )
    test: Cut | None = Field(default=None, description="For the test after training, in the same way.")

    @property
    def hash_column(self) -> str | None:
        match = re.fullmatch(r"hash\(\s*(.+?)\s*\)", self.by)
        return match[1] if match else None


class SyntheticSection(Section):
    examples: Count = Field(default=2_000_000, ge=1000, description="How many examples over all days.")
    days: Count = Field(
        default=7, ge=1, description="Days; the last one is for validation if there are several."
    )
    seed: Count = Field(default=1, ge=0, description="The same seed gives the same log on every machine.")
    sequences: bool = Field(default=False, description="Add a history of items per user (for DIN).")
    drift: Number = Field(
        default=1.0, ge=0, le=10, description="How fast the truth changes from day to day; 0: not at all."
    )
    click_rate: Share = Field(default=0.2, ge=0.001, le=0.999, description="The share of clicks.")


class DataSection(Section):
    train: Paths | None = Field(
        default=None,
        description="Files to train on: a path, a glob, a folder (dt=2026-11-01/ works) or a list.",
    )
    valid: Paths | None = Field(default=None, description="Files to validate on while training.")
    test: Paths | None = Field(default=None, description="Files to measure the final model on.")
    split: SplitSection | None = Field(
        default=None, description="Keep back a part of `train` instead of naming files."
    )
    synthetic: SyntheticSection | None = Field(
        default=None,
        description="Generate a click log whose best reachable AUC is known, instead of `train`.",
    )
    format: Literal["auto", "csv", "criteo", "avazu", "libfm", "jsonl", "parquet", "prepared"] = Field(
        default="auto", description="auto looks at the files; criteo and avazu have built-in features."
    )
    csv: CsvSection = Field(default=CsvSection(), description="How text files are written.")
    bad_lines: Tolerated = Field(
        default=Tolerated(),
        description="fail, or {skip: 1000}: leave out at most so many lines, and list them.",
    )
    label: Annotated[tuple[LabelColumn, ...], BeforeValidator(_labels), _LABEL_SCHEMA] | None = Field(
        default=None,
        description='The column with 0/1, {column: clicks, positive: "> 0"}, or {task: column, ...}.',
    )
    time: Text | None = Field(
        default=None, description="Epoch seconds or ISO text; orders the log, names days."
    )
    group: Text | None = Field(default=None, description="Grouped AUC is the mean over this column's values.")
    weight: Text | None = Field(default=None, description="The weight of each example.")
    negatives_kept: Share = Field(
        default=1.0, gt=0, description="0.1 = the log keeps 10 % of the negatives; predictions are corrected."
    )
    keep: Texts = Field(default=(), description="Columns that `predict` copies through.")
    allow_overlap: bool = Field(
        default=False,
        description="Allow validation to start before training ends (the score leaks the future).",
    )
