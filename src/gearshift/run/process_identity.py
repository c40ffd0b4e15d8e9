"""Identifies processes across restarts, containers and machines: pids are reused, and containers and machines share
folders.

A process is identified by its pid and start time on one machine. A machine is identified by its boot id and pid
namespace: two containers may have one host name, and one container cannot see the processes of another. A process of
another machine cannot be judged from here; `ownership.py` watches its heartbeat instead.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

MACHINE = "GEARSHIFT_MACHINE"  # environment: replaces boot id and pid namespace, where /proc is hidden


def this_process() -> dict[str, Any]:
    return identity(os.getpid())


def identity(pid: int) -> dict[str, Any]:
    """The identity of a process of this machine."""
    start = process_start(pid)
    return {"pid": pid, "process_start": start, "host": platform.node(), "machine": machine()}


def machine() -> str:
    """Equal for two processes exactly if they see each other's pids; empty if that cannot be determined."""
    return os.environ.get(MACHINE) or _machine()


@cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def lives(process: Mapping[str, Any] | None) -> bool | None:
    """Whether this process is alive, with the same start time; None if that cannot be determined from here."""
    if not process or process.get("process_start") is None:
        return None
    if "machine" in process:
        is_here = process["machine"] == machine() != ""
    else:  # written by a version that recorded host names only
        is_here = process["host"] == platform.node()
    return bool(process_start(process["pid"]) == process["process_start"]) if is_here else None


def is_stopped(pid: int) -> bool:
    """Whether a signal (SIGSTOP, Ctrl-Z) or a debugger holds this process."""
    return (_stat(pid) or ["?"])[0] in "Tt"


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is no such process."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def _stat(pid: int) -> list[str] | None:
    """/proc/PID/stat from its third field on (proc(5)); the name before it may contain spaces and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
