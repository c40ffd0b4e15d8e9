"""Encodes raw columns as a batch according to the schema. Transforms are applied only here.

Training, `prepare`, evaluation and serving all use this module, so the same raw values always give the same inputs.
An example with an unreadable value is reported with its location. If it may be skipped, the batch has one example
less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gearshift import _core
from gearshift.data import columns as raw
from gearshift.data.batch import Batch, Floats, Ids, Ragged
from gearshift.data.columns import RawColumn
from gearshift.data.label_advice import label_advice
from gearshift.data.label_rule import threshold_of
from gearshift.data.readers.bad_lines import ALLOW_SOME, BadLines, SourcePlace
from gearshift.data.readers.nested import check_nesting
from gearshift.data.readers.number_marks import MARKS, is_grouped
from gearshift.data.readers.sniff import is_number
from gearshift.data.schema import Bucketized, Label, Numeric, RaggedField, Schema, Sequence, Vector
from gearshift.errors import MissingColumns, UserError, nearest_name

TILE = 4096  # examples converted at a time; their text stays in the cache for the next column
LABELS_SHOWN = 1000  # number of examples whose labels are quoted in advice


@dataclass(frozen=True)
class RawBlock:
    """Consecutive raw examples; `place` returns the origin of an example of the block."""

    size: int
    columns: Mapping[str, RawColumn]
    place: Callable[[int], SourcePlace]


class Encoder:
    """Turns raw blocks into batches. With `labelled=False`, for prediction, labels are not read and are NaN."""

    def __init__(self, schema: Schema, bad_lines: BadLines, *, labelled: bool = True) -> None:
        unfitted = [f.name for f in schema.features if needs_fit(f)]
        if unfitted:
            raise UserError(
                f"{', '.join(f'`{name}`' for name in unfitted)}: means, spreads or buckets must be learned from the "
                "training data first: train = gs.read(...).fitted(); then for other data: valid.fitted(train)"
            )
        self.schema = schema
        self.bad_lines = bad_lines
        self.labelled = labelled
        self._seeds = {f.name: _core.table_seed(schema.table(f)) for f in schema.fields}

    def encode(self, block: RawBlock, first: int = 0) -> Batch:
        return self.encode_some(block, first)[0]

    def encode_some(self, block: RawBlock, first: int = 0) -> tuple[Batch, NDArray[np.int64] | None]:
        """(batch, positions in the block of its examples, or None if it has all of them)."""
        check_nesting(self.schema, block.columns, labelled=self.labelled)
        schema, refused = self.schema, _Refused(block, self.bad_lines)
        batch = Batch(
            first,
            self._labels(block, refused),
            self._numeric(block, refused),
            self._ids(block, refused),
            tuple(self._ragged(f, block) for f in schema.ragged_fields),
            None if schema.weight is None else self._weights(schema.weight, block, refused),
            None if schema.time is None else self._times(schema.time, block, refused),
            None if schema.group is None else self._group(schema.group, block),
            self._kept(block),
        )
        good = refused.survivors()
        return (batch if good is None else batch.take(good)), good

    def _labels(self, block: RawBlock, refused: _Refused) -> Floats:
        out = np.full((block.size, len(self.schema.labels)), np.nan, np.float32)
        for task, label in enumerate(self.schema.labels if self.labelled else ()):
            column = block.columns[label.column]
            out[:, task] = raw.labels(column, label.positive, refused.label(label), label.missing)
        return out

    def _numeric(self, block: RawBlock, refused: _Refused) -> Floats:
        out_BN = np.empty((block.size, self.schema.numeric_width), np.float32)
        for start in range(0, block.size, TILE):
            stop, at = min(start + TILE, block.size), 0
            for feature in self.schema.numerics:
                column = raw.slice_column(block.columns[feature.name], start, stop)
                width = feature.size if isinstance(feature, Vector) else 1
                out = out_BN[start:stop, at : at + width]
                refuse = refused.feature(feature, start)
                if isinstance(feature, Vector):
                    raw.write_vectors(column, feature.separator, out, refuse)
                    out[np.isnan(out)] = 0.0
                else:
                    out[:, 0] = transformed(feature, raw.floats(column, refuse))
                at += width
        self._refuse_overflow(block, out_BN, refused)
        return out_BN

    def _refuse_overflow(self, block: RawBlock, numeric_BN: Floats, refused: _Refused) -> None:
        """Refuse numbers that are finite but too large for float32."""
        if not np.isinf(numeric_BN).any():
            return
        widths = [f.size if isinstance(f, Vector) else 1 for f in self.schema.numerics]
        owner_N = np.repeat(np.arange(len(widths)), widths)
        for example, column in np.argwhere(np.isinf(numeric_BN)):
            feature = self.schema.numerics[owner_N[column]]
            refuse = refused.feature(feature, 0)
            refuse(int(example), raw.value_text(block.columns[feature.name], int(example)))

    def _ids(self, block: RawBlock, refused: _Refused) -> Ids:
        fields = self.schema.single_fields
        out_BF = np.empty((block.size, len(fields)), np.int64)
        for start in range(0, block.size, TILE):
            stop = min(start + TILE, block.size)
            for at, field in enumerate(fields):
                column = raw.slice_column(block.columns[field.name], start, stop)
                out = out_BF[start:stop, at]
                if isinstance(field, Bucketized):
                    values = raw.floats(column, refused.feature(field, start))
                    raw.write_ids(bucket_indices(field, values), self._seeds[field.name], out)
                else:
                    raw.write_ids(column, self._seeds[field.name], out)
        return out_BF

    def _ragged(self, field: RaggedField, block: RawBlock) -> Ragged:
        keep_last = isinstance(field, Sequence) and field.keep == "last"
        column = block.columns[field.name]
        return raw.ragged_ids(column, field.separator, field.max_len, keep_last, self._seeds[field.name])

    def _weights(self, name: str, block: RawBlock, refused: _Refused) -> Floats:
        refuse = refused.value(f"weight `{name}`", "a number of 0 or more")
        values = raw.floats(block.columns[name], refuse)
        for i in np.flatnonzero(~(values >= 0)):
            refuse(int(i), str(values[i]))
        return values.astype(np.float32)

    def _times(self, name: str, block: RawBlock, refused: _Refused) -> NDArray[np.int64]:
        refuse = refused.value(f"time `{name}`", "epoch seconds or an ISO date")
        return raw.times(block.columns[name], refuse)

    def _group(self, name: str, block: RawBlock) -> Ids:
        out = np.empty(block.size, np.int64)
        raw.write_ids(block.columns[name], _core.table_seed(name), out)
        return out

    def _kept(self, block: RawBlock) -> pa.Table | None:
        if not self.schema.keep:
            return None
        return pa.table({name: raw.as_arrow(block.columns[name]) for name in self.schema.keep})


class _Refused:
    """The examples of one block with a bad value, and the messages about them."""

    def __init__(self, block: RawBlock, bad_lines: BadLines) -> None:
        self._block = block
        self._bad_lines = bad_lines
        self._indices: set[int] = set()

    def survivors(self) -> NDArray[np.int64] | None:
        """The remaining examples; None if no example was refused."""
        if not self._indices:
            return None
        return np.setdiff1d(np.arange(self._block.size), np.fromiter(self._indices, np.int64))

    def value(
        self,
        what: str,
        expected: str,
        advice: Callable[[str], str] = lambda _text: ALLOW_SOME,
        start: int = 0,
    ) -> raw.Refuse:
        """A callback that refuses a value. `advice` is called with the text of the value, if needed."""

        def refuse(i: int, text: str) -> None:
            self._indices.add(start + i)
            value = f"is {text!r}" if text else "is missing"
            reason = f"{what} {value}; expected {expected}"
            self._bad_lines.refuse(self._block.place(start + i), reason, lambda: advice(text))

        return refuse

    def feature(self, feature: Numeric | Bucketized | Vector, start: int) -> raw.Refuse:
        expected = f"{feature.size} finite numbers" if isinstance(feature, Vector) else "a finite number"
        column = self._block.columns[feature.name]

        def advice(text: str) -> str:
            """Number marks can be set only for delimited text, and only matter for single numbers."""
            if isinstance(feature, Vector) or not isinstance(column, raw.TextColumn) or column.json:
                return ALLOW_SOME
            return _number_advice(text, column.decimal)

        return self.value(f"feature `{feature.name}`", expected, advice, start)

    def label(self, label: Label) -> raw.Refuse:
        threshold = threshold_of(label.positive)
        expected = "0 or 1" if threshold is None else f"a number for `positive: {label.positive}`"
        if threshold is None and label.positive is not None:
            expected = "a value"

        column = self._block.columns[label.column]

        def advice(text: str) -> str:
            return label_advice(label, text, _label_values(column), _some_labels_read(column, label))

        return self.value(f"label `{label.column}`", expected, advice)


def _number_advice(text: str, decimal: str) -> str:
    """Advice for a number whose marks differ from the current settings."""
    other = MARKS.replace(decimal, "")
    grouped = is_grouped(text)
    if grouped:
        how = f"If {grouped!r} separates thousands, set data.csv={{thousands: {grouped!r}}}. "
    elif other in text and is_number(text):
        how = f"If {other!r} is the decimal mark, set data.csv={{decimal: {other!r}}}. "
    else:
        return ALLOW_SOME
    if grouped == other:
        how += f"If it is the decimal mark, set data.csv={{decimal: {other!r}}}. "
    return f"{how}If not: f{ALLOW_SOME[1:]}"


def _label_values(column: RawColumn) -> list[str]:
    """The distinct labels at the start of a block."""
    start = raw.slice_column(column, 0, min(len(column), LABELS_SHOWN))
    texts = (raw.value_text(start, i).strip() for i in range(len(start)))
    return [text for text in dict.fromkeys(texts) if text and text != "None"]


def _some_labels_read(column: RawColumn, label: Label) -> bool:
    start, foreign = raw.slice_column(column, 0, min(len(column), 100)), []
    raw.labels(start, label.positive, lambda i, _text: foreign.append(i), label.missing)
    return len(foreign) < len(start)


def needs_fit(feature: object) -> bool:
    """Whether the feature has to be fitted before it can be encoded."""
    if isinstance(feature, Numeric):
        return feature.fit is None and (feature.transform == "standardize" or feature.missing == "mean")
    return isinstance(feature, Bucketized) and isinstance(feature.buckets, int)


def transformed(feature: Numeric, values: NDArray[np.float64]) -> Floats:
    """Apply the transform. `log1p` keeps the sign of x, because counts in click logs may be negative."""
    if feature.transform == "log1p":
        values = np.copysign(np.log1p(np.abs(values)), values)
    fill = 0.0
    if feature.missing == "mean":
        assert feature.fit is not None
        fill = feature.fit.mean
    elif feature.missing != "zero":
        fill = float(feature.missing)
    if feature.transform == "standardize":
        assert feature.fit is not None
        values = (values - feature.fit.mean) / feature.fit.std
        fill = 0.0 if feature.missing == "mean" else fill
    with np.errstate(over="ignore"):  # infinite results are refused by the encoder
        return np.where(np.isnan(values), fill, values).astype(np.float32)


def bucket_indices(field: Bucketized, values: NDArray[np.float64]) -> pa.Array:
    """Bucket i holds bounds[i - 1] <= value < bounds[i]. A missing value has no bucket."""
    assert not isinstance(field.buckets, int)
    index = np.searchsorted(np.asarray(field.buckets, np.float64), values, side="right").astype(np.int64)
    return pa.array(index, mask=np.isnan(values))


def check_columns(schema: Schema, present: tuple[str, ...], where: str, *, labelled: bool = True) -> None:
    """Check that every column of the schema exists."""
    missing = [name for name in wanted_columns(schema, labelled=labelled) if name not in present]
    if not missing:
        return
    near = nearest_name(missing[0], present) if len(missing) == 1 else None
    hint = f"Did you mean `{near}`?" if near else f"It has: {', '.join(present[:40])}."
    names = ", ".join(f"`{name}`" for name in missing)
    features = tuple(f.name for f in schema.features if f.name in missing)
    raise MissingColumns(f"{where} has no column{'s' * (len(missing) > 1)} {names}. {hint}", features)


def wanted_columns(schema: Schema, *, labelled: bool = True) -> tuple[str, ...]:
    """The raw columns that a schema reads, without duplicates."""
    names = [f.name for f in schema.features]
    names += [label.column for label in schema.labels] if labelled else []
    names += [name for name in (schema.time, schema.group, schema.weight) if name is not None]
    return tuple(dict.fromkeys([*names, *schema.keep]))
