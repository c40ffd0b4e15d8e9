"""Errors with a short message: what happened, where, and how to fix it. Unknown names get a suggestion."""

from __future__ import annotations

import difflib
import errno
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

MOST_LETTERS = 300  # maximum length of a message
SIMILAR = 0.6  # minimum difflib ratio of a suggestion


class UserError(ValueError):
    """A mistake in a file, a config or a command. The CLI prints it without a traceback and exits with 2."""


class MissingColumns(UserError):
    """The data lacks columns that the schema needs; `features` are those that may be read as missing values."""

    def __init__(self, sentence: str, features: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.features = features

    def with_option(self, option: str) -> UserError:
        """The message, with the option that reads absent columns as missing values, if it helps."""
        if not self.features:
            return self
        return UserError(f"{self} To read absent columns as missing values: {option}")


class DataWarning(UserWarning):
    """A problem in the data that the user should know about but that does not stop the work."""


def warn_through(notify: Callable[[str], None]) -> None:
    """Sends each warning to `notify`, once; for processes whose stderr is not shown to the user, such as Ray's."""
    global _notify
    seen: set[str] = set()

    def once(sentence: str) -> None:
        if sentence not in seen:
            seen.add(sentence)
            notify(sentence)

    _notify = once


_notify: Callable[[str], None] | None = None


def warn(sentence: str) -> None:
    """Issues a `DataWarning` at the line of the user's code that caused it."""
    if _notify is not None:
        _notify(sentence)
        return
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gearshift."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, DataWarning, stacklevel=level)


_NUMBERS: dict[type[OSError], int] = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES}


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the name of this file to disk errors: errors of a read or write, such as on a full disk, have none.

    Native libraries (safetensors) raise errors without an error number; it is derived from the class of the error.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            error.errno = _NUMBERS.get(type(error), errno.EIO)
            error.strerror = os.strerror(error.errno) if type(error) in _NUMBERS else str(error)
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def naming_output(path: Path) -> Iterator[None]:
    """Like `naming`, for a file that is written under a temporary name: the error names the output.

    The reason is the system's text, not Arrow's.
    """
    try:
        with naming(path):
            yield
    except OSError as error:
        error.filename = str(path)
        error.strerror = os.strerror(error.errno or errno.EIO)
        raise


def brief(error: BaseException) -> str:
    """One line: `ValueError: sizes differ (my_model.py:31, in forward)`. A `UserError` gives its own message."""
    message = " ".join(str(error).split())
    if isinstance(error, UserError):
        return message
    message = message if len(message) <= MOST_LETTERS else f"{message[:MOST_LETTERS]} ..."
    frames = traceback.extract_tb(error.__traceback__)
    callers = [frame for frame in frames if not _is_library(frame.filename)] or frames
    where = (
        f" ({Path(callers[-1].filename).name}:{callers[-1].lineno}, in {callers[-1].name})" if callers else ""
    )
    return f"{type(error).__name__}{f': {message}' if message else ''}{where}"


def _is_library(file: str) -> bool:
    """Errors inside a library such as PyTorch are reported at the line that called it."""
    return "site-packages" in file or file.startswith("<")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error to raise: "unknown model `depfm`. Did you mean `deepfm`? (deepfm, dnn, lr)"."""
    names = list(known)
    near = nearest_name(name.lower(), names)
    hint = f" Did you mean `{near}`?" if near else ""
    return UserError(f"unknown {kind} `{name}`.{hint} ({', '.join(names) or 'none exist'})")


def nearest_name(word: str, known: Iterable[str]) -> str | None:
    """The known name with the fewest typing errors to `word`; None if no name is similar.

    On a tie, the name of the same length (`hsah` is `hash`, not `has`), then the first one.
    """
    similar = [name for name in known if _ratio(word, name) >= SIMILAR]
    return min(
        similar, key=lambda name: (_typing_errors(word, name), abs(len(word) - len(name))), default=None
    )


def _ratio(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, b, a).ratio()


def _typing_errors(a: str, b: str) -> int:
    """The number of letters omitted, added, replaced or swapped with a neighbour (restricted Damerau-Levenshtein)."""
    before: list[int] = []
    above = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        row = [i]
        for j, other in enumerate(b, 1):
            errors = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                errors = min(errors, before[j - 2] + 1)
            row.append(errors)
        before, above = above, row
    return above[-1]
