"""Reads the output of `prepare`: row groups of encoded columns become batches.

A schema may use some of the prepared features, and may change settings that do not affect the encoding (dim, pool). A
feature that would have to be encoded differently is refused by name.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gearshift.data.batch import Batch, Floats, Ids, Ragged
from gearshift.data.examples import PieceAt
from gearshift.data.prepare import FORMAT_VERSION, MANIFEST
from gearshift.data.schema import Bag, Bucketized, Feature, Numeric, Schema, Sequence, Vector
from gearshift.errors import UserError


def is_prepared(source: object) -> bool:
    """Whether this is the path of a prepared folder. The manifest of a model differs: it contains `facts`."""
    if not isinstance(source, str | Path) or not (Path(source) / MANIFEST).is_file():
        return False
    try:
        return "facts" not in json.loads((Path(source) / MANIFEST).read_text())
    except ValueError:  # damaged: reading it will raise an error
        return True


def prepared_folder(source: object) -> Path:
    if not isinstance(source, str | Path):
        raise UserError("format prepared reads one folder that `prepare` wrote.")
    return Path(source)


@dataclass(frozen=True)
class _Part:
    path: Path
    first: int
    examples: int


class PreparedExamples:
    """The examples of a prepared folder."""

    seekable = True

    def __init__(self, folder: Path, schema: Schema | None, *, labelled: bool = True) -> None:
        self.folder = folder
        self.labelled = labelled
        manifest = _load_manifest(folder)
        self._prepared = Schema.from_dict(manifest["schema"])
        self.schema = self._prepared if schema is None else self._matching(schema)
        counts = [file["examples"] for file in manifest["files"]]
        firsts = accumulate(counts, initial=0)
        self._parts = [
            _Part(folder / file["name"], first, file["examples"])
            for file, first in zip(manifest["files"], firsts, strict=False)
        ]
        for part in self._parts:
            if not part.path.is_file():
                raise UserError(f"{part.path} is missing; copy the folder again, or prepare the data again.")
        self._count: int = manifest["examples"]
        self._time_range: list[int] | None = manifest["time_range"]

    def count(self) -> int | None:
        return self._count

    def estimate(self) -> int:
        return self._count

    def blocks(self, first: int) -> Iterator[Batch]:
        if first >= self._count:
            return
        for number in range(self._part_of(first), len(self._parts)):
            with _File(self._parts[number], self._columns()) as file:
                for group in range(file.group_of(first), file.groups):
                    batch = _to_batch(file.read(group), self.schema, file.firsts[group])
                    before = max(first - batch.first, 0)
                    yield batch.slice(before, len(batch)) if before else batch

    def pieces(self) -> PieceAt:
        opened: list[tuple[int, _File]] = []  # at most one

        def piece_at(position: int) -> Batch:
            if not 0 <= position < self._count:
                raise IndexError(f"there is no example {position}")
            number = self._part_of(position)
            if not opened or opened[0][0] != number:
                for _, old in opened:
                    old.close()
                opened[:] = [(number, _File(self._parts[number], self._columns()))]
            file = opened[0][1]
            group = file.group_of(position)
            return _to_batch(file.read(group), self.schema, file.firsts[group])

        return piece_at

    def _part_of(self, position: int) -> int:
        return bisect_right([part.first for part in self._parts], position) - 1

    def _columns(self) -> list[str]:
        labels = [f"label.{label.task}" for label in self.schema.labels] if self.labelled else []
        return labels + _column_names(self.schema)

    def _matching(self, requested: Schema) -> Schema:
        known = self._prepared if self.labelled else replace(self._prepared, labels=requested.labels)
        return _matching(self.folder, known, requested)

    def with_schema(self, schema: Schema) -> PreparedExamples:
        return PreparedExamples(self.folder, schema, labelled=self.labelled)

    def time_range(self) -> tuple[int, int] | None:
        span = self._time_range
        return None if span is None or self.schema.time is None else (span[0], span[1])

    def describe(self) -> tuple[str, str]:
        return f"{self.folder}, {self._count:,} prepared examples", ""


class _File:
    """An open file with its row groups, of any size, by position."""

    def __init__(self, part: _Part, columns: list[str]) -> None:
        self._path, self._columns = part.path, columns
        with self._readable():
            self._parquet = pq.ParquetFile(part.path)
        metadata = self._parquet.metadata
        self.groups = metadata.num_row_groups
        sizes = (metadata.row_group(i).num_rows for i in range(self.groups))
        self.firsts = list(accumulate(sizes, initial=part.first))

    def group_of(self, position: int) -> int:
        return max(bisect_right(self.firsts, position) - 1, 0)

    def read(self, group: int) -> pa.Table:
        with self._readable():
            return self._parquet.read_row_group(group, columns=self._columns, use_threads=False)

    def close(self) -> None:
        self._parquet.close()

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(
                f"{self._path} cannot be read ({error}); copy it again, or prepare the data again."
            ) from None


def _load_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        version = manifest["version"] if manifest["format"] == "gearshift-prepared" else None
    except FileNotFoundError:
        raise UserError(f"{folder} is not a prepared folder (no {MANIFEST}); see gearshift prepare") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is damaged; prepare the data again.") from None
    if version != FORMAT_VERSION:
        raise UserError(
            f"{folder} was prepared in format {version}; this version reads {FORMAT_VERSION}. Prepare again."
        )
    return manifest


def _matching(folder: Path, prepared: Schema, requested: Schema) -> Schema:
    """The requested schema with the fits of the prepared one. Refuses columns that are not in the files."""
    known = {(f.name, type(f)): f for f in prepared.features}
    names = {f.name for f in prepared.features}
    features = []
    for feature in requested.features:
        there = known.get((feature.name, type(feature)))
        if there is None or _encoding(learned := _with_learned(feature, there)) != _encoding(there):
            what = "was prepared with different settings" if feature.name in names else "is not in it"
            raise UserError(f"{folder}: feature `{feature.name}` {what}; prepare the data again.")
        features.append(learned)
    columns = {label.column for label in prepared.labels}
    for label in requested.labels:
        if label.column in columns and label not in prepared.labels:
            raise UserError(
                f"{folder}: label `{label.column}` was prepared with another rule or task; prepare the data again."
            )
    missing = [label.column for label in requested.labels if label not in prepared.labels]
    for name in ("time", "group", "weight"):
        if getattr(requested, name) not in (None, getattr(prepared, name)):
            missing.append(getattr(requested, name))
    missing += [name for name in requested.keep if name not in prepared.keep]
    if missing:
        raise UserError(f"{folder}: column `{missing[0]}` is not in it; prepare the data again.")
    marks = prepared if requested.decimal is None else requested
    return replace(
        requested,
        features=tuple(features),
        forms=requested.forms or prepared.forms,
        decimal=marks.decimal,
        thousands=marks.thousands,
    )


def _with_learned(requested: Feature, prepared: Feature) -> Feature:
    """The requested feature, fitted like the prepared one if necessary."""
    if isinstance(requested, Numeric) and isinstance(prepared, Numeric) and requested.fit is None:
        return replace(requested, fit=prepared.fit)
    if (
        isinstance(requested, Bucketized)
        and isinstance(prepared, Bucketized)
        and isinstance(requested.buckets, int)
    ):
        return replace(requested, buckets=prepared.buckets)
    return requested


def _encoding(feature: Feature) -> Feature:
    """The feature with all settings reset that do not affect the encoding."""
    if isinstance(feature, Numeric | Vector):
        return feature
    if isinstance(feature, Bag):
        return replace(feature, dim=None, pool="mean", separator="|")
    return (
        replace(feature, dim=None, separator="|")
        if isinstance(feature, Sequence)
        else replace(feature, dim=None)
    )


def _column_names(schema: Schema) -> list[str]:
    names = [f"{'vector' if isinstance(f, Vector) else 'numeric'}.{f.name}" for f in schema.numerics]
    names += [f"id.{f.name}" for f in schema.single_fields] + [f"ids.{f.name}" for f in schema.ragged_fields]
    names += [name for name in ("time", "weight", "group") if getattr(schema, name) is not None]
    return names + [f"keep.{name}" for name in schema.keep]


def _to_batch(table: pa.Table, schema: Schema, first: int) -> Batch:
    def column(name: str) -> Any:
        return table.column(name).combine_chunks()

    def optional(name: str) -> Any:
        return np.array(column(name)) if getattr(schema, name) is not None else None

    size = table.num_rows
    labels: Floats = np.full((size, len(schema.labels)), np.nan, np.float32)
    for task, label in enumerate(schema.labels):
        if (name := f"label.{label.task}") in table.column_names:
            labels[:, task] = column(name)
    ids: Ids = np.empty((size, len(schema.single_fields)), np.int64)
    for i, field in enumerate(schema.single_fields):
        ids[:, i] = column(f"id.{field.name}")
    ragged = tuple(_ragged(column(f"ids.{f.name}")) for f in schema.ragged_fields)
    kept = table.select([f"keep.{name}" for name in schema.keep]).rename_columns(list(schema.keep))
    return Batch(
        first,
        labels,
        _numeric(table, schema),
        ids,
        ragged,
        optional("weight"),
        optional("time"),
        optional("group"),
        kept if schema.keep else None,
    )


def _numeric(table: pa.Table, schema: Schema) -> Floats:
    out: Floats = np.empty((table.num_rows, schema.numeric_width), np.float32)
    at = 0
    for feature in schema.numerics:
        if isinstance(feature, Vector):
            values = table.column(f"vector.{feature.name}").combine_chunks().flatten().to_numpy()
            out[:, at : at + feature.size] = values.reshape(-1, feature.size)
            at += feature.size
        else:
            out[:, at] = table.column(f"numeric.{feature.name}").combine_chunks()
            at += 1
    return out


def _ragged(column: pa.Array) -> Ragged:
    offsets = column.offsets.to_numpy().astype(np.int64)
    return Ragged(column.flatten().to_numpy(), offsets - offsets[0])
