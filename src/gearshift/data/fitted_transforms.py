"""Fits a schema before training: means, spreads and bucket bounds.

They are computed once, from the first 200,000 examples of the training data. The fitted schema is saved with the
model, so prediction uses the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gearshift.data.encode import needs_fit
from gearshift.data.schema import Bucketized, Feature, Numeric, NumericFit, Schema

if TYPE_CHECKING:
    from gearshift.data.dataset import Dataset

FIT_EXAMPLES = 200_000


def fit_schema(dataset: Dataset) -> Schema:
    """The schema of the data set with all transforms fitted."""
    open_features = [
        f for f in dataset.schema.features if isinstance(f, Numeric | Bucketized) and needs_fit(f)
    ]
    if not open_features:
        return dataset.schema
    values = _raw_values(dataset, open_features)
    fitted = iter([_fit(f, values[:, i]) for i, f in enumerate(open_features)])
    features = tuple(next(fitted) if needs_fit(f) else f for f in dataset.schema.features)
    return replace(dataset.schema, features=features)


def _raw_values(dataset: Dataset, features: list[Numeric | Bucketized]) -> NDArray[np.float64]:
    """[examples, features], NaN where missing, after log1p."""
    raw = tuple(_plain(f) for f in features)
    sample = dataset.with_schema(replace(dataset.schema, features=raw, keep=())).head(FIT_EXAMPLES)
    blocks = [block.numeric_BN for block in sample.examples.blocks(0)]
    return np.concatenate(blocks).astype(np.float64) if blocks else np.empty((0, len(features)))


def plain_schema(schema: Schema) -> Schema:
    """The same columns with unfitted features read as plain numbers: sufficient to count and check lines."""
    plain = (
        _plain(f) if isinstance(f, Numeric | Bucketized) and needs_fit(f) else f for f in schema.features
    )
    return replace(schema, features=tuple(plain))


def _plain(feature: Numeric | Bucketized) -> Numeric:
    is_log = isinstance(feature, Numeric) and feature.transform == "log1p"
    return Numeric(feature.name, "log1p" if is_log else "none", missing=math.nan)


def _fit(feature: Numeric | Bucketized, values: NDArray[np.float64]) -> Feature:
    known = values[~np.isnan(values)]
    if isinstance(feature, Bucketized):
        assert isinstance(feature.buckets, int)
        return replace(feature, buckets=_quantiles(known, feature.buckets))
    if len(known) == 0:
        return replace(feature, fit=NumericFit())
    std = float(known.std())
    return replace(feature, fit=NumericFit(float(known.mean()), std if std > 0 else 1.0))


def _quantiles(values: NDArray[np.float64], buckets: int) -> tuple[float, ...]:
    """Bounds that give buckets of about equal size; fewer buckets if values repeat."""
    if len(values) == 0:
        return ()
    shares = np.arange(1, buckets) / buckets
    bounds = np.unique(np.quantile(values, shares, method="higher"))
    return tuple(float(b) for b in bounds if b > values.min())
