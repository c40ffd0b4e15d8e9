"""A folder that is written under a temporary name: `.NAME.PID.part` beside its target `NAME`.

A lock on the folder shows that its writer is alive. What a killed writer left is removed when its target is written
again. On a network file system it stays: another machine may be writing, and locks and pids need not cross machines.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gearshift.embedding.file_systems import Medium, medium_of


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """A new folder next to `path`, which the caller renames. It is removed if anything fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    _remove_abandoned(path)
    try:
        temporary.mkdir(parents=True)
        with _locked(temporary):
            yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _remove_abandoned(path: Path) -> None:
    if medium_of(path.parent) is Medium.NETWORK:
        return
    for folder in path.parent.glob(".*.part"):
        name = re.fullmatch(rf"\.{re.escape(path.name)}\.(\d+)\.part", folder.name)
        if name is not None and not _lives(int(name[1])):
            with suppress(OSError):  # another process holds the lock
                _remove_unlocked(folder)


def _remove_unlocked(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


def _lives(pid: int) -> bool:
    """Whether there is such a process here. Another container may not see it, but it sees its lock."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
