"""Parses the short notation for disturbances of workers: `3=5x`, `10%=10x`, `1h+30s`.

The command line and a run's config share this notation, whether the slowness is simulated or injected.

    slow       3=5x   0-3=2x   all=2x   3=5x@60s-120s (for a while)   3=5x@60s (from then on)
    lognormal  0.3    3:0.5
    bursts     10%=10x          0-3:10%=10x
    fail       3@60s+30s (once, back after 30 s)   3@60s (for good)   1h+30s (each, once an hour)   3:1h+30s
    preempt    3@60s-120s       3@60s (for good)   3@0s-60s (joins late)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf, isfinite

from gearshift.cluster_model.cluster import (
    Bursts,
    ClusterModel,
    Compute,
    Crash,
    Failures,
    Lognormal,
    Preemption,
    Slow,
    SlowPeriod,
    Workers,
)
from gearshift.errors import UserError
from gearshift.settings.units import parse_number, parse_seconds, parse_share

MOST_WORKERS = 1_000_000
_WHO = r"(?P<who>all|\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)"
_SLOW = re.compile(_WHO + r"=(?P<factor>[^x@]+)x(?:@(?P<start>[^-]+)(?:-(?P<end>.+))?)?")
_LOGNORMAL = re.compile(rf"(?:{_WHO}:)?(?P<sigma>.+)")
_BURSTS = re.compile(rf"(?:{_WHO}:)?(?P<share>[^=:]+)=(?P<factor>[^x]+)x")
_CRASH = re.compile(_WHO + r"@(?P<at>[^+]+)(?:\+(?P<restart>.+))?")
_FAILURES = re.compile(rf"(?:{_WHO}:)?(?P<every>[^+@]+)\+(?P<restart>.+)")
_PREEMPT = re.compile(_WHO + r"@(?P<start>[^-]+)(?:-(?P<end>.+))?")


def cluster(
    workers: int,
    step: float,
    batch: float,
    *,
    slow: Sequence[str] = (),
    lognormal: Sequence[str] = (),
    bursts: Sequence[str] = (),
    seed: int = 0,
) -> ClusterModel:
    """A cluster whose undisturbed workers need `step` seconds for `batch` examples, with these stragglers."""
    slowed = [parse_slow(text) for text in slow]
    return ClusterModel(
        workers,
        Compute(per_example=step / batch),
        slow=tuple(one for one in slowed if isinstance(one, Slow)),
        slow_periods=tuple(one for one in slowed if isinstance(one, SlowPeriod)),
        lognormal=tuple(map(parse_lognormal, lognormal)),
        bursts=tuple(map(parse_bursts, bursts)),
        seed=seed,
    )


def parse_slow(text: str) -> Slow | SlowPeriod:
    groups = _match("slow", text, "3=5x, 0-3=2x or 3=5x@60s-120s", _SLOW)
    factor = _factor("slow", text, groups["factor"])
    if groups["start"] is None:
        return Slow(factor, _workers(groups["who"]))
    start, end = _span("slow", text, groups["start"], groups["end"])
    return SlowPeriod(factor, start, end, _workers(groups["who"]))


def parse_lognormal(text: str) -> Lognormal:
    groups = _match("lognormal", text, "0.3 or 3:0.5", _LOGNORMAL)
    try:
        sigma = parse_number(groups["sigma"])
    except ValueError as error:
        raise UserError(f"lognormal `{text}`: {error}") from None
    if not 0 <= sigma <= 3:
        raise UserError(f"lognormal `{text}`: sigma lies between 0 and 3; 0.3 is a noisy machine")
    return Lognormal(sigma, _workers(groups["who"]))


def parse_bursts(text: str) -> Bursts:
    groups = _match("bursts", text, "10%=10x or 3:10%=10x", _BURSTS)
    try:
        share = parse_share(groups["share"])
    except ValueError as error:
        raise UserError(f"bursts `{text}`: {error}") from None
    return Bursts(share, _factor("bursts", text, groups["factor"]), _workers(groups["who"]))


def parse_failure(text: str) -> Crash | Failures:
    groups = _match("fail", text, "3@60s+30s, or 1h+30s for one an hour on average", _CRASH, _FAILURES)
    restart = inf if groups["restart"] is None else _seconds("fail", text, groups["restart"])
    if "at" in groups:
        return Crash(_seconds("fail", text, groups["at"]), restart, _workers(groups["who"]))
    every = _seconds("fail", text, groups["every"])
    if every == 0:
        raise UserError(f"fail `{text}`: the mean time between failures must be more than 0, such as 1h+30s")
    return Failures(every, restart, _workers(groups["who"]))


def parse_preemption(text: str) -> Preemption:
    groups = _match("preempt", text, "3@60s-120s", _PREEMPT)
    start, end = _span("preempt", text, groups["start"], groups["end"])
    return Preemption(start, end, _workers(groups["who"]))


def _match(word: str, text: str, example: str, *patterns: re.Pattern[str]) -> dict[str, str]:
    for pattern in patterns:
        if match := pattern.fullmatch(text.replace(" ", "")):
            return match.groupdict()
    raise UserError(f"{word} `{text}` is not understood; write it like {example}")


def _workers(who: str | None) -> Workers:
    if who is None or who == "all":
        return None
    ranges = [part.partition("-") for part in who.split(",")]
    if any(int(last or first) >= MOST_WORKERS for first, _, last in ranges):
        raise UserError(f"worker numbers `{who}` are too large; they end before {MOST_WORKERS:,}")
    workers = {worker for first, _, last in ranges for worker in range(int(first), int(last or first) + 1)}
    if not workers:
        raise UserError(f"`{who}` names no worker; the smaller number comes first")
    return tuple(sorted(workers))


def _factor(word: str, text: str, written: str) -> float:
    try:
        factor = float(written)
    except ValueError:
        raise UserError(f"{word} `{text}`: expected a factor such as 5x, not `{written}x`") from None
    if not (isfinite(factor) and factor > 0):
        raise UserError(f"{word} `{text}`: a factor is more than 0, such as 5x")
    return factor


def _seconds(word: str, text: str, written: str) -> float:
    if re.fullmatch(r"0+(ms|s|sec|min|h|d)?", written):
        return 0.0
    try:
        return parse_seconds(written)
    except ValueError as error:
        raise UserError(f"{word} `{text}`: {error}") from None


def _span(word: str, text: str, start: str, end: str | None) -> tuple[float, float]:
    first = _seconds(word, text, start)
    last = inf if end is None else _seconds(word, text, end)
    if last <= first:
        raise UserError(f"{word} `{text}`: the end is before the start")
    return first, last
