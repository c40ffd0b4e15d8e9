"""What happened, where, what to do: exceptions that say it to the user in one sentence, and others in one line."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOST_LETTERS = 300  # of a message


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


class DataWarning(UserWarning):
    """Something about the data that the user should know and that does not stop the work."""


def warn(sentence: str) -> None:
    """A `DataWarning` at the line of the user's own code that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gearshift."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, DataWarning, stacklevel=level)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the disk get the name of this file: those of a read or write, as on a full disk, have none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def brief(error: BaseException) -> str:
    """One line: `ValueError: sizes differ (my_model.py:31, in forward)`. A `UserError` says what is to be said."""
    said = " ".join(str(error).split())
    if isinstance(error, UserError):
        return said
    said = said if len(said) <= MOST_LETTERS else f"{said[:MOST_LETTERS]} ..."
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(frame.filename)] or frames
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno}, in {own[-1].name})" if own else ""
    return f"{type(error).__name__}{f': {said}' if said else ''}{where}"


def _is_library(file: str) -> bool:
    """An error in the depths of PyTorch is understood by the line that called it."""
    return "site-packages" in file or file.startswith("<")
