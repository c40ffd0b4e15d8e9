"""Exact measures of whole arrays: AUC, grouped AUC, log loss, difference of two AUCs on the same examples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gearshift.metrics.shared_arithmetic import (
    Doubles,
    auc_of_bins,
    columns,
    logs,
    ratio,
    run_starts,
    sum_runs,
)


def auc(labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None) -> float:
    """The probability that a click scores above a non-click; ties count half.

    >>> auc([0, 1, 0, 1], [0.1, 0.4, 0.4, 0.8])
    0.875
    """
    label, score, weight = columns(labels, scores, weights)
    if np.isnan(score).any():
        return math.nan
    order = np.argsort(score, kind="stable")
    runs = run_starts(score[order])
    clicks, others = _split(label[order], weight[order])
    return auc_of_bins(sum_runs(clicks, runs), sum_runs(others, runs))


@dataclass(frozen=True)
class Grouped:
    """The mean of the AUCs of the groups, weighted by their number of examples (or the sum of their weights).

    A group with only clicks or only non-clicks has no AUC and does not count.
    """

    auc: float
    counted: int  # groups with both classes
    groups: int
    one_in: int = 1  # one in this many groups was used, if there were too many examples


def grouped_auc(
    labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, weights: ArrayLike | None = None
) -> float:
    """The mean of the AUCs of the groups, weighted by their number of examples, over groups with both classes."""
    return grouped(labels, scores, groups, weights).auc


def grouped(
    labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, weights: ArrayLike | None = None
) -> Grouped:
    """Like `grouped_auc`, with the number of groups.

    >>> grouped([0, 1, 0, 1, 1], [0.1, 0.4, 0.8, 0.2, 0.5], ["a", "a", "b", "b", "c"])
    Grouped(auc=0.5, counted=2, groups=3, one_in=1)
    """
    label, score, weight = columns(labels, scores, weights)
    group = np.asarray(groups)
    if not len(label) or np.isnan(score).any():
        return Grouped(math.nan, 0, len(np.unique(group)))
    order = np.lexsort((score, group))
    label, score, weight, group = label[order], score[order], weight[order], group[order]
    starts = run_starts(group)
    clicks, others = _split(label, weight)
    ties = np.union1d(starts, run_starts(score))  # indices where the group or the score changes
    tied_clicks, tied_others = sum_runs(clicks, ties), sum_runs(others, ties)
    of_group = np.searchsorted(ties, starts)
    before = np.cumsum(tied_others) - tied_others
    before -= np.repeat(before[of_group], np.diff(np.append(of_group, len(ties))))
    won = sum_runs(tied_clicks * (before + tied_others / 2), of_group)
    pairs = sum_runs(clicks, starts) * sum_runs(others, starts)
    size = np.where(pairs > 0, sum_runs(weight, starts), 0.0)
    mean = ratio(np.sum(size * won / np.where(pairs > 0, pairs, 1.0)), size.sum())
    return Grouped(mean, int((pairs > 0).sum()), len(starts))


def logloss(labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None = None) -> float:
    label, probability, weight = columns(labels, probabilities, weights)
    log_p, log_q = logs(probability)
    return ratio(-(weight * (label * log_p + (1.0 - label) * log_q)).sum(), weight.sum())


def entropy(rate: float) -> float:
    """The log loss of predicting a constant rate that is correct."""
    if not 0.0 < rate < 1.0:
        return 0.0 if rate in (0.0, 1.0) else math.nan
    return -rate * math.log(rate) - (1.0 - rate) * math.log(1.0 - rate)


@dataclass(frozen=True)
class AucDifference:
    """The difference a - b of two AUCs on the same examples, with its standard error."""

    difference: float
    se: float

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, normal approximation."""
        return self.difference - 1.959964 * self.se, self.difference + 1.959964 * self.se


def paired_auc_difference(
    labels: ArrayLike, scores_a: ArrayLike, scores_b: ArrayLike, weights: ArrayLike | None = None
) -> AucDifference:
    """AUC of a minus AUC of b (DeLong, DeLong, Clarke-Pearson 1988). Examples that are hard for both cancel out."""
    label, a, weight = columns(labels, scores_a, weights)
    _, b, _ = columns(labels, scores_b, None)
    clicked = (label > 0.5) & (weight > 0)
    other = (label <= 0.5) & (weight > 0)
    if clicked.sum() < 2 or other.sum() < 2 or np.isnan(a).any() or np.isnan(b).any():
        return AucDifference(math.nan, math.nan)
    of_clicks = _shares_below(a, clicked, other, weight) - _shares_below(b, clicked, other, weight)
    of_others = _shares_below(b, other, clicked, weight) - _shares_below(a, other, clicked, weight)
    difference, variance = _mean_and_variance(of_clicks, weight[clicked])
    return AucDifference(difference, math.sqrt(variance + _mean_and_variance(of_others, weight[other])[1]))


def _shares_below(
    scores: Doubles, these: NDArray[np.bool_], among: NDArray[np.bool_], weight: Doubles
) -> Doubles:
    """For each of `these`, the weighted share of `among` that scores below it; ties count half."""
    order = np.argsort(scores[among], kind="stable")
    ordered, below = scores[among][order], np.concatenate([[0.0], np.cumsum(weight[among][order])])
    left = np.searchsorted(ordered, scores[these], "left")
    right = np.searchsorted(ordered, scores[these], "right")
    return np.asarray((below[left] + below[right]) / (2.0 * below[-1]))


def _mean_and_variance(values: Doubles, weight: Doubles) -> tuple[float, float]:
    """The weighted mean, and the variance of that mean."""
    total, count = weight.sum(), len(weight)
    mean = float(weight @ values / total)
    spread = float((weight**2 @ (values - mean) ** 2) / total**2)
    return mean, spread * count / (count - 1)


def _split(label: Doubles, weight: Doubles) -> tuple[Doubles, Doubles]:
    return label * weight, (1.0 - label) * weight
