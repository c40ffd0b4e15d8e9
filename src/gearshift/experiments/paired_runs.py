"""Strategies compared by paired runs: same data, model, settings and seeds; only the strategy differs.

The difference to the first strategy is taken seed by seed, so that what a seed brings cancels; its 95 % interval is
Student's. `same`: the whole interval lies within the margin; `worse`, `better`: all of it lies outside, on that side;
else `unclear`. Pure arithmetic over the reports of runs; trains nothing.
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
    """The two-sided 95 % quantile of Student's t; beyond df 10 by its expansion (Abramowitz and Stegun 26.7.5)."""
    if df <= len(_T95):
        return _T95[df - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)


@dataclass(frozen=True)
class Interval:
    mean: float
    half: float  # nan from one value

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
    """How many more seeds would likely make the interval narrow enough, or None if none would."""
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
    difference: Interval | None  # to the first strategy, paired
    verdict: Verdict
    more_seeds: int | None  # that would likely settle an unclear verdict
    examples_per_second: float
    speedup: float  # over the first strategy, median of seeds
    of_possible: float | None
    staleness_mean: float
    staleness_p99: float
    lag_p99: float
    sync_gap: float | None  # batches between two exchanges, of replica strategies
    discarded: int
    discarded_share: float
    discarded_by_reason: dict[str, int]
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
    """One arm per strategy, from its reports by seed; the first is what the others are held against.

    `price` is of one worker for an hour.
    """
    base = next(iter(reports.values()))
    return [_arm(name, own, base, margin, price) for name, own in reports.items()]


def _arm(
    name: str,
    own: Sequence[Mapping[str, Any]],
    base: Sequence[Mapping[str, Any]],
    margin: float,
    price: float | None,
) -> StrategyRuns:
    differences = [mine["auc"] - theirs["auc"] for mine, theirs in zip(own, base, strict=True)]
    paired = None if own is base else interval(differences)
    said: Verdict = "-" if paired is None else verdict(paired, margin)
    rate = median([report["examples_per_second"] for report in own])
    leases = sum(report["applied"] + report["discarded"] for report in own)
    discarded = sum(report["discarded"] for report in own)
    reasons: dict[str, int] = {}
    for report in own:
        for reason, count in report["discarded_by_reason"].items():
            reasons[reason] = reasons.get(reason, 0) + count
    injected = own[0]["injected"]
    return StrategyRuns(
        strategy=name,
        auc=interval([report["auc"] for report in own]),
        difference=paired,
        verdict=said,
        more_seeds=seeds_to_settle(differences, lambda found: verdict(found, margin) != "unclear")
        if said == "unclear"
        else None,
        examples_per_second=rate,
        speedup=median(
            [m["examples_per_second"] / t["examples_per_second"] for m, t in zip(own, base, strict=True)]
        ),
        of_possible=rate / injected["possible"] if injected else None,
        staleness_mean=mean(report["staleness"]["mean"] for report in own),
        staleness_p99=max(report["staleness"]["p99"] for report in own),
        lag_p99=max(report["lag"]["p99"] for report in own),
        sync_gap=own[0].get("sync_gap") and own[0]["sync_gap"]["mean"],
        discarded=discarded,
        discarded_share=discarded / leases if leases else 0.0,
        discarded_by_reason=reasons,
        price_per_billion=None if price is None else 1e9 / rate / 3600 * price * own[0]["workers"],
    )
