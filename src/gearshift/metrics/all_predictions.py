"""Metrics that need all predictions to be exact: AUC, its error, the calibration table; from a single sort.

Predictions are float32, as models return them. If labels are 0 or 1 and there are no weights, a prediction and its
label are sorted as one 32-bit number: floats from 0 to 1 have the same order as their bits, and two bits are unused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gearshift.metrics.calibration import CalibrationTable, table_of_bins
from gearshift.metrics.shared_arithmetic import (
    Doubles,
    auc_of_bins,
    auc_se_of_bins,
    is_hard,
    run_starts,
    sum_runs,
)

Singles = NDArray[np.float32]


@dataclass(frozen=True)
class Exact:
    auc: float
    auc_se: float
    calibration_table: CalibrationTable


@dataclass(frozen=True)
class _Ties:
    """Groups of examples with equal predictions, in ascending order: sums of weights and of squared weights."""

    predictions: Doubles
    clicks: Doubles
    others: Doubles
    clicks_squared: Doubles
    others_squared: Doubles


def exact(labels: Singles, probabilities: Singles, weights: Singles | None = None) -> Exact:
    ties = _counted(labels, probabilities) if weights is None and is_hard(labels) else None
    ties = ties or _weighted(labels, probabilities, weights)
    squares = ties.clicks_squared + ties.others_squared
    return Exact(
        auc_of_bins(ties.clicks, ties.others),
        auc_se_of_bins(ties.clicks, ties.others, ties.clicks_squared, ties.others_squared),
        table_of_bins(ties.predictions, ties.clicks, ties.clicks + ties.others, squares),
    )


def _counted(labels: Singles, probabilities: Singles) -> _Ties | None:
    """None if a prediction is not a probability."""
    if len(labels) and not (probabilities.min() >= 0.0 and probabilities.max() <= 1.0):
        return None
    keys = (np.abs(probabilities).view(np.uint32) << 1) | (labels > 0)  # abs: -0.0 has a sign bit
    keys.sort()
    starts = run_starts(keys >> 1)
    predictions = (keys[starts] >> 1).view(np.float32).astype(np.float64)
    keys &= 1
    clicks = sum_runs(keys, starts).astype(np.float64)
    others = np.diff(starts, append=len(labels)) - clicks
    return _Ties(predictions, clicks, others, clicks, others)


def _weighted(labels: Singles, probabilities: Singles, weights: Singles | None) -> _Ties:
    order = np.argsort(probabilities, kind="stable")
    label, ordered = labels[order].astype(np.float64), probabilities[order]
    weight = np.ones(len(order)) if weights is None else weights[order].astype(np.float64)
    starts = run_starts(ordered)
    return _Ties(
        ordered[starts].astype(np.float64),
        sum_runs(label * weight, starts),
        sum_runs((1.0 - label) * weight, starts),
        sum_runs(label * weight * weight, starts),
        sum_runs((1.0 - label) * weight * weight, starts),
    )
