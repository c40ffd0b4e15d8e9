"""Paired differences and Student's 95 % intervals, in lines and in figures. Knows scores only."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import Any

from gearshift.experiments.paired_runs import Interval, interval
from switching.base import Score

Scores = list[dict[str, Score]]  # of each seed, by arm; an arm may be missing in some seeds


def difference(scores: Scores, arm: str, base: str, figure: str = "auc") -> Interval:
    both = [one for one in scores if arm in one and base in one]
    return interval([getattr(one[arm], figure) - getattr(one[base], figure) for one in both])


def base_of(arm: str) -> str:
    """What an arm is compared with: sync on the same order of examples."""
    return "held_sync" if arm.startswith("held_") else "sync"


@dataclass(frozen=True)
class Case:
    """What a case came to."""

    seeds: int
    same: bool
    scores: Scores

    @classmethod
    def of(cls, scores: Scores, same: bool) -> Case:
        return cls(len(scores), same, scores)

    def interval(self, arm: str, base: str, figure: str = "held_out") -> Interval | None:
        """None if one of them was not run."""
        known = any(arm in one and base in one for one in self.scores)
        return difference(self.scores, arm, base, figure) if known else None

    @property
    def gap_low(self) -> float | None:
        """The lower bound of what gba's ranking loses; of an arm of the day after."""
        return low(self.interval("gba", "sync"))

    @property
    def async_high(self) -> float | None:
        return high(self.interval("async", "sync", "auc"))

    @property
    def gba_minus_buffered_low(self) -> float | None:
        return low(self.interval("gba", "buffered_async"))

    def figures(self) -> dict[str, Any]:
        arms = [arm for arm in {arm: None for one in self.scores for arm in one} if arm != base_of(arm)]
        day_after = [arm for arm in arms if not arm.startswith("held_")]
        return {
            "gap_low": self.gap_low,
            "async_same_rate_high": self.async_high,
            "gba_minus_buffered_low": self.gba_minus_buffered_low,
            "seeds": self.seeds,
            "switch_to_itself_is_bit_identical": self.same,
            "sync_auc": mean(one["sync"].auc for one in self.scores),
            "differences": self._differences(day_after, "held_out"),
            "jitter": self._differences(arms, "auc"),
        }

    def _differences(self, arms: list[str], figure: str) -> dict[str, list[float]]:
        found = {arm: difference(self.scores, arm, base_of(arm), figure) for arm in arms}
        return {arm: [d.mean, d.low, d.high] for arm, d in found.items()}

    def lines(self) -> list[str]:
        """A line per arm. Log loss and calibration are those of the first 10 % after a switch, before they trained."""
        arms = list({arm: None for one in self.scores for arm in one})
        return [
            HEAD,
            *(self._line(arm) for arm in arms),
            f"gba - buffered_async {text(self.interval('gba', 'buffered_async'))}",
        ]

    def _line(self, arm: str) -> str:
        base, of = base_of(arm), [one for one in self.scores if arm in one]
        days = [
            mean(one[arm].each[day] - one[base].each[day] for one in of)
            for day in range(len(of[0][arm].each))
        ]
        parts = (
            f"{arm:24}",
            text(None if base == "held_sync" else self.interval(arm, base)),
            text(self.interval(arm, base, "auc")),
            " ".join(f"{day:+.4f}" for day in days),
            text(difference(self.scores, arm, base, "back")),
            f"{difference(self.scores, arm, base, 'logloss').mean:+.5f}",
            f"{mean(one[arm].calibration for one in of):.3f}",
            text(difference(self.scores, arm, base, "back_auc")),
            f"{difference(self.scores, arm, base, 'back_logloss').mean:+.5f}",
            f"{mean(one[arm].back_calibration for one in of):.3f}",
            f"{mean(one[arm].discarded for one in of):6.2%}",
        )
        return " | ".join(parts)


HEAD = (
    "arm, minus sync          | AUC of the day after [95 %]    | while it trains (jitter)       | by day or epoch | "
    "back in sync: AUC [95 %]       | first 10 %: log loss, calibration | "
    "back, first 10 %: AUC, log loss, calibration | discarded"
)


def low(d: Interval | None) -> float | None:
    return None if d is None else d.low


def high(d: Interval | None) -> float | None:
    return None if d is None else d.high


def text(d: Interval | None) -> str:
    if d is None:
        return "-"
    return f"{d.mean:+.5f} [{d.low:+.5f}, {d.high:+.5f}]"


def whole(cases: dict[str, Case]) -> dict[str, Any]:
    """The worst of all cases."""
    if not cases:
        return dict.fromkeys(("gap_low", "async_same_rate_high", "gba_minus_buffered_low", "seeds"))
    found = cases.values()
    return {
        "gap_low": min((case.gap_low for case in found if case.gap_low is not None), default=None),
        "async_same_rate_high": max(
            (case.async_high for case in found if case.async_high is not None), default=None
        ),
        "gba_minus_buffered_low": min(
            (one.gba_minus_buffered_low for one in found if one.gba_minus_buffered_low is not None),
            default=None,
        ),
        "seeds": min(case.seeds for case in cases.values()),
        "switch_to_itself_is_bit_identical": all(case.same for case in cases.values()),
    }
