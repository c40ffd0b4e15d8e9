"""The text of a config from the results of `infer`: every guess on a separate line, with its reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gearshift.config.document import dump_flow
from gearshift.config.features import entry_of
from gearshift.config.few_steps import halved_for_steps
from gearshift.data import schema as columns
from gearshift.data.readers.public_logs import KNOWN_LOGS

_COMMENT_AT = 74
TRAINING_SHARE = 0.9  # share of the examples for training; the rest is for validation


class ShownGuess(Protocol):
    @property
    def column(self) -> str: ...
    @property
    def guess(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def left_out(self) -> columns.Feature | None: ...


class ShownGrouping(Protocol):
    @property
    def words(self) -> str: ...


class ShownGuesses(Protocol):
    """The results of data.infer that a config shows."""

    @property
    def format(self) -> str: ...
    @property
    def csv(self) -> Any: ...  # data.sniff.CsvFormat
    @property
    def guesses(self) -> Sequence[ShownGuess]: ...
    @property
    def schema(self) -> columns.Schema: ...
    @property
    def grouping(self) -> ShownGrouping | None: ...


@dataclass(frozen=True)
class Extent:
    """The amount of data."""

    examples: int
    times: tuple[int, int] | None = None  # epoch seconds of the first and last example

    @property
    def has_days(self) -> bool:
        """Whether the data spans at least a day. If not, a share of its time span may contain all examples, or none."""
        return self.times is not None and self.times[1] - self.times[0] >= 86400


def written(inferred: ShownGuesses, data: Path, name: str, extent: Extent, skip: int = 0) -> str:
    """The config as text; `skip` is the number of bad lines that the user allows."""
    why = {guess.column: guess.why for guess in inferred.guesses}
    lines = [
        f"# Written by `gearshift init {_plain(str(data))}`: guesses, and why. All keys: docs/config.md",
        f"name: {dump_flow(name)}",
        "data:",
        *(f"  {line}" for line in _data_lines(inferred, data, why, extent)),
        *([f"  bad_lines: {{skip: {skip}}}"] if skip else []),
        *_feature_lines(inferred, why),
        *_training_lines(inferred.schema, extent.examples),
    ]
    return "\n".join(lines) + "\n"


def _commented(line: str, comment: str | None) -> str:
    return f"{line.ljust(_COMMENT_AT)} # {_plain(comment)}" if comment else line


def _plain(text: str) -> str:
    """The text on one line, without characters that YAML forbids even in comments."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _data_lines(inferred: ShownGuesses, data: Path, why: Mapping[str, str], extent: Extent) -> list[str]:
    schema: columns.Schema = inferred.schema
    lines = [f"train: {dump_flow(str(data))}", _split_line(split_of(inferred, extent))]
    if inferred.format != "parquet":
        lines.append(f"format: {inferred.format}")
    if _csv_settings(inferred.csv) and inferred.format in ("csv", "jsonl"):
        lines.append(
            _commented(f"csv: {dump_flow(_csv_settings(inferred.csv))}", _missing_words(inferred.csv.null))
        )
    label = schema.labels[0]
    lines.append(_commented(f"label: {dump_flow(_label(label))}", why.get(label.column)))
    for key in ("time", "group", "weight"):
        column = getattr(schema, key)
        if column is not None:
            lines.append(_commented(f"{key}: {dump_flow(column)}", why.get(column)))
    return lines


def _label(label: columns.Label) -> Any:
    rule: dict[str, Any] = {}
    if label.positive is not None:
        rule["positive"] = list(label.positive) if isinstance(label.positive, tuple) else label.positive
    if label.missing != "fail":
        rule["missing"] = label.missing
    return {"column": label.column, **rule} if rule else label.column


