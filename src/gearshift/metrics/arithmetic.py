"""What the exact and the streaming measures share: checked columns, logarithms, the AUC of ordered bins."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Doubles = NDArray[np.float64]

CLIP = 1e-7  # a probability nearer to 0 or 1 counts as this far away: what float32 can tell apart from 1


def columns(
    labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None
) -> tuple[Doubles, Doubles, Doubles]:
    label = np.asarray(labels, np.float64).ravel()
    score = np.asarray(scores, np.float64).ravel()
    weight = np.ones(len(label)) if weights is None else np.asarray(weights, np.float64).ravel()
    if not len(label) == len(score) == len(weight):
        raise ValueError(
            f"{len(label)} labels, {len(score)} scores and {len(weight)} weights; give one each per example"
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
    """Bins in order of the score; within a bin all are tied."""
    pairs = clicks.sum() * others.sum()
    if not pairs > 0:
        return math.nan
    return float((clicks * (np.cumsum(others) - others / 2)).sum() / pairs)
