"""Kills all processes of a session and removes its folder; also run as a program, by one who will be among the killed.

Ray's workers leave the process group of whoever started Ray, but not its session. It imports the standard library
alone, so that it starts at once wherever the package is.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

SECONDS = 20.0
QUIET = 0.3  # seconds in which nothing lives and nothing is written, before it counts as the end


def end_session(leader: int, folder: Path) -> None:
    assert leader > 1, "that is everybody's"
    until = time.monotonic() + SECONDS
    quiet_since = time.monotonic()
    while time.monotonic() < min(until, quiet_since + QUIET):
        lives = _kill(leader)
        if lives or folder.exists():
            quiet_since = time.monotonic()
        if not lives:
            shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


def _kill(leader: int) -> bool:
    """Whether there was anybody to kill. Zombies of other parents are gone as far as we are concerned."""
    with suppress(ChildProcessError):
        os.waitpid(leader, os.WNOHANG)  # if it is ours: a dead child stays until then
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)  # all that can be done where there is no /proc
    members = [pid for pid in _processes() if _session(pid) == leader]
    for pid in members:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return bool(members)


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _session(pid: int) -> int | None:
    with suppress(OSError):
        state, _, _, session = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[:4]
        return None if state == "Z" else int(session)
    return None


if __name__ == "__main__":
    _, seconds, the_leader, the_folder = sys.argv
    time.sleep(float(seconds))  # for whoever asked: it has a last word to say
    end_session(int(the_leader), Path(the_folder))
