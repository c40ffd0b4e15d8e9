"""Measures of whole arrays, exact: AUC, grouped AUC, log loss, the difference of two AUCs on the same examples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gearshift.metrics.arithmetic import Doubles, auc_of_bins, columns, logs, ratio


def auc(labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None) -> float:
    """The chance that a click scores above a non-click, ties counting half.

    >>> auc([0, 1, 0, 1], [0.1, 0.4, 0.4, 0.8])
    0.875
    """
    label, score, weight = columns(labels, scores, weights)
    if np.isnan(score).any():
        return math.nan
    order = np.argsort(score, kind="stable")
    runs = _run_starts(score[order])
    clicks, others = _split(label[order], weight[order])
    return auc_of_bins(_sum_runs(clicks, runs), _sum_runs(others, runs))


def grouped_auc(
    labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, weights: ArrayLike | None = None
) -> float:
    """The mean of the groups' own AUCs, weighted by their examples, over groups that have both classes."""
    label, score, weight = columns(labels, scores, weights)
    group = np.asarray(groups)
    if not len(label) or np.isnan(score).any():
        return math.nan
    order = np.lexsort((score, group))
    label, score, weight, group = label[order], score[order], weight[order], group[order]
    starts = _run_starts(group)
    clicks, others = _split(label, weight)
    ties = np.union1d(starts, _run_starts(score))  # where the group or the score changes
    tied_clicks, tied_others = _sum_runs(clicks, ties), _sum_runs(others, ties)
    of_group = np.searchsorted(ties, starts)
    before = np.cumsum(tied_others) - tied_others
    before -= np.repeat(before[of_group], np.diff(np.append(of_group, len(ties))))
    won = _sum_runs(tied_clicks * (before + tied_others / 2), of_group)
    pairs = _sum_runs(clicks, starts) * _sum_runs(others, starts)
    size = np.where(pairs > 0, _sum_runs(weight, starts), 0.0)
    if not size.any():
        return math.nan
    return float(np.sum(size * won / np.where(pairs > 0, pairs, 1.0)) / size.sum())


def logloss(labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None = None) -> float:
    label, probability, weight = columns(labels, probabilities, weights)
    log_p, log_q = logs(probability)
    return ratio(-(weight * (label * log_p + (1.0 - label) * log_q)).sum(), weight.sum())


def entropy(rate: float) -> float:
    """The log loss of predicting a constant rate, where that rate is true."""
    if not 0.0 < rate < 1.0:
        return 0.0 if rate in (0.0, 1.0) else math.nan
    return -rate * math.log(rate) - (1.0 - rate) * math.log(1.0 - rate)


@dataclass(frozen=True)
class Difference:
    """Of two AUCs on the same examples, a - b, with its standard error."""

    difference: float
    se: float

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, normal approximation."""
        return self.difference - 1.959964 * self.se, self.difference + 1.959964 * self.se


def paired_auc_difference(labels: ArrayLike, scores_a: ArrayLike, scores_b: ArrayLike) -> Difference:
    """AUC of a minus AUC of b (DeLong, DeLong, Clarke-Pearson 1988): what both find hard cancels."""
    label, a, _ = columns(labels, scores_a, None)
    _, b, _ = columns(labels, scores_b, None)
    clicked = label > 0.5
    if clicked.sum() < 2 or (~clicked).sum() < 2 or np.isnan(a).any() or np.isnan(b).any():
        return Difference(math.nan, math.nan)
    clicks_a, others_a = _placements(clicked, a)
    clicks_b, others_b = _placements(clicked, b)
    clicks, others = clicks_a - clicks_b, others_a - others_b
    variance = clicks.var(ddof=1) / len(clicks) + others.var(ddof=1) / len(others)
    return Difference(float(clicks.mean()), math.sqrt(variance))


def _placements(clicked: NDArray[np.bool_], scores: Doubles) -> tuple[Doubles, Doubles]:
    """For each click the share of non-clicks below it; for each non-click the share of clicks above it."""
    clicks, others = np.sort(scores[clicked]), np.sort(scores[~clicked])

    def share_below(x: Doubles, among: Doubles) -> Doubles:
        return (np.searchsorted(among, x, "left") + np.searchsorted(among, x, "right")) / (2.0 * len(among))

    return share_below(scores[clicked], others), 1.0 - share_below(scores[~clicked], clicks)


def _split(label: Doubles, weight: Doubles) -> tuple[Doubles, Doubles]:
    return label * weight, (1.0 - label) * weight


def _run_starts(ordered: NDArray[Any]) -> NDArray[np.int64]:
    """Where each run of equal values begins."""
    changes = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return np.concatenate([np.zeros(min(1, len(ordered)), np.int64), changes])


def _sum_runs(values: Doubles, starts: NDArray[np.int64]) -> Doubles:
    return np.add.reduceat(values, starts) if len(starts) else np.zeros(0)
