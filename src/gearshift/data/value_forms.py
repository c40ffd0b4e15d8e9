"""The spelling of a column's values: the record that a model keeps of its training data.

A category is the hash of its text. The text "7", the integer 7 and the float 7.0 are one category, but "007", "7.0"
and "True" differ from 7 and true. A model therefore records the `Form` of each column, and `skew.py` compares it with
later data.

A *spelling* is a class of texts: "padded:3" (007), "integer:2" (17), "whole" (7.0), "true", "True", "TRUE", or a time
with its shape, "time:9999-99-99". Other text has no spelling, because new words are normal.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gearshift.data import columns as raw
from gearshift.data.columns import RawColumn, TextColumn
from gearshift.data.examples import Examples, FilteredExamples, HeadExamples, RawExamples
from gearshift.data.infer.profile import split_parts
from gearshift.data.readers.bad_lines import BadLines
from gearshift.data.schema import Bag, Categorical, Feature, Form, Schema, Sequence, Vector

SAMPLE_EXAMPLES = 10_000
FEW_VALUES = 100  # fewer values are faster to count one by one
TEXT = "text"

_LIKELY = r"^([+-]?[0-9]+(\.0*)?|[0-9]{4}-[0-9]{2}-[0-9]{2}.*|true|True|TRUE|false|False|FALSE)$"  # may have a spelling
_PADDED = re.compile(r"[+-]?0[0-9]+")
_INTEGER = re.compile(r"-?[0-9]+")
_WHOLE = re.compile(r"-?[0-9]+\.0*")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9:.]+(Z|[+-][0-9:]+)?)?")
_BOOLEANS = {
    "true": "true",
    "false": "true",
    "True": "True",
    "False": "True",
    "TRUE": "TRUE",
    "FALSE": "TRUE",
}
_DIGIT = re.compile("[0-9]")


def raw_examples(examples: Examples) -> RawExamples | None:
    """The raw source of a data set; None if its values are already encoded."""
    while isinstance(examples, HeadExamples | FilteredExamples):
        examples = examples.inner
    return examples if isinstance(examples, RawExamples) else None


def marked(schema: Schema, examples: Examples) -> Schema:
    """The schema with the decimal and thousands marks of this data, so that other data is read with the same marks."""
    raw = raw_examples(examples)
    marks = None if raw is None else getattr(raw.source, "marks", None)
    return schema if marks is None else replace(schema, decimal=marks[0], thousands=marks[1])


def observed_forms(examples: Examples) -> tuple[Form, ...]:
    """The forms in the first examples. Prepared data has recorded them already."""
    source = raw_examples(examples)
    return examples.schema.forms if source is None else forms_of(source, observable(source))


def observable(source: RawExamples) -> list[Feature]:
    """The features that have a form and whose column is present."""
    return [f for f in source.schema.features if f.name not in source.absent and not isinstance(f, Vector)]


def forms_of(source: RawExamples, features: list[Feature]) -> tuple[Form, ...]:
    """The forms of these features in the first examples."""
    columns = _sample(source, tuple(f.name for f in features))
    return tuple(_form(feature, columns[feature.name]) for feature in features if columns)


def _sample(examples: RawExamples, names: tuple[str, ...]) -> dict[str, list[RawColumn]]:
    """The first examples, in pieces."""
    columns: dict[str, list[RawColumn]] = {}
    left = SAMPLE_EXAMPLES
    for block, _ in examples.source.blocks(names, BadLines(allowed=1_000_000)) if names else ():
        for name in names:
            part = raw.slice_column(block.columns[name], 0, min(left, block.size))
            columns.setdefault(name, []).append(part)
        left -= block.size
        if left <= 0:
            break
    return columns


def merged(a: Form, b: Form) -> Form:
    """The combined form of two samples of a column."""
    spellings = Counter(dict(a.spellings)) + Counter(dict(b.spellings))
    return Form(a.column, a.kind, a.values + b.values, tuple(sorted(spellings.items())))


def _form(feature: Feature, parts: list[RawColumn]) -> Form:
    kind = TEXT if isinstance(parts[0], TextColumn) else kind_of(parts[0].type)
    if not isinstance(feature, Categorical | Bag | Sequence):
        return Form(feature.name, kind, 0)  # the spelling of numbers does not matter
    counts: Counter[str] = Counter()
    for part in parts:
        counts += _counted(part, None if isinstance(feature, Categorical) else feature.separator)
    spellings: Counter[str] = Counter()
    for text, count in counts.items():
        if (name := spelling(text)) is not None:
            spellings[name] += count
    return Form(feature.name, kind, counts.total(), tuple(sorted(spellings.items())))


def spelling(text: str) -> str | None:
    """
    >>> [spelling(text) for text in ("007", "17", "7.0", "True", "2026-11-01", "nike")]
    ['padded:3', 'integer:2', 'whole', 'True', 'time:9999-99-99', None]
    """
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _PADDED.fullmatch(text):
        return f"padded:{len(text)}"
    if _INTEGER.fullmatch(text):
        return f"integer:{len(text.lstrip('-'))}"
    if _WHOLE.fullmatch(text):
        return "whole"
    return f"time:{_DIGIT.sub('9', text)}" if _TIME.fullmatch(text) else None


def kind_of(kind: pa.DataType) -> str:
    """The kind of the values, as a word; for lists, the kind of their elements."""
    while True:
        if pa.types.is_dictionary(kind) or raw.is_list(kind):
            kind = kind.value_type
        elif isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        else:
            break
    if pa.types.is_integer(kind):
        return "integers"
    if pa.types.is_floating(kind):
        return "floats"
    if pa.types.is_boolean(kind):
        return "booleans"
    return "times" if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else TEXT


def _counted(column: RawColumn, separator: str | None) -> Counter[str]:
    """The hashed texts and their counts. Texts that cannot have a spelling are counted as ""."""
    column = raw.plain(column)
    array = _hashed_text(column)
    if separator is not None and isinstance(column, TextColumn):
        parts: Counter[str] = Counter()
        for text, count in _value_counts(array).items():
            for part in split_parts(text, separator):
                parts[part] += count
        return parts
    if len(array) <= FEW_VALUES:
        return Counter(array.to_pylist())
    counts = _value_counts(array.filter(pc.match_substring_regex(array, _LIKELY)))
    others = len(array) - counts.total()
    return counts + Counter({"": others})


def _value_counts(array: pa.Array) -> Counter[str]:
    table = pc.value_counts(array)
    return Counter(
        dict(zip(table.field("values").to_pylist(), table.field("counts").to_pylist(), strict=True))
    )


def _hashed_text(column: RawColumn) -> pa.Array:
    """The values that are not missing, as the text whose hash is their id."""
    array = raw.as_arrow(column)
    array = array.drop_null() if array.null_count else array
    if raw.is_list(array.type):
        return _hashed_text(raw.plain(array.flatten()))
    if pa.types.is_nested(array.type):
        return pa.array([], pa.large_string())  # refused when it is read
    if pa.types.is_floating(array.type):
        array = _float_text(array.to_numpy(zero_copy_only=False))
    text = array.cast(pa.large_string())
    return text.filter(pc.not_equal(text, ""))


def _float_text(values: NDArray[Any]) -> pa.Array:
    """Whole numbers without a point; other numbers only need to be counted."""
    known = values[~np.isnan(values)].astype(np.float64)
    whole = (known == np.trunc(known)) & (np.abs(known) < 9.2e18)
    text = pa.array(known[whole].astype(np.int64)).cast(pa.large_string())
    return pa.concat_arrays([text, pa.array(["fraction"] * int((~whole).sum()), pa.large_string())])
