"""Exceptions that speak to the user: what happened, where, what to do, in one sentence."""

from __future__ import annotations

import sys
import warnings


class UserError(ValueError):
    """A mistake in a file, a config or a command. The CLI prints it without a traceback and exits with 2."""


class MissingColumns(UserError):
    """Data lack columns that a schema reads; `features` are those that could count as missing values."""

    def __init__(self, sentence: str, features: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.features = features

    def with_option(self, option: str) -> UserError:
        """The same with the way out, if there is one: how whoever reads spells the option."""
        if not self.features:
            return self
        return UserError(f"{self} To read columns that are not there as missing values: {option}")


def warn(sentence: str) -> None:
    """A Python warning at the line of the user's own code that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gearshift."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, stacklevel=level)


class DataWarning(UserWarning):
    """Something about the data that the user should know and that does not stop the work."""
