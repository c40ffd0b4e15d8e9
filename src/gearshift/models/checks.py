"""What a model needs of a schema, said before the first batch: each function passes or raises `UserError`."""

from __future__ import annotations

from gearshift.data.schema import Schema
from gearshift.errors import UserError
from gearshift.models.inputs import input_fields, row_width


def some_feature(model: str, schema: Schema) -> None:
    if not schema.features:
        raise UserError(
            f"model {model} has nothing to learn from: the schema has no feature. Add some under `features`"
        )


def some_field(model: str, schema: Schema) -> None:
    if not schema.fields:
        raise UserError(
            f"model {model} needs at least one categorical, bucketized, bag or sequence feature; the "
            "schema has only numeric ones. Bucketize one (transform: {bucketize: 20}), or use model lr or dnn"
        )


def one_width(model: str, schema: Schema, dim: int, *, sequences: bool = False) -> None:
    """For models that multiply rows of different fields with one another."""
    for feature in input_fields(schema, sequences=sequences):
        width = row_width(schema, feature, dim)
        if width != dim:
            raise UserError(
                f"model {model} needs rows of one width: feature `{feature.name}` has dim {width}, the model "
                f"{dim}. Drop the feature's dim, or use model dnn, wide_deep, dcn or dcnv2"
            )
