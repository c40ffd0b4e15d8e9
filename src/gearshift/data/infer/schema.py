"""Infers the schema of a log, with a reason for each column, for `gearshift init`.

It reads the first 100,000 examples. First it finds the label, then the time, then the kind of each other column, and
finally what only a comparison of columns shows: leaks, shared embeddings, the group. A guess is a proposal: the user
checks the reasons and corrects errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gearshift.data.examples import RawSource
from gearshift.data.id_spellings import spelling_remarks
from gearshift.data.infer.feature import (
    ColumnGuess,
    Role,
    guess_column,
    ignored,
    share_embedding,
    without_nearly_unique,
)
from gearshift.data.infer.label import FoundLabel, find_label
from gearshift.data.infer.leak import find_leak, label_values
from gearshift.data.infer.missing_values import find_missing_markers
from gearshift.data.infer.profile import Profile, sample_profiles
from gearshift.data.infer.time import FoundTime, find_time, is_time, missed_times, unread_times
from gearshift.data.label_rule import Positive
from gearshift.data.order import ColumnGrouping, find_grouping
from gearshift.data.readers.bad_lines import BadLine, lines_lost
from gearshift.data.readers.csv_format import CsvFormat
from gearshift.data.readers.delimited import TextLayout
from gearshift.data.readers.files import hive_keys
from gearshift.data.readers.python_objects import as_table
from gearshift.data.readers.source_opener import Source, builtin_schema, file_remarks, open_source
from gearshift.data.readers.text import TextSource
from gearshift.data.schema import Categorical, Label, Numeric, Schema
from gearshift.errors import UserError

SHOWN_COLUMNS = 40
GROUP_NAMES = (
    *("user_id", "userid", "uid", "user", "customer_id", "customer", "visitor_id", "member_id", "member"),
    *("account_id", "query_id", "session_id", "session", "device_id"),
)


@dataclass(frozen=True)
class InferredSchema:
    """Everything that `init` prints and writes."""

    source: str
    format: str
    csv: CsvFormat
    sample: str  # "1,204,331 examples in a 50 MB sample of 2.1 GB, header found, delimiter ','"
    guesses: tuple[ColumnGuess, ...]
    schema: Schema
    warnings: tuple[str, ...] = ()
    grouping: ColumnGrouping | None = None  # the column by which the examples are grouped, if any


def infer_schema(
    source: Source,
    *,
    label: str | Sequence[str] | None = None,
    time: str | None = None,
    positive: str | Sequence[str] | None = None,
) -> Schema:
    """Infer the schema that `gearshift init` would write for this file or table.

    `positive` defines which values of a single label mean a click: "yes", ["click", "buy"], "> 0", ">= 4".
    Several labels are several tasks, named like their columns. A column that reveals one of them is not a feature.
    Words that mean "missing" in the data (NULL, NA) are in `schema.null`, and `read` uses them.
    """
    if label is None or isinstance(label, str):
        return infer(source, label=label, time=time, positive=positive).schema
    if positive is not None:
        raise UserError(f"positive={positive!r} is a rule for one label, not for {list(label)}; see gs.Label")
    return _of_several_labels([infer(source, label=one, time=time).schema for one in _distinct(label)])


def _distinct(labels: Sequence[str]) -> Sequence[str]:
    if not labels or len(set(labels)) < len(labels):
        raise UserError(f"label={list(labels)}: give one or more distinct columns")
    return labels


def _of_several_labels(schemas: list[Schema]) -> Schema:
    """Combine the schemas of several labels: features that are in all of them and are not labels."""
    columns = {schema.labels[0].column for schema in schemas}
    labels = tuple(replace(schema.labels[0], task=schema.labels[0].column) for schema in schemas)
    features = tuple(
        feature
        for feature in schemas[0].features
        if feature.name not in columns and all(feature in schema.features for schema in schemas)
    )
    return replace(schemas[0], features=features, labels=labels)


def infer(
    source: Source,
    *,
    label: str | None = None,
    time: str | None = None,
    positive: str | Sequence[str] | None = None,
    csv: CsvFormat = CsvFormat(),
    format: str = "auto",
) -> InferredSchema:
    rule = _stated_rule(label, positive)
    source = as_table(source)
    expected = frozenset(n for n in (label, time) if n)
    raw, format = open_source(source, format=format, csv=csv, expected=expected)
    remarks = file_remarks(raw)
    profiles, examples, unreadable = sample_profiles(raw)
    markers = find_missing_markers(profiles) if format == "csv" and csv.null == CsvFormat().null else ()
    if markers:
        csv = replace(_csv_format(raw, csv), null=("", *markers))
        raw, format = open_source(source, csv=csv, format=format)
        profiles, examples, unreadable = sample_profiles(raw)
    name = str(source) if isinstance(source, str | Path) else raw.files[0].path if raw.files else "table"
    if examples == 0:
        raise UserError(_why_no_examples(name, raw, unreadable))
    builtin = builtin_schema(format, raw)
    if builtin is not None and label in (None, builtin.labels[0].column):
        found_label = find_label(profiles, builtin.labels[0].column, name, rule)
        schema = replace(builtin, labels=(found_label.label,))
        guesses = _builtin_guesses(schema, raw.columns, format, found_label)
        warnings = found_label.warnings
    else:
        looked_at = _looked_at(raw, unreadable)
        found_label = find_label(profiles, label, name, rule, looked_at)
        found_time = find_time(profiles, time, name, found_label.label.column, _folder_names(raw))
        guesses, schema = _guess_all(profiles, found_label, found_time)
        warnings = found_label.warnings
        if found_time is None:
            warnings += missed_times(profiles, found_label.label.column)
        else:
            warnings += found_time.warnings
        warnings += unread_times(profiles, found_label.label.column, schema.time)
        warnings += tuple(guess.suspicion for guess in guesses if guess.suspicion is not None)
        warnings += _other_groups(schema.group, guesses)
    sample = _sample_words(raw, examples, lines_lost(unreadable))
    warnings += remarks if not unreadable else (*remarks, _unreadable_words(unreadable))
    warnings += spelling_remarks(raw, schema.features)
    schema = replace(schema, null=csv.null)
    grouping = find_grouping(profiles, schema)
    return InferredSchema(name, format, _csv_format(raw, csv), sample, guesses, schema, warnings, grouping)


def _stated_rule(label: str | None, positive: str | Sequence[str] | None) -> Positive:
    if positive is not None and label is None:
        raise UserError("--positive is a rule for the label: set --label (in Python: label=)")
    return Label(label or "", positive).positive  # type: ignore[arg-type]


def _unreadable_words(unreadable: list[BadLine]) -> str:
    lost = lines_lost(unreadable)
    lines = "1 line" if lost == 1 else f"{lost:,} lines"
    return (
        f"{lines} of the sample cannot be read and would stop the training; the first is {unreadable[0]}. "
        "Fix the data, or allow some: data.bad_lines={skip: 1000}"
    )


def _looked_at(raw: RawSource, unreadable: list[BadLine]) -> str:
    """The columns, their delimiter and the number of bad lines: hints for a label that was not found."""
    names = ", ".join(raw.columns[:SHOWN_COLUMNS])
    more = f" and {len(raw.columns) - SHOWN_COLUMNS:,} more" if len(raw.columns) > SHOWN_COLUMNS else ""
    words = f"{len(raw.columns):,} column{'s' * (len(raw.columns) != 1)}: {names}{more}"
    if isinstance(raw, TextSource) and isinstance(raw.layout, TextLayout):
        header = "header found" if raw.layout.header else "no header"
        words += f"; {header}, delimiter {raw.layout.delimiter!r} (another one: data.csv={{delimiter: ';'}})"
    lost = lines_lost(unreadable)
    lines = "1 line" if lost == 1 else f"{lost:,} lines"
    return words + (f"; {lines} could not be read, the first is {unreadable[0]}" if unreadable else "")


def _why_no_examples(name: str, raw: RawSource, unreadable: list[BadLine]) -> str:
    if not unreadable or not isinstance(raw, TextSource):
        return f"{name} has no examples."
    first, layout = unreadable[0], raw.layout
    if not isinstance(layout, TextLayout):
        return f"{name}: no line can be read; {first}"
    return (
        f"{name}: no line has {layout.counted_by}'s {len(layout.columns):,} columns; "
        f"line {first.place.number:,}: {first.reason}; see data.csv.quote and data.csv.delimiter"
    )


def _folder_names(raw: RawSource) -> dict[str, list[str]]:
    """The values of columns that come from folder names: dt -> 2026-11-01, 2026-11-02, ..."""
    values: dict[str, list[str]] = {}
    for file in raw.files:
        for key, value in hive_keys(file.path).items():
            values.setdefault(key, []).append(value)
    return values


def _guess_all(
    profiles: list[Profile], found_label: FoundLabel, found_time: FoundTime | None
) -> tuple[tuple[ColumnGuess, ...], Schema]:
    guesses: list[ColumnGuess] = []
    for profile in profiles:
        if profile.name == found_label.label.column:
            guesses.append(ColumnGuess(profile.name, "label", found_label.why, "label"))
        elif found_time is not None and profile.name == found_time.column:
            guesses.append(ColumnGuess(profile.name, "time", found_time.why, "time"))
        elif found_time is not None and is_time(profile):
            why = f"a second time; {found_time.column} is the time of the example, and all future values would be new"
            guesses.append(ignored(profile, why))
        else:
            guesses.append(guess_column(profile))
    guesses = _without_leaks(guesses, profiles, found_label.label)
    guesses = [share_embedding(guess, guesses, profiles) for guess in guesses]
    guesses = without_nearly_unique(guesses, profiles)
    schema = Schema(
        tuple(g.feature for g in guesses if g.feature is not None),
        (found_label.label,),
        time=found_time.column if found_time is not None else None,
        group=_group(guesses, profiles),
        weight=next((g.column for g in guesses if g.role == "weight"), None),
    )
    return tuple(guesses), schema


def _without_leaks(guesses: list[ColumnGuess], profiles: list[Profile], label: Label) -> list[ColumnGuess]:
    clicked = label_values(next(p for p in profiles if p.name == label.column), label)

    def checked(guess: ColumnGuess, profile: Profile) -> ColumnGuess:
        leak = find_leak(profile, clicked) if guess.role == "feature" else None
        if leak is None:
            return guess
        if leak.sure:
            return replace(ignored(profile, leak.reason), left_out=guess.feature)
        return replace(guess, why=f"{guess.why}; {leak.reason}", suspicion=f"{guess.column} {leak.reason}")

    return [checked(guess, profile) for guess, profile in zip(guesses, profiles, strict=True)]


def _group(guesses: list[ColumnGuess], profiles: list[Profile]) -> str | None:
    """The column for grouped ranking: a user column with several examples per user.

    Of `User` and `user` the one that matches the known name is chosen, otherwise the first.
    """
    categories = [g.column for g in guesses if isinstance(g.feature, Categorical)]
    by_name = {profile.name: profile for profile in profiles}
    for name in GROUP_NAMES:
        alike = sorted(_spelled_alike(name, categories), key=lambda column: column != name)
        for column in alike:
            if by_name[column].examples >= 1.5 * by_name[column].distinct:
                return column
    return None


def _spelled_alike(name: str, columns: Sequence[str]) -> list[str]:
    return [column for column in columns if column.lower() == name.lower()]


def _other_groups(group: str | None, guesses: Sequence[ColumnGuess]) -> tuple[str, ...]:
    """A warning if another column has the group's name in a different spelling."""
    columns = [g.column for g in guesses if isinstance(g.feature, Categorical)]
    others = [column for column in _spelled_alike(group or "", columns) if column != group]
    if not others:
        return ()
    return (
        f"{group} and {others[0]} both look like the user: {group} is the group of gAUC; "
        f"to use the other one, set data.group: {others[0]}",
    )


