"""What the columns of a click log mean: features, label, time, group, weight.

A schema is a frozen value. It knows no file, no store and no model; it is written into every run and
every saved model, so that the same raw columns give the same inputs for ever.

A *field* is a feature that owns embedding rows: categorical, bucketized, bag or sequence. A field's rows
live in its *table*, its own name unless it shares another's (`share_embedding`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from gearshift.data.label_rule import Missing, Positive, parse_positive
from gearshift.errors import UserError, unknown_name


@dataclass(frozen=True)
class NumericFit:
    """What `mean` and `standardize` learned from the first training examples, after `log1p`."""

    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True)
class Numeric:
    """A quantity. `transform` first, then missing values are filled; log1p keeps the sign of a negative."""

    name: str
    transform: Literal["none", "log1p", "standardize"] = "none"
    missing: Literal["mean", "zero"] | float = "zero"
    fit: NumericFit | None = None


@dataclass(frozen=True)
class Bucketized:
    """A quantity cut into buckets; each bucket is a category. `buckets` is a count until it is fitted."""

    name: str
    buckets: int | tuple[float, ...] = 20
    dim: int | None = None


@dataclass(frozen=True)
class Categorical:
    """One value per example."""

    name: str
    dim: int | None = None
    share_embedding: str | None = None


@dataclass(frozen=True)
class Bag:
    """Several values per example, order without meaning; their rows are pooled into one.

    Joined by `separator` in text, also as a printed list (`[1, 2]`, separator ","); or a Parquet list.
    """

    name: str
    separator: str = "|"
    pool: Literal["mean", "sum"] = "mean"
    max_len: int = 50
    dim: int | None = None
    share_embedding: str | None = None


@dataclass(frozen=True)
class Sequence:
    """Several values per example in order, oldest first; `keep` says which end survives `max_len`."""

    name: str
    separator: str = "|"
    max_len: int = 50
    keep: Literal["first", "last"] = "last"
    dim: int | None = None
    share_embedding: str | None = None


@dataclass(frozen=True)
class Vector:
    """A fixed number of floats per example (a Parquet list<float>, or text joined by `separator`)."""

    name: str
    size: int
    separator: str = "|"


Feature = Numeric | Bucketized | Categorical | Bag | Sequence | Vector
SingleField = Categorical | Bucketized
RaggedField = Bag | Sequence
Field = Categorical | Bucketized | Bag | Sequence


@dataclass(frozen=True)
class Label:
    """One task: the column, which of its values mean a click where they are not 0/1, and what no value means.

    >>> Label("answer", positive="yes"), Label("event", positive=("click", "buy"))  # doctest: +ELLIPSIS
    (Label(column='answer', positive='yes', ...), Label(column='event', positive=('click', 'buy'), ...))
    >>> Label("clicks", positive="> 0").positive, Label("rating", positive=">= 4").positive
    ('> 0', '>= 4')
    """

    column: str
    positive: Positive = None
    task: str = "click"
    missing: Missing = "fail"  # "no_click": an example without a label was not clicked, as after a LEFT JOIN

    def __post_init__(self) -> None:
        if self.missing not in get_args(Missing):
            raise unknown_name(f"label `{self.column}`: missing", self.missing, get_args(Missing))
        try:
            object.__setattr__(self, "positive", parse_positive(self.positive))
        except ValueError as error:
            raise UserError(f"label `{self.column}`: positive is {self.positive!r}; {error}") from None


@dataclass(frozen=True)
class Form:
    """How the values of a column were written in the training data, as far as a sample shows (`value_forms.py`)."""

    column: str
    kind: str  # text, integers, floats, booleans, times, ...
    values: int  # looked at; missing ones do not count
    spellings: tuple[tuple[str, int], ...] = ()  # how many of them were written so: ("padded:3", 312)


@dataclass(frozen=True)
class Schema:
    """What the columns of a log mean. `gs.infer_schema` guesses one, `Schema.load` reads it from a config."""

    features: tuple[Feature, ...]
    labels: tuple[Label, ...] = field(default=(Label("label"),))
    time: str | None = None  # epoch seconds to nanoseconds, ISO text, yyyymmdd or yymmddHH (Avazu)
    group: str | None = None  # grouped AUC
    weight: str | None = None
    negatives_kept: float = 1.0
    keep: tuple[str, ...] = ()  # columns copied through by `predict`
    null: tuple[str, ...] = ("",)  # what a text file writes for a missing value
    forms: tuple[Form, ...] = ()  # of the columns of the training data, once a model is trained
    decimal: str | None = None  # the decimal mark of the training data, if they are delimited text
    thousands: str | None = None  # the mark between their thousands, "" for none

    @property
    def numerics(self) -> tuple[Numeric | Vector, ...]:
        """Features that are numbers: the columns of `Batch.numeric_BN`, in order."""
        return tuple(f for f in self.features if isinstance(f, Numeric | Vector))

    @property
    def numeric_width(self) -> int:
        """How many numbers an example has; a vector counts with its size."""
        return sum(f.size if isinstance(f, Vector) else 1 for f in self.numerics)

    @property
    def fields(self) -> tuple[Field, ...]:
        """Features that own embedding rows, in order."""
        return tuple(f for f in self.features if not isinstance(f, Numeric | Vector))

    @property
    def single_fields(self) -> tuple[SingleField, ...]:
        """Fields with exactly one id per example: the columns of `Batch.ids_BF`, in order."""
        return tuple(f for f in self.features if isinstance(f, Categorical | Bucketized))

    @property
    def ragged_fields(self) -> tuple[RaggedField, ...]:
        """Fields with any number of ids per example: the entries of `Batch.ragged`, in order."""
        return tuple(f for f in self.features if isinstance(f, Bag | Sequence))

    def has_ids_of(self, column: str) -> bool:
        """Whether every batch has the ids of this column's values, as group or as a field of its own table."""
        own = (f.name for f in self.features if isinstance(f, Categorical) and self.table(f) == f.name)
        return column == self.group or column in own

    def table(self, feature: Field) -> str:
        """The name that is hashed together with a value into an id."""
        shared = None if isinstance(feature, Bucketized) else feature.share_embedding
        return shared or feature.name

    def row_width(self, feature: Field, dim: int) -> int:
        """How wide its rows are: its own `dim` or the model's; all rows of a shared table as its owner's."""
        owner = next((f for f in self.fields if f.name == self.table(feature)), feature)
        return owner.dim or dim

    @staticmethod
    def load(path: str | Path) -> Schema:
        """The schema that a config file describes."""
        from gearshift.config import load_schema

        return load_schema(path)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same schema back."""
        plain = asdict(self)
        plain["features"] = [{"type": TYPE_NAMES[type(f)], **asdict(f)} for f in self.features]
        return plain

    @staticmethod
    def from_dict(plain: dict[str, Any]) -> Schema:
        """The schema that `to_dict` wrote."""
        known = dict(plain)
        known["features"] = tuple(_feature_from_dict(f) for f in plain["features"])
        known["labels"] = tuple(Label(**label) for label in plain["labels"])
        known["keep"] = tuple(plain["keep"])
        known["null"] = tuple(plain.get("null", ("",)))  # not in what older versions wrote
        known["forms"] = tuple(_form_from_dict(form) for form in plain.get("forms", ()))  # nor this
        return Schema(**known)


TYPE_NAMES: dict[type, str] = {
    Numeric: "numeric",
    Bucketized: "bucketized",
    Categorical: "categorical",
    Bag: "bag",
    Sequence: "sequence",
    Vector: "vector",
}


def _form_from_dict(plain: dict[str, Any]) -> Form:
    return Form(**{**plain, "spellings": tuple((name, count) for name, count in plain["spellings"])})


def _feature_from_dict(plain: dict[str, Any]) -> Feature:
    values = dict(plain)
    name = values.pop("type")
    kind = next(kind for kind, known in TYPE_NAMES.items() if known == name)
    if values.get("fit") is not None:
        values["fit"] = NumericFit(**values["fit"])
    if isinstance(values.get("buckets"), list | tuple):
        values["buckets"] = tuple(values["buckets"])
    feature: Feature = kind(**values)
    return feature
