"""The `features` list of a config, entry by entry, and what each becomes in a Schema.

Criteo and Avazu logs have a fixed layout, so their features are built in; any other log names its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)

from gearshift.config.section import FlatSection, Section
from gearshift.data import schema as columns
from gearshift.settings.units import Count, Text, parse_count, parse_number


def _parse_buckets(value: Any) -> int | tuple[float, ...]:
    if isinstance(value, list | tuple):
        bounds = tuple(parse_number(bound) for bound in value)
        if not bounds or any(a >= b for a, b in pairwise(bounds)):
            raise ValueError("bounds must be ascending, such as [18, 25, 35]")
        return bounds
    if (count := parse_count(value)) < 2:
        raise ValueError("expected at least 2 buckets")
    return count


def _parse_missing(value: Any) -> str | float:
    if value in ("mean", "zero"):
        return str(value)
    try:
        return parse_number(value)
    except ValueError:
        raise ValueError("expected mean, zero or a number") from None


@dataclass(frozen=True)
class Bucketize:
    """A number of equally filled buckets, or their ascending bounds."""

    buckets: int | tuple[float, ...]


def _parse_transform(value: Any) -> str | Bucketize:
    if isinstance(value, Bucketize) or value in ("none", "log1p", "standardize"):
        return value  # type: ignore[no-any-return]
    if isinstance(value, dict) and set(value) == {"bucketize"}:
        return Bucketize(_parse_buckets(value["bucketize"]))
    raise ValueError("expected none, log1p, standardize, {bucketize: 20} or {bucketize: [18, 25, 35]}")


def _write_transform(value: str | Bucketize) -> str | dict[str, Any]:
    return {"bucketize": value.buckets} if isinstance(value, Bucketize) else value


_NUMBERS = {"type": "array", "items": {"type": "number"}}
_TRANSFORMS: list[dict[str, Any]] = [
    {"enum": ["none", "log1p", "standardize"]},
    {"type": "object", "properties": {"bucketize": {"anyOf": [{"type": "integer", "minimum": 2}, _NUMBERS]}}},
]
Transform = Annotated[
    str | Bucketize,
    PlainValidator(_parse_transform),
    PlainSerializer(_write_transform),
    WithJsonSchema({"anyOf": _TRANSFORMS}),
]
_MISSING = WithJsonSchema({"anyOf": [{"enum": ["mean", "zero"]}, {"type": "number"}]})
Missing = Annotated[str | float, BeforeValidator(_parse_missing), _MISSING]
Dim = Annotated[Count, Field(ge=1)]


class NumericFeature(Section):
    """A quantity."""

    name: Text = Field(description="The column.")
    type: Literal["numeric"] = Field(description="A quantity.")
    transform: Transform = Field(
        default="none",
        description="none, log1p, standardize (mean 0, deviation 1), or {bucketize: 20}: a category.",
    )
    missing: Missing | None = Field(
        default=None, description="What a missing value becomes: mean, zero or a number; zero if not set."
    )
    dim: Dim | None = Field(
        default=None, description="Width of a bucket's embedding; the model's if not set."
    )

    def column(self) -> columns.Feature:
        if isinstance(self.transform, Bucketize):
            return columns.Bucketized(self.name, self.transform.buckets, self.dim)
        missing = "zero" if self.missing is None else self.missing
        return columns.Numeric(self.name, self.transform, missing)  # type: ignore[arg-type]


class CategoricalFeature(FlatSection, of=(columns.Categorical,)):
    """One value per example, such as an id, a country or a code."""

    name: Text = Field(description="The column.")
    type: Literal["categorical"] = Field(description="One value per example.")

    def column(self) -> columns.Categorical:
        return self.value(columns.Categorical)


class BagFeature(FlatSection, of=(columns.Bag,)):
    """Several unordered values per example, such as tags."""

    name: Text = Field(description="The column.")
    type: Literal["bag"] = Field(description="Several values per example, in no particular order.")

    def column(self) -> columns.Bag:
        return self.value(columns.Bag)


class SequenceFeature(FlatSection, of=(columns.Sequence,)):
    """Several values per example in order, oldest first, such as the last items seen."""

    name: Text = Field(description="The column.")
    type: Literal["sequence"] = Field(description="Several values per example in order, oldest first.")

    def column(self) -> columns.Sequence:
        return self.value(columns.Sequence)


class VectorFeature(FlatSection, of=(columns.Vector,)):
    """A fixed number of floats per example, such as a text embedding."""

    name: Text = Field(description="The column: a Parquet list, or text.")
    type: Literal["vector"] = Field(description="A fixed number of floats per example.")

    def column(self) -> columns.Vector:
        return self.value(columns.Vector)


FieldEntry = CategoricalFeature | BagFeature | SequenceFeature
FeatureEntry = Annotated[
    NumericFeature | CategoricalFeature | BagFeature | SequenceFeature | VectorFeature,
    Field(discriminator="type"),
]
ENTRY_TYPES: Mapping[str, type[Section]] = {
    "numeric": NumericFeature,
    "categorical": CategoricalFeature,
    "bag": BagFeature,
    "sequence": SequenceFeature,
    "vector": VectorFeature,
}


def entry_of(feature: columns.Feature) -> FeatureEntry:
    """The entry that defines this feature: the inverse conversion, for generated configs."""
    match feature:
        case columns.Numeric(name, transform, missing):
            given = None if missing == "zero" else missing
            return NumericFeature(type="numeric", name=name, transform=transform, missing=given)
        case columns.Bucketized(name, buckets, dim):
            return NumericFeature(type="numeric", name=name, transform=Bucketize(buckets), dim=dim)
        case columns.Categorical():
            return CategoricalFeature(type="categorical", **vars(feature))
        case columns.Bag():
            return BagFeature(type="bag", **vars(feature))
        case columns.Sequence():
            return SequenceFeature(type="sequence", **vars(feature))
        case columns.Vector():
            return VectorFeature(type="vector", **vars(feature))
