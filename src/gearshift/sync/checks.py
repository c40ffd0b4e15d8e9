"""Checks of a strategy's settings at construction. An error names the allowed values."""

from __future__ import annotations

from typing import Any

from gearshift.errors import UserError


def at_least(least: int, **settings: Any) -> None:
    for setting, value in settings.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UserError(f"{setting} is {value!r}: it must be a whole number, {least} or more")


def one_of(allowed: tuple[str, ...], **settings: Any) -> None:
    for setting, value in settings.items():
        if value not in allowed:
            raise UserError(f"{setting} is {value!r}: it must be one of {', '.join(allowed)}")


def true_or_false(**settings: Any) -> None:
    for setting, value in settings.items():
        if not isinstance(value, bool):
            raise UserError(f"{setting} is {value!r}: it must be true or false")


def within(low: float, high: float, **settings: Any) -> None:
    for setting, value in settings.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise UserError(f"{setting} is {value!r}: it must be a number from {low:g} to {high:g}")
