"""The meaning of the columns of a click log: features, label, time, group, weight.

A schema is a frozen value. It does not depend on files, stores or models. It is saved with every run and every model,
so the same raw columns always give the same inputs.

A *field* is a feature with embedding rows: categorical, bucketized, bag or sequence. Its rows are in its *table*,
which has the name of the field unless `share_embedding` names the table of another field.

Features, labels and a schema declare the keys of a config that set them (`features`, `data.label`, `data`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from gearshift.data.label_rule import Missing, Rule, parse_positive
from gearshift.data.numeric_units import Bucketize, FilledMissing, Transform
from gearshift.data.row_lifetime import ADMIT, EXPIRE, MIN_COUNT, Expire, check_lifetimes
from gearshift.errors import UserError, unknown_name
from gearshift.settings.declaration import REQUIRED, Meaning, setting
from gearshift.settings.units import Count, Share, Text, Texts

MOST_DIM = 4096  # the widest row of the core: csrc/row_layout.cpp

_COLUMN = Meaning("The column.")
_SEPARATOR = Meaning("The separator between two values.", shortest=1)
_MAX_LEN = Meaning("Values beyond this many are dropped.", at_least=1)
_DIM = Meaning("Width of its embedding; the model's if not set.", at_least=1, at_most=MOST_DIM)
_SHARED = Meaning("Use the embedding of this other feature.")


@dataclass(frozen=True)
class NumericFit:
    """Statistics for `mean` and `standardize`, from the first training examples, after `log1p`."""

    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True)
class Numeric:
    """A number. `transform` is applied first, then missing values are filled. log1p keeps the sign."""

    name: str
    transform: Literal["none", "log1p", "standardize"] = "none"
    missing: Literal["mean", "zero"] | float = "zero"
    fit: NumericFit | None = None


@dataclass(frozen=True)
class Bucketized:
    """A number divided into buckets; each bucket is a category. `buckets` is a count until it is fitted."""

    name: str
    buckets: int | tuple[float, ...] = 20
    dim: int | None = None


@dataclass(frozen=True)
class NumericColumn:
    """A numeric feature as a config states it: a `Numeric`, or a `Bucketized` if it is divided into buckets."""

    name: Text = setting(REQUIRED, _COLUMN)
    transform: Transform = setting(
        "none", "none, log1p, standardize (mean 0, deviation 1), or {bucketize: 20}: a category."
    )
    missing: FilledMissing | None = setting(
        None, "What a missing value becomes: mean, zero or a number; zero if not set."
    )
    dim: Count | None = setting(
        None, "Width of a bucket's embedding; the model's if not set.", at_least=1, at_most=MOST_DIM
    )

    def feature(self) -> Numeric | Bucketized:
        if isinstance(self.transform, Bucketize):
            return Bucketized(self.name, self.transform.buckets, self.dim)
        missing = "zero" if self.missing is None else self.missing
        return Numeric(self.name, self.transform, missing)  # type: ignore[arg-type]

    @staticmethod
    def of(feature: Numeric | Bucketized) -> NumericColumn:
        if isinstance(feature, Bucketized):
            return NumericColumn(feature.name, Bucketize(feature.buckets), dim=feature.dim)
        return NumericColumn(
            feature.name, feature.transform, None if feature.missing == "zero" else feature.missing
        )


@dataclass(frozen=True)
class Categorical:
    """One value per example."""

    name: Text = setting(REQUIRED, _COLUMN)
    dim: Count | None = setting(None, _DIM)
    share_embedding: Text | None = setting(None, _SHARED)
    min_count: Count | None = setting(None, MIN_COUNT)
    admit: Share | None = setting(None, ADMIT)
    expire: Expire | None = setting(None, EXPIRE)


@dataclass(frozen=True)
class Bag:
    """Several values per example without order. Their rows are pooled into one.

    In text, values are joined by `separator`; a printed list works too (`[1, 2]`, separator ","). A Parquet list works
    as well.
    """

    name: Text = setting(REQUIRED, _COLUMN)
    separator: Text = setting("|", _SEPARATOR)
    pool: Literal["mean", "sum"] = setting("mean", "How the embeddings of a bag are combined into one.")
    max_len: Count = setting(50, _MAX_LEN)
    dim: Count | None = setting(None, _DIM)
    share_embedding: Text | None = setting(None, _SHARED)
    min_count: Count | None = setting(None, MIN_COUNT)
    admit: Share | None = setting(None, ADMIT)
    expire: Expire | None = setting(None, EXPIRE)


@dataclass(frozen=True)
class Sequence:
    """Several values per example in order, oldest first. `keep` defines which end survives `max_len`."""

    name: Text = setting(REQUIRED, _COLUMN)
    separator: Text = setting("|", _SEPARATOR)
    max_len: Count = setting(50, _MAX_LEN)
    keep: Literal["first", "last"] = setting("last", "Which end of a longer sequence is kept.")
    dim: Count | None = setting(None, _DIM)
    share_embedding: Text | None = setting(None, _SHARED)
    min_count: Count | None = setting(None, MIN_COUNT)
    admit: Share | None = setting(None, ADMIT)
    expire: Expire | None = setting(None, EXPIRE)


@dataclass(frozen=True)
class Vector:
    """A fixed number of floats per example (a Parquet list<float>, or text joined by `separator`)."""

    name: Text = setting(REQUIRED, "The column: a Parquet list, or text.")
    size: Count = setting(REQUIRED, "The number of floats.", at_least=1)
    separator: Text = setting("|", "The separator between two floats in text.", shortest=1)


Feature = Numeric | Bucketized | Categorical | Bag | Sequence | Vector
SingleField = Categorical | Bucketized
RaggedField = Bag | Sequence
Field = Categorical | Bucketized | Bag | Sequence


@dataclass(frozen=True)
class Label:
    """A task: its column, the values that mean a click if they are not 0/1, and the meaning of a missing value.

    >>> Label("answer", positive="yes"), Label("event", positive=("click", "buy"))  # doctest: +ELLIPSIS
    (Label(column='answer', positive='yes', ...), Label(column='event', positive=('click', 'buy'), ...))
    >>> Label("clicks", positive="> 0").positive, Label("rating", positive=">= 4").positive
    ('> 0', '>= 4')
    """

    column: Text = setting(REQUIRED, "The column with the label.")
    positive: Rule | None = setting(
        None, 'Which values mean a click, if not 1: a value, a list of values, or "> 0", ">= 4".'
    )
    task: Text = setting("click", "The name of this task in reports.")
    missing: Missing = setting(
        "fail",
        "How to treat an example without a label: fail (a bad line), or no_click (as after a LEFT JOIN).",
    )

    def __post_init__(self) -> None:
        if self.missing not in get_args(Missing):
            raise unknown_name(f"label `{self.column}`: missing", self.missing, get_args(Missing))
        try:
            object.__setattr__(self, "positive", parse_positive(self.positive))
        except ValueError as error:
            raise UserError(f"label `{self.column}`: positive is {self.positive!r}; {error}") from None


@dataclass(frozen=True)
class Form:
    """The spelling of a column's values in a sample of the training data (`value_forms.py`)."""

    column: str
    kind: str  # text, integers, floats, booleans, times, ...
    values: int  # number of values in the sample, without missing ones
    spellings: tuple[tuple[str, int], ...] = ()  # number of values per spelling: ("padded:3", 312)


