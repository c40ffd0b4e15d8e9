"""Checks of a model's requirements on the schema, before the first batch. Each raises `UserError` on failure."""

from __future__ import annotations

from gearshift.data import schema as columns
from gearshift.data.schema import Schema
from gearshift.errors import UserError, unknown_name
from gearshift.models.inputs import input_fields, row_width

Pair = tuple[str, str]  # target field, history sequence


def some_feature(model: str, schema: Schema, dim: int = 1) -> None:
    if not schema.features:
        raise UserError(f"model {model} has nothing to learn from: the schema has no features; add some")
    if not isinstance(dim, int) or dim < 1:
        raise UserError(f"model {model}: dim is the width of an embedding row, 1 or more, not {dim!r}")


def some_rows(model: str, schema: Schema) -> None:
    """For models that multiply rows; all numbers together count as one row."""
    rows = len(schema.fields) + (schema.numeric_width > 0)
    if not schema.fields or rows < 2:
        raise UserError(
            f"model {model} multiplies rows of different fields and the schema has {len(schema.fields)} "
            f"categorical, bucketized, bag or sequence feature(s) and {schema.numeric_width} number(s): "
            "bucketize a number (transform: {bucketize: 20}), or use model lr or dnn"
        )


def one_width(model: str, schema: Schema, dim: int) -> None:
    """For models that multiply rows of different fields with each other."""
    for feature in input_fields(schema):
        width = row_width(schema, feature, dim)
        if width != dim:
            raise UserError(
                f"model {model} needs rows of one width: feature `{feature.name}` has dim {width}, the model "
                f"{dim}. Drop the feature's dim, or use model dnn, wide_deep, dcn or dcnv2"
            )


def histories(
    model: str, schema: Schema, targets: list[str] | None, named: list[str] | None, dim: int
) -> list[Pair]:
    """The pairs of target field and history sequence."""
    sequences = {f.name: f for f in schema.fields if isinstance(f, columns.Sequence)}
    if not sequences:
        raise UserError(f"model {model} needs a feature of type sequence; the schema has none")
    chosen = list(sequences) if named is None else named
    for name in chosen:
        if name not in sequences:
            raise unknown_name(f"history of model {model}:", name, sequences)
    if targets is None:
        targets = [_shared_target(model, schema, sequences[name]) for name in chosen]
    if len(targets) != len(chosen):
        raise UserError(
            f"model {model} has {len(chosen)} histories ({', '.join(chosen)}) and {len(targets)} targets; "
            "name one target for each, in the same order"
        )
    pairs = list(zip(targets, chosen, strict=True))
    for pair in pairs:
        _check_pair(model, schema, pair, dim)
    return pairs


def other_sequences(schema: Schema, pairs: list[Pair]) -> list[str]:
    histories = {history for _, history in pairs}
    return [f.name for f in schema.fields if isinstance(f, columns.Sequence) and f.name not in histories]


def _shared_target(model: str, schema: Schema, sequence: columns.Sequence) -> str:
    if schema.table(sequence) in {f.name for f in input_fields(schema, sequences=True)}:
        return schema.table(sequence)
    raise UserError(
        f"model {model} does not know which field to compare sequence `{sequence.name}` with: set it "
        f"(target: item_id), or set share_embedding for the sequence"
    )


def _check_pair(model: str, schema: Schema, pair: Pair, dim: int) -> None:
    target, history = pair
    fields = {f.name: f for f in schema.fields}
    single = [f.name for f in input_fields(schema, sequences=True)]
    if target not in single:
        raise unknown_name(f"target of model {model}:", target, single)
    widths = [row_width(schema, fields[name], dim) for name in pair]
    if widths[0] != widths[1]:
        raise UserError(
            f"model {model} compares `{history}` (dim {widths[1]}) with `{target}` (dim {widths[0]}): use "
            f"the same dim for both, preferably with share_embedding: {target}"
        )
