"""Arithmetic shared by the exact and streaming measures: checked columns, logarithms, AUC and error of ordered bins."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Doubles = NDArray[np.float64]

CLIP = 1e-7  # probabilities are clipped to [CLIP, 1 - CLIP], the resolution of float32 near 1


def columns(
    labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None
) -> tuple[Doubles, Doubles, Doubles]:
    label = np.asarray(labels, np.float64).ravel()
    score = np.asarray(scores, np.float64).ravel()
    weight = np.ones(len(label)) if weights is None else np.asarray(weights, np.float64).ravel()
    if not len(label) == len(score) == len(weight):
        raise ValueError(
            f"{len(label)} labels, {len(score)} scores and {len(weight)} weights; there must be one of each per example"
        )
    if weights is not None and not (weight >= 0).all():
        raise ValueError("weights must not be negative or nan")
    return label, score, weight


def logs(probability: Doubles) -> tuple[Doubles, Doubles]:
    """log p and log(1 - p)."""
    p = np.clip(probability, CLIP, 1.0 - CLIP)
    return np.log(p), np.log(1.0 - p)


def ratio(top: float, bottom: float) -> float:
    return float(top / bottom) if bottom > 0 else math.nan


def auc_of_bins(clicks: Doubles, others: Doubles) -> float:
    """AUC of bins in the order of the score. Examples of the same bin are ties."""
    pairs = clicks.sum() * others.sum()
    if not pairs > 0:
        return math.nan
    return float((clicks * (np.cumsum(others) - others / 2)).sum() / pairs)


def auc_se_of_bins(
    clicks: Doubles, others: Doubles, clicks_squared: Doubles, others_squared: Doubles
) -> float:
    """DeLong's standard error of the same AUC; `_squared` has the sums of squared weights."""
    total_clicks, total_others = clicks.sum(), others.sum()
    if not (total_clicks > 0 and total_others > 0):
        return math.nan
    won = (np.cumsum(others) - others / 2) / total_others  # share of non-clicks below a click of this bin
    lost = (
        1.0 - (np.cumsum(clicks) - clicks / 2) / total_clicks
    )  # share of clicks above a non-click of this bin
    value = (won * clicks).sum() / total_clicks
    of_clicks = (clicks_squared * (won - value) ** 2).sum() / total_clicks**2
    of_others = (others_squared * (lost - value) ** 2).sum() / total_others**2
    return math.sqrt(of_clicks + of_others)


def run_starts(ordered: NDArray[Any]) -> NDArray[np.int64]:
    """The start of each run of equal values."""
    changes = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return np.concatenate([np.zeros(min(1, len(ordered)), np.int64), changes])


def sum_runs(values: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    return np.add.reduceat(values, starts) if len(starts) else np.zeros(0)


def is_hard(label: NDArray[Any]) -> bool:
    """Whether every label is 0 or 1."""
    return bool(((label == 0.0) | (label == 1.0)).all())