@dataclass(frozen=True)
class Schema:
    """The meaning of a log's columns. `gs.infer_schema` infers a schema, `Schema.load` reads one from a config."""

    features: tuple[Feature, ...]
    labels: tuple[Label, ...] = field(default=(Label("label"),))
    time: Text | None = setting(None, "Epoch seconds or ISO text; used for time splits and metrics by day.")
    group: Text | None = setting(
        None, "The column for the grouped AUC, the mean of the AUCs within its values."
    )
    weight: Text | None = setting(None, "The weight of each example.")
    negatives_kept: Share = setting(
        1.0,
        "Share of the negatives that the log kept, such as 0.1; predictions are corrected for it.",
        above=0,
    )
    keep: Texts = setting((), "Columns that `predict` copies to its output.")
    null: tuple[str, ...] = ("",)  # texts that mean a missing value
    forms: tuple[Form, ...] = ()  # forms of the training data's columns, if a model was trained
    decimal: str | None = None  # decimal mark of the training data, if it is delimited text
    thousands: str | None = None  # thousands separator of the training data, "" for none

    def __post_init__(self) -> None:
        check_lifetimes(self.lifetimes, self.time is not None)

    @property
    def numerics(self) -> tuple[Numeric | Vector, ...]:
        """Numeric features: the columns of `Batch.numeric_BN`, in order."""
        return tuple(f for f in self.features if isinstance(f, Numeric | Vector))

    @property
    def numeric_width(self) -> int:
        """The number of numeric inputs per example; a vector counts with its size."""
        return sum(f.size if isinstance(f, Vector) else 1 for f in self.numerics)

    @property
    def fields(self) -> tuple[Field, ...]:
        """Features with embedding rows, in order."""
        return tuple(f for f in self.features if not isinstance(f, Numeric | Vector))

    @property
    def lifetimes(self) -> tuple[Categorical | Bag | Sequence, ...]:
        """Fields that may set which ids get rows and how long rows live."""
        return tuple(f for f in self.features if isinstance(f, Categorical | Bag | Sequence))

    @property
    def single_fields(self) -> tuple[SingleField, ...]:
        """Fields with exactly one id per example: the columns of `Batch.ids_BF`, in order."""
        return tuple(f for f in self.features if isinstance(f, Categorical | Bucketized))

    @property
    def ragged_fields(self) -> tuple[RaggedField, ...]:
        """Fields with any number of ids per example: the entries of `Batch.ragged`, in order."""
        return tuple(f for f in self.features if isinstance(f, Bag | Sequence))

    def has_ids_of(self, column: str) -> bool:
        """Whether every batch has the ids of this column, as the group or as a field with its own table."""
        unshared = (f.name for f in self.features if isinstance(f, Categorical) and self.table(f) == f.name)
        return column == self.group or column in unshared

    def table(self, feature: Field) -> str:
        """The name that is hashed with a value to give its id."""
        shared = None if isinstance(feature, Bucketized) else feature.share_embedding
        return shared or feature.name

    def users_of(self, table: str) -> list[str]:
        """The names of the features whose rows are in this table."""
        return [feature.name for feature in self.fields if self.table(feature) == table]

    def row_width(self, feature: Field, dim: int) -> int:
        """The width of its rows: `dim` of the feature or of the model. Shared tables have the width of their owner."""
        owner = next((f for f in self.fields if f.name == self.table(feature)), feature)
        return owner.dim or dim

    @staticmethod
    def load(path: str | Path) -> Schema:
        """Read the schema from a config file."""
        from gearshift.config import load_schema

        return load_schema(path)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON. `from_dict` restores the schema."""
        plain = asdict(self)
        plain["features"] = [{"type": TYPE_NAMES[type(f)], **asdict(f)} for f in self.features]
        return plain

    @staticmethod
    def from_dict(plain: dict[str, Any]) -> Schema:
        """Restore a schema from the result of `to_dict`."""
        known = dict(plain)
        known["features"] = tuple(_feature_from_dict(f) for f in plain["features"])
        known["labels"] = tuple(Label(**label) for label in plain["labels"])
        known["keep"] = tuple(plain["keep"])
        known["null"] = tuple(plain.get("null", ("",)))  # absent in files of older versions
        known["forms"] = tuple(_form_from_dict(form) for form in plain.get("forms", ()))  # absent too
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
    if values.get("expire") is not None:
        values["expire"] = Expire(**values["expire"])
    if isinstance(values.get("buckets"), list | tuple):
        values["buckets"] = tuple(values["buckets"])
    feature: Feature = kind(**values)
    return feature
