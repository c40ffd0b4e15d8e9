"""The declaration of a metric: a property of `Measures`, with how a person sees it.

    @metric("MAE", digits=3)
    def mean_absolute_error(self) -> float: ...

Reports, results, closing lines, `gearshift evaluate` and metrics.jsonl are derived from these declarations.
Does not depend on predictions and formats nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload


class Metric:
    """Read on an object, it is the value; read on the class, it is the declaration."""

    def __init__(
        self, compute: Callable[[Any], float], heading: str, digits: int, error: str, ratio: bool
    ) -> None:
        self._compute = compute
        self.heading = heading  # in tables and sentences; "" for a metric that is in report.json alone
        self.digits = digits  # after the decimal point
        self.error = error  # the metric that is its standard error, if it has one
        self.ratio = (
            ratio  # around 1: a sentence writes 0.998 rather than .998, and omits it if it is undefined
        )
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name  # in reports

    @overload
    def __get__(self, measures: None, kind: type) -> Metric: ...
    @overload
    def __get__(self, measures: object, kind: type) -> float: ...
    def __get__(self, measures: object | None, kind: type) -> Metric | float:
        return self if measures is None else self._compute(measures)


def metric(
    heading: str = "", *, digits: int = 4, error: str = "", ratio: bool = False
) -> Callable[[Callable[[Any], float]], Metric]:
    """Declares the decorated method as a metric. See `Metric` for the meaning of the arguments."""
    return lambda compute: Metric(compute, heading, digits, error, ratio)


def metrics_of(kind: type) -> tuple[Metric, ...]:
    """The metrics that a class declares, in order."""
    return tuple(declared for declared in vars(kind).values() if isinstance(declared, Metric))
