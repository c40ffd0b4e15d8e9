"""The `data` section: where the click log is, and which of its columns are label, time, group and weight."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic_core import CoreSchema

from gearshift.config.section import Named, Section
from gearshift.data.click_log_settings import ClickLogSettings
from gearshift.data.label_rule import Missing, parse_positive
from gearshift.data.readers.csv_format import CsvFormat
from gearshift.data.readers.formats import FileFormat
from gearshift.settings.units import Count, Cut, Paths, Share, Text, Texts, parse_text


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
    column: Text = Field(description="The column with the label.")
    positive: Rule | None = Field(
        default=None,
        description='Which values mean a click, if not 1: a value, a list of values, or "> 0", ">= 4".',
    )
    task: Text = Field(default="click", description="The name of this task in reports.")
    missing: Missing = Field(
        default="fail",
        description="How to treat an example without a label: fail (a bad line), or no_click (as after a LEFT JOIN).",
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
    """How many bad lines or batches are skipped: `fail` (none), or `{skip: n}`."""

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


class SplitSection(Section):
    by: Text = Field(
        description="time or end (holds out the last part of the log), hash (single examples) or hash(column) "
        "(all examples of a value, such as a user, together)."
    )
    valid: Cut = Field(
        description="For validation: a share (10%), a duration (1d) or its first day (2026-11-08)."
    )
    test: Cut | None = Field(
        default=None, description="For the test after training, written in the same way."
    )

    @property
    def hash_column(self) -> str | None:
        match = re.fullmatch(r"hash\(\s*(.+?)\s*\)", self.by)
        return match[1] if match else None


class DataSection(Section):
    train: Paths | None = Field(
        default=None,
        description="Files to train on: a path, a glob, a folder (dt=2026-11-01/ works) or a list.",
    )
    valid: Paths | None = Field(default=None, description="Files to validate on while training.")
    test: Paths | None = Field(default=None, description="Files to test the final model on.")
    split: SplitSection | None = Field(
        default=None, description="Hold out a part of `train` instead of naming files."
    )
    synthetic: ClickLogSettings | None = Field(
        default=None,
        description="Generate a click log whose best reachable AUC is known, instead of `train`.",
    )
    format: FileFormat = Field(
        default="auto",
        description="auto detects the format from the files; criteo and avazu have built-in features.",
    )
    csv: CsvFormat = Field(default=CsvFormat(), description="How text files are written.")
    bad_lines: Tolerated = Field(
        default=Tolerated(),
        description="fail, or {skip: 1000}: skip at most this many lines, and list them.",
    )
    label: Annotated[tuple[LabelColumn, ...], BeforeValidator(_labels), _LABEL_SCHEMA] | None = Field(
        default=None,
        description='The column with 0/1, {column: clicks, positive: "> 0"}, or {task: column, ...}.',
    )
    time: Text | None = Field(
        default=None, description="Epoch seconds or ISO text; orders the log, names days."
    )
    group: Text | None = Field(
        default=None, description="The column for the grouped AUC, the mean of the AUCs within its values."
    )
    weight: Text | None = Field(default=None, description="The weight of each example.")
    negatives_kept: Share = Field(
        default=1.0, gt=0, description="0.1 = the log keeps 10 % of the negatives; predictions are corrected."
    )
    keep: Texts = Field(default=(), description="Columns that `predict` copies through.")
    allow_overlap: bool = Field(
        default=False,
        description="Allow validation to start before training ends (the score leaks the future).",
    )
