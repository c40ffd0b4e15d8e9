"""Kills all processes of a local Ray cluster and removes its folder. A process of the cluster can run it as a program.

Ray's workers leave the process group of the process that started Ray, but not its session. All of them have the
cluster's token file in their environment, which identifies them even if the session leader is gone and its pid is
reused. This module imports only the standard library, so that it starts fast.
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
QUIET = 0.3  # seconds without a live process or a write, after which the cluster counts as ended


def end_session(leader: int | None, folder: Path) -> None:
    """`leader` is None if it is gone: then its processes are recognized by their environment alone."""
    assert leader is None or leader > 1, "pid 1 leads the session of the whole system"
    until = time.monotonic() + SECONDS
    quiet_since = time.monotonic()
    while time.monotonic() < min(until, quiet_since + QUIET):
        lives = _kill(leader, folder)
        if lives or folder.exists():
            quiet_since = time.monotonic()
        if not lives:
            shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


def processes_of(folder: Path) -> dict[int, str]:
    """Commands of the live processes that were started with the token file of this cluster, by pid."""
    mark, commands = f"RAY_AUTH_TOKEN_PATH={folder}/token".encode(), {}
    for pid in _processes():
        process = Path("/proc") / str(pid)
        with suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                commands[pid] = (
                    (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                )
    return {pid: command for pid, command in commands.items() if command}  # a zombie has none


def _kill(leader: int | None, folder: Path) -> bool:
    """Whether there was a process to kill. Zombies of other parents do not count."""
    members = set(processes_of(folder)) - {os.getpid()}
    if leader is not None:
        with suppress(ChildProcessError):
            os.waitpid(leader, os.WNOHANG)  # if it is our child: reaps the zombie
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)  # the best that is possible without /proc
        members |= {pid for pid in _processes() if _session(pid) == leader}
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
    time.sleep(float(seconds))  # gives the requesting process time to report
    end_session(int(the_leader), Path(the_folder))
