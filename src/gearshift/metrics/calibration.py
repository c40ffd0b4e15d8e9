"""Calibration table: predicted and observed click rate for each tenth of the examples, ordered by prediction.

An overall ratio of 1 can hide predictions that are too low at one end and too high at the other; the rows show this.
Examples with equal predictions stay in one row, so few distinct predictions give few rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike

from gearshift.metrics.shared_arithmetic import Doubles, columns, ratio, run_starts, sum_runs

ROWS = 10


@dataclass(frozen=True)
class CalibrationRow:
    """About a tenth of the examples. The means are weighted if the examples have weights."""

    predicted: float  # mean prediction
    observed: float  # share of clicks
    observed_se: float  # its standard error
    count: float  # number of examples, or the sum of their weights
    low: float  # the smallest prediction
    high: float  # the largest

    @property
    def ratio(self) -> float:
        """Predicted divided by observed rate: above 1, the predictions are too high."""
        return ratio(self.predicted, self.observed)

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


CalibrationTable = tuple[CalibrationRow, ...]


def calibration_table(
    labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None = None
) -> CalibrationTable:
    """The rows from low to high predictions; empty if there are no examples or a prediction is missing.

    >>> for row in calibration_table([0, 0, 1, 1], [0.1, 0.1, 0.1, 0.8]):
    ...     print(f"{row.predicted:.2f} {row.observed:.2f} {row.count:g}")
    0.10 0.33 3
    0.80 1.00 1
    """
    label, probability, weight = columns(labels, probabilities, weights)
    order = np.argsort(probability, kind="stable")
    label, probability, weight = label[order], probability[order], weight[order]
    starts = run_starts(probability)
    clicks, weights_sum, squares = (sum_runs(x, starts) for x in (label * weight, weight, weight * weight))
    return table_of_bins(probability[starts], clicks, weights_sum, squares)


def table_of_bins(
    predictions: Doubles, clicks: Doubles, weights: Doubles, squares: Doubles
) -> CalibrationTable:
    """The table of bins in the order of their prediction. A bin is not split; its middle decides its tenth.

    `squares` has the sums of squared weights.
    """
    filled = weights > 0
    if not filled.all():
        predictions, clicks, weights, squares = (x[filled] for x in (predictions, clicks, weights, squares))
    if not len(weights) or np.isnan(predictions).any():
        return ()
    middle = np.cumsum(weights) - weights / 2
    starts = run_starts(np.floor(middle * (ROWS / weights.sum())))
    ends = np.append(starts[1:], len(weights)) - 1
    count = sum_runs(weights, starts)
    predicted, observed = sum_runs(weights * predictions, starts) / count, sum_runs(clicks, starts) / count
    se = np.sqrt(np.clip(observed * (1.0 - observed), 0.0, None) * sum_runs(squares, starts)) / count
    rows = zip(predicted, observed, se, count, predictions[starts], predictions[ends], strict=True)
    return tuple(CalibrationRow(*map(float, row)) for row in rows)
