"""Verdicts from paired runs."""

from __future__ import annotations

import json
import math

import pytest

from gearshift.experiments.paired_runs import Interval, compare, interval, seeds_to_settle, student95, verdict


def report(auc: float, rate: float = 100.0, discarded: int = 0, duplicated: int = 0) -> dict:
    return {
        "auc": auc,
        "examples_per_second": rate,
        "examples": 1000,
        "duplicated_examples": duplicated,
        "applied": 10 - discarded,
        "discarded": discarded,
        "discarded_by_reason": {"too late": discarded} if discarded else {},
        "staleness": {"mean": 0.5, "p99": 2.0, "max": 3.0},
        "lag": {"mean": 0.0, "p99": 1.0, "max": 2.0},
        "injected": {"possible": 200.0},
        "workers": 8,
    }


@pytest.mark.parametrize(
    ("df", "expected"), [(1, 12.706), (4, 2.776), (10, 2.228), (12, 2.179), (30, 2.042), (120, 1.980)]
)
def test_student_quantiles_are_those_of_the_tables(df: int, expected: float) -> None:
    assert student95(df) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.0006, 0.0002, "same"),
        (-0.0029, -0.0017, "worse"),
        (0.0012, 0.0030, "better"),
        (-0.0011, -0.0001, "unclear"),
        (-0.0030, 0.0030, "unclear"),
    ],
)
def test_a_verdict_needs_the_whole_interval(low: float, high: float, expected: str) -> None:
    middle = (low + high) / 2
    assert verdict(Interval(middle, high - middle), 0.001) == expected


def test_pairing_cancels_what_the_seeds_bring() -> None:
    base = [report(0.70 + seed / 100) for seed in range(5)]
    other = [report(0.7002 + seed / 100 + (seed % 2) / 1e5, rate=300.0, discarded=1) for seed in range(5)]
    first, second = compare({"sync": base, "gba": other}, price=0.36)
    assert first.difference is None and first.verdict == "-" and first.auc.half > 0.01
    assert second.difference is not None and second.difference.half < 1e-4 and second.verdict == "same"
    assert second.speedup == pytest.approx(3.0) and second.of_possible == pytest.approx(1.5)
    assert second.discarded == 5 and second.discarded_share == pytest.approx(0.1)
    assert second.price_per_billion == pytest.approx(1e9 / 300 / 3600 * 0.36 * 8)
    assert second.as_json()["difference"]["mean"] == pytest.approx(0.000204, abs=1e-6)


def test_duplicated_examples_are_a_share_of_all() -> None:
    runs = [report(0.7, duplicated=30), report(0.7, duplicated=50)]
    first, second = compare({"sync": [report(0.7), report(0.7)], "balanced": runs})
    assert (first.duplicated_share, second.duplicated_share) == (0.0, pytest.approx(0.04))
    assert second.discarded == 0


def test_one_seed_gives_no_interval_and_no_verdict() -> None:
    assert math.isnan(interval([0.7]).half)
    _, other = compare({"sync": [report(0.7)], "gba": [report(0.7)]})
    assert other.verdict == "unclear" and other.more_seeds is None
    assert json.loads(json.dumps(other.as_json(), allow_nan=False))["auc"]["low"] is None


def test_more_seeds_settle_what_is_close() -> None:
    def settled(found: Interval) -> bool:
        return verdict(found, 0.001) != "unclear"

    assert seeds_to_settle([0.0004, -0.0008, 0.0011], settled) in range(1, 20)
    assert seeds_to_settle([0.01, -0.03, 0.02], settled) is None