def _csv_settings(csv: Any) -> dict[str, Any]:
    """The detected settings, so that the next file is read in the same way."""
    keys = [field.name for field in dataclasses.fields(csv)]
    detected = {key: getattr(csv, key) for key in keys if getattr(csv, key) is not None}
    usual = {"null": ("",), "quote": '"', "escape": "none", "trim": False, "decimal": "."}
    if csv.thousands is not None:
        del usual["decimal"]  # each implies the other
    chosen = {key: value for key, value in detected.items() if value != usual.get(key)}
    if chosen.get("header"):
        chosen.pop("columns", None)  # they are in the header
    return {key: list(value) if isinstance(value, tuple) else value for key, value in chosen.items()}


def _missing_words(null: Sequence[str]) -> str | None:
    words = [word for word in null if word]
    return f"{', '.join(words)}: found in the data and read as missing" if words else None


@dataclass(frozen=True)
class GuessedSplit:
    by: str
    why: str


def split_of(inferred: ShownGuesses, extent: Extent) -> GuessedSplit:
    """By time if there is one, otherwise the end of the file, unless its users differ from the beginning."""
    if extent.has_days:
        return GuessedSplit("time", "validation on the last 10 % in time; or  valid: FILE")
    if inferred.grouping is None:
        return GuessedSplit("end", "validation on the last 10 % of the file; or  valid: FILE")
    why = (
        f"{inferred.grouping.words}, so the end of the file is not representative; validation examples are selected by "
        "hash; or  valid: FILE"
    )
    return GuessedSplit("hash", why)


def _split_line(split: GuessedSplit) -> str:
    return _commented(f"split: {{by: {split.by}, valid: 10%}}", split.why)


def _feature_lines(inferred: ShownGuesses, why: Mapping[str, str]) -> list[str]:
    schema: columns.Schema = inferred.schema
    known = KNOWN_LOGS.get(inferred.format)
    if known is not None and known.features == schema.features:
        return [f"# features: those of every {inferred.format} log are built in"]
    lines = ["features:"]
    for feature in schema.features:
        lines.append(_commented(f"  - {dump_flow(_entry(feature))}", why.get(feature.name)))
    used = {feature.name for feature in schema.features} | {label.column for label in schema.labels}
    used |= {schema.time or "", schema.group or "", schema.weight or ""}
    for guess in inferred.guesses:
        if guess.column not in used:
            entry = _entry(guess.left_out or columns.Categorical(guess.column))
            lines.append(_commented(f"# - {dump_flow(entry)}", f"{guess.guess}: {guess.why}"))
    return lines


def _entry(feature: columns.Feature) -> dict[str, Any]:
    entry = entry_of(feature).model_dump(mode="json", exclude_defaults=True)
    return {"name": entry.pop("name"), "type": entry.pop("type"), **entry}


def recommended_global_batch(examples: int) -> int:
    """A power of two, which divides evenly among 2, 4, 8, ... workers, and is small enough for about 200 steps per
    epoch.

    A small log gets smaller batches, so that its training part still has enough steps to avoid a warning from `train`.
    Above 4096, rates that were tuned for small batches do not carry over (docs/large_batches.md).
    """
    batch = 256 if examples < 50_000 else 1024 if examples < 1_000_000 else 4096
    return halved_for_steps(batch, TRAINING_SHARE * examples)


def _training_lines(schema: columns.Schema, examples: int) -> list[str]:
    batch = recommended_global_batch(examples)
    return [
        f"model: {dump_flow(_model(schema))}",
        "optimizer:",
        "  dense: {name: adam, lr: 1e-3}",
        "  embeddings: {name: adagrad, lr: 0.05}",
        _commented(f"train: {{global_batch: {batch}, epochs: 1}}", f"about {examples:,} examples"),
    ]


def _model(schema: columns.Schema) -> dict[str, Any]:
    sizes = {"dim": 16, "hidden": [400, 400]}
    for feature in schema.features:
        if isinstance(feature, columns.Sequence) and feature.share_embedding is not None:
            return {"name": "din", **sizes, "target": feature.share_embedding, "history": feature.name}
    return {"name": "deepfm", **sizes} if schema.fields else {"name": "dnn", "hidden": [400, 400]}
