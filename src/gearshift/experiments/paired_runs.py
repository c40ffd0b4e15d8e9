"""Compares strategies by paired runs: same data, model, settings and seeds; only the strategy differs.

Differences to the first strategy are taken per seed, so the effect of the seed cancels; the 95 % interval is Student's.
`same`: the whole interval lies within the margin; `worse`, `better`: all of it lies beyond the margin on that side;
otherwise `unclear`. This module only computes on the reports of runs and trains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, median, stdev
from typing import Any, Literal

Verdict = Literal["-", "same", "worse", "better", "unclear"]
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # df 1 to 10


def student95(df: int) -> float:
    """The two-sided 95 % quantile of Student's t; above df 10 by series expansion (Abramowitz and Stegun 26.7.5)."""
    if df <= len(_T95):
        return _T95[df - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)


@dataclass(frozen=True)
class Interval:
    mean: float
    half: float  # nan for a single value

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half


def interval(values: Sequence[float]) -> Interval:
    if len(values) < 2:
        return Interval(values[0], math.nan)
    return Interval(mean(values), student95(len(values) - 1) * stdev(values) / math.sqrt(len(values)))


def verdict(difference: Interval, margin: float) -> Verdict:
    if difference.low >= -margin and difference.high <= margin:
        return "same"
    if difference.high < -margin:
        return "worse"
    if difference.low > margin:
        return "better"
    return "unclear"


def seeds_to_settle(differences: Sequence[float], settled: Callable[[Interval], bool]) -> int | None:
    """The number of additional seeds that would likely narrow the interval enough; None if no number would."""
    if len(differences) < 2:
        return None
    spread, centre = stdev(differences), mean(differences)
    for n in range(len(differences) + 1, 200):
        if settled(Interval(centre, student95(n - 1) * spread / math.sqrt(n))):
            return n - len(differences)
    return None


@dataclass(frozen=True)
class StrategyRuns:
    """One strategy over all seeds."""

    strategy: str
    auc: Interval
    difference: Interval | None  # paired, to the first strategy
    verdict: Verdict
    more_seeds: int | None  # additional seeds that would likely settle an unclear verdict
    examples_per_second: float
    speedup: float  # relative to the first strategy, median of seeds
    of_possible: float | None
    staleness_mean: float
    staleness_p99: float
    lag_p99: float
    sync_gap: float | None  # batches between two exchanges, for replica strategies
    discarded: int
    discarded_share: float
    discarded_by_reason: dict[str, int]
    duplicated_share: float  # examples that were computed a second time for nothing, per example
    price_per_billion: float | None

    def as_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = dict(vars(self))
        return plain | {"auc": bounds(self.auc), "difference": self.difference and bounds(self.difference)}


def bounds(value: Interval) -> dict[str, float | None]:
    known = not math.isnan(value.half)
    return {"mean": value.mean, "low": value.low if known else None, "high": value.high if known else None}


def compare(
    reports: Mapping[str, Sequence[Mapping[str, Any]]], *, margin: float = 0.001, price: float | None = None
) -> list[StrategyRuns]:
    """One arm per strategy, from its reports by seed. The first strategy is the reference.

    `price` is for one worker and hour.
    """
    base = next(iter(reports.values()))
    return [_arm(name, runs, base, margin, price) for name, runs in reports.items()]


def _arm(
    name: str,
    reports: Sequence[Mapping[str, Any]],
    base: Sequence[Mapping[str, Any]],
    margin: float,
    price: float | None,
) -> StrategyRuns:
    differences = [mine["auc"] - theirs["auc"] for mine, theirs in zip(reports, base, strict=True)]
    paired = None if reports is base else interval(differences)
    outcome: Verdict = "-" if paired is None else verdict(paired, margin)
    rate = median([report["examples_per_second"] for report in reports])
    leases = sum(report["applied"] + report["discarded"] for report in reports)
    discarded = sum(report["discarded"] for report in reports)
    reasons: dict[str, int] = {}
    for report in reports:
        for reason, count in report["discarded_by_reason"].items():
            reasons[reason] = reasons.get(reason, 0) + count
    injected = reports[0]["injected"]
    return StrategyRuns(
        strategy=name,
        auc=interval([report["auc"] for report in reports]),
        difference=paired,
        verdict=outcome,
        more_seeds=seeds_to_settle(differences, lambda interval: verdict(interval, margin) != "unclear")
        if outcome == "unclear"
        else None,
        examples_per_second=rate,
        speedup=median(
            [m["examples_per_second"] / t["examples_per_second"] for m, t in zip(reports, base, strict=True)]
        ),
        of_possible=rate / injected["possible"] if injected else None,
        staleness_mean=mean(report["staleness"]["mean"] for report in reports),
        staleness_p99=max(report["staleness"]["p99"] for report in reports),
        lag_p99=max(report["lag"]["p99"] for report in reports),
        sync_gap=reports[0].get("sync_gap") and reports[0]["sync_gap"]["mean"],
        discarded=discarded,
        discarded_share=discarded / leases if leases else 0.0,
        discarded_by_reason=reasons,
        duplicated_share=sum(report.get("duplicated_examples", 0) for report in reports)
        / max(1, sum(report["examples"] for report in reports)),
        price_per_billion=None if price is None else 1e9 / rate / 3600 * price * reports[0]["workers"],
    )
