"""Ctrl-C in a `gearshift` command before its run has started.

It raises `KeyboardInterrupt`, so that a command can clean up. An exception that a signal raises can be lost: libraries
catch everything around an optional import, and Python only prints what a finalizer raises. The signal is therefore
recorded, and no run starts after it. This file imports little: `gearshift --help` must stay fast.
"""

from __future__ import annotations

import signal

_received: list[int] = []


def install() -> None:
    """Nothing changes where Ctrl-C is ignored, as in a background job of a shell."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


def handler(number: int, _frame: object) -> None:
    _received.append(number)
    raise KeyboardInterrupt


def received() -> bool:
    return bool(_received)


def check() -> None:
    """Raises `KeyboardInterrupt` if Ctrl-C was pressed, even if its exception was lost."""
    if _received:
        raise KeyboardInterrupt