def _builtin_guesses(
    schema: Schema, columns: tuple[str, ...], format: str, label: FoundLabel
) -> tuple[ColumnGuess, ...]:
    features = {f.name: f for f in schema.features}
    roles: dict[str | None, Role] = {schema.labels[0].column: "label", schema.time: "time"}
    guesses = []
    for name in columns:
        feature = features.get(name)
        role = roles.get(name, "ignored" if feature is None else "feature")
        words = type(feature).__name__.lower() if feature is not None else role
        if isinstance(feature, Numeric) and feature.transform != "none":
            words += f", {feature.transform}"
        why = f"the {format} format"
        why += f": {label.why}" if role == "label" and label.label.positive is not None else ""
        guesses.append(ColumnGuess(name, words, why, role, feature))
    return tuple(guesses)


def _csv_format(raw: RawSource, stated: CsvFormat) -> CsvFormat:
    """The complete layout of the text, so that a config with it does not depend on detection."""
    if not isinstance(raw, TextSource) or not isinstance(raw.layout, TextLayout) or raw.layout.libfm:
        return stated
    layout = raw.layout
    return replace(
        stated,
        delimiter=layout.delimiter,
        header=layout.header,
        columns=None if layout.header else layout.columns,
        null=layout.null,
        quote=layout.quote or "none",
        trim=layout.trim,
        decimal=layout.decimal,  # type: ignore[arg-type]  # one of the marks, as is `thousands`
        thousands=layout.thousands or ("none" if layout.marks_doubts else stated.thousands),  # type: ignore[arg-type]
        escape="backslash" if layout.escape else "none",
    )


def _sample_words(raw: RawSource, examples: int, unreadable: int) -> str:
    total = raw.estimate()
    words = f"{examples:,} examples" + (f" sampled of about {total:,}" if total > 1.05 * examples else "")
    if isinstance(raw, TextSource) and isinstance(raw.layout, TextLayout):
        words += ", header found" if raw.layout.header else ", no header"
        words += f", delimiter {raw.layout.delimiter!r}"
    lines = f", {unreadable:,} line{'s' * (unreadable != 1)} could not be read"
    return words + (lines if unreadable else "")
