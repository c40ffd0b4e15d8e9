"""The `features` list of a config, entry by entry, and what each becomes in a Schema.

Criteo and Avazu logs have a fixed layout, so their features are built in; any other log names its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from gearshift.config.section import FlatSection, Section
from gearshift.data import schema as columns
from gearshift.settings.units import Text


class NumericFeature(FlatSection, of=(columns.NumericColumn,)):
    """A quantity."""

    name: Text = Field(description="The column.")
    type: Literal["numeric"] = Field(description="A quantity.")

    def stated(self) -> columns.NumericColumn:
        return self.value(columns.NumericColumn)

    def column(self) -> columns.Feature:
        return self.stated().feature()


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
        case columns.Numeric() | columns.Bucketized():
            return NumericFeature(type="numeric", **vars(columns.NumericColumn.of(feature)))
        case columns.Categorical():
            return CategoricalFeature(type="categorical", **vars(feature))
        case columns.Bag():
            return BagFeature(type="bag", **vars(feature))
        case columns.Sequence():
            return SequenceFeature(type="sequence", **vars(feature))
        case columns.Vector():
            return VectorFeature(type="vector", **vars(feature))
