"""How users write the transform and the missing value of a numeric feature: log1p, {bucketize: 20}; mean, zero, 0.5."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from gearshift.settings.units import INTEGER, NUMBER, Unit, either, parse_count, parse_number


def _parse_buckets(value: Any) -> int | tuple[float, ...]:
    if isinstance(value, list | tuple):
        bounds = tuple(parse_number(bound) for bound in value)
        if not bounds or any(a >= b for a, b in pairwise(bounds)):
            raise ValueError("bounds must be ascending, such as [18, 25, 35]")
        return bounds
    if (count := parse_count(value)) < 2:
        raise ValueError("expected at least 2 buckets")
    return count


def _parse_missing(value: Any) -> str | float:
    if value in ("mean", "zero"):
        return str(value)
    try:
        return parse_number(value)
    except ValueError:
        raise ValueError("expected mean, zero or a number") from None


@dataclass(frozen=True)
class Bucketize:
    """A number of equally filled buckets, or their rising bounds."""

    buckets: int | tuple[float, ...]


def _parse_transform(value: Any) -> str | Bucketize:
    if isinstance(value, Bucketize) or value in ("none", "log1p", "standardize"):
        return value  # type: ignore[no-any-return]
    if isinstance(value, dict) and set(value) == {"bucketize"}:
        return Bucketize(_parse_buckets(value["bucketize"]))
    raise ValueError("expected none, log1p, standardize, {bucketize: 20} or {bucketize: [18, 25, 35]}")


def _write_transform(value: str | Bucketize) -> str | dict[str, Any]:
    return {"bucketize": value.buckets} if isinstance(value, Bucketize) else value


_NUMBERS = {"type": "array", "items": NUMBER}
_BUCKETS = {"bucketize": either({**INTEGER, "minimum": 2}, _NUMBERS)}

Transform = Annotated[
    str | Bucketize,
    Unit(
        _parse_transform,
        either({"enum": ["none", "log1p", "standardize"]}, {"type": "object", "properties": _BUCKETS}),
        _write_transform,
    ),
]
FilledMissing = Annotated[str | float, Unit(_parse_missing, either({"enum": ["mean", "zero"]}, NUMBER))]
