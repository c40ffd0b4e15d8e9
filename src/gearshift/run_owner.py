"""Who owns a run: one process, while it lives.

The lock is a file of which only one can be made; it says who made it. A process is known by pid, start time
and machine together, as pids are used again. The lock of a process that is gone holds nobody off; one of
another machine cannot be judged, and does not either.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gearshift.errors import UserError

LOCK = "run.lock"


def this_process() -> dict[str, Any]:
    pid = os.getpid()
    return {"pid": pid, "process_start": process_start(pid), "host": platform.node()}


def lives(owner: Mapping[str, Any]) -> bool:
    """Is it a process of this machine, and still the one that wrote its name?"""
    known = owner.get("process_start")
    return known is not None and owner["host"] == platform.node() and process_start(owner["pid"]) == known


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; none if there is no such process.

    Field 22 of /proc/PID/stat (proc(5)); the name before it may hold spaces and brackets.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def lock(folder: Path) -> None:
    """Makes the lock, or says who has it: another process, or another thread of this one."""
    path = folder / LOCK
    with _alone_with(folder):
        owner = _owner(path)
        if lives(owner):
            raise UserError(
                f"run {folder.name} is still running (process {owner['pid']}); stop it before resuming it"
            )
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with os.fdopen(handle, "w") as file:
            json.dump(this_process(), file)


def unlock(folder: Path) -> None:
    (folder / LOCK).unlink(missing_ok=True)


def _owner(path: Path) -> dict[str, Any]:
    """Nobody if the lock is not there, or was not written to its end."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(path.read_text()))
    return {}


@contextlib.contextmanager
def _alone_with(folder: Path) -> Iterator[None]:
    """Of all threads and processes, one at a time: two must not take over the same old lock."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system that cannot; O_EXCL still stops most
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
