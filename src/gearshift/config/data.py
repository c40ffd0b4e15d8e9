"""The `data` section: where the click log is, and which of its columns are label, time, group and weight."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema

from gearshift.config.section import FlatSection, Named, Section
from gearshift.data.click_log_settings import ClickLogSettings
from gearshift.data.readers.csv_format import CsvFormat
from gearshift.data.readers.formats import FileFormat
from gearshift.data.schema import Label, Schema
from gearshift.settings.declaration import declarations, values_of
from gearshift.settings.tolerated import Tolerated
from gearshift.settings.units import Cut, Paths, Text


class LabelColumn(Named, FlatSection, of=(Label,)):
    main_key: ClassVar[str] = "column"


def _labels(value: Any) -> Any:
    """One column, one mapping with `column`, a mapping task -> column, or a list of full entries."""
    if isinstance(value, str) or (isinstance(value, dict) and "column" in value):
        return [value]
    if isinstance(value, dict):
        named = ((task, c if isinstance(c, dict) else {"column": c}) for task, c in value.items())
        return [{"task": task, **column} for task, column in named]
    return value


_LABEL_SCHEMA = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array"}]})


class SplitSection(Section):
    by: Text = Field(
        description="time or end: hold out the last part of the log; hash: draw single examples; hash(column): keep "
        "all examples of a value, such as a user, together."
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


class DataSection(FlatSection, of=(Schema,)):
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
    csv: CsvFormat = Field(default=CsvFormat(), description="The layout of text files.")
    bad_lines: Tolerated = Field(
        default=Tolerated(),
        description="fail, or {skip: 1000}: skip at most this many lines, and list them.",
    )
    label: Annotated[tuple[LabelColumn, ...], BeforeValidator(_labels), _LABEL_SCHEMA] | None = Field(
        default=None,
        description='The column with 0/1, {column: clicks, positive: "> 0"}, or {task: column, ...}.',
    )
    allow_overlap: bool = Field(
        default=False,
        description="Allow validation data to begin before the training data ends "
        "(future data then leaks into the score).",
    )

    @property
    def stated_roles(self) -> dict[str, Any]:
        """The schema settings besides features and labels: the columns of time, group, weight, ..."""
        known = declarations(Schema)
        return {
            name: value for name, value in values_of(self, Schema).items() if value != known[name].default
        }
