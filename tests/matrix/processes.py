"""Finds the processes of one run from outside, by /proc alone.

All of them inherit a variable that the harness put into the environment of the first one. The role of each is known by
its title (`gearshift shard 1`). Where Ray has set the title (`ray::ProcessActor`, formerly `ray::Process`), the
role is known by the socket that the process listens on; the coordinator is the process in the run's cluster.json.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "OPERATOR_CASE"
_TITLE = re.compile(r"gearshift[ :-]+(coordinator|shard|worker)\b")
_SOCKET = re.compile(r"/(coordinator|shard)-\d+-\d+$")
_PROGRAMS = {"/raylet": "raylet", "/gcs_server": "GCS"}


@dataclass(frozen=True)
class Found:
    pid: int
    title: str


def marked(marker: str) -> list[Found]:
    """All live processes that carry the marker, oldest first; zombies and this process are none of them."""
    wanted = f"{VARIABLE}={marker}".encode()
    return [found for found in _all() if wanted in _read(found.pid, "environ").split(b"\0")]


def _all() -> Iterator[Found]:
    for pid in sorted(int(path.name) for path in Path("/proc").glob("[0-9]*")):
        title = _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
        if title and pid != os.getpid() and state(pid) not in "ZX":
            yield Found(pid, title)


def state(pid: int) -> str:
    """One letter, as in proc(5): T is stopped, Z a zombie; X if it is gone."""
    return _read(pid, "stat").decode(errors="replace").rpartition(")")[2].strip()[:1] or "X"


def _read(pid: int, name: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def by_role(marker: str, folder: Path) -> dict[str, list[int]]:
    """The processes of each role: coordinator, shard, worker, raylet, GCS."""
    roles: dict[str, list[int]] = {role: [] for role in ("coordinator", "shard", "worker", "raylet", "GCS")}
    coordinator, listening = _coordinator(folder), _listening()
    for found in marked(marker):
        role = "coordinator" if found.pid == coordinator else _role(found, listening)
        if role is not None:
            roles[role].append(found.pid)
    return roles


def _coordinator(folder: Path) -> int | None:
    with suppress(OSError, ValueError, KeyError):
        return int(json.loads((folder / "cluster.json").read_text())["pid"])
    return None


def _role(found: Found, listening: dict[str, str]) -> str | None:
    if known := _TITLE.search(found.title.partition(" -")[0]):
        return known[1]
    program = found.title.split()[0]
    for end, role in _PROGRAMS.items():
        if program.endswith(end):
            return role
    if found.title.startswith("ray::Process"):
        return next(
            (listening[socket] for socket in _sockets(found.pid) if listening.get(socket) == "shard"),
            "worker",
        )
    return None


def _listening() -> dict[str, str]:
    """Role by inode of the Unix sockets that somebody listens on."""
    rows = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    named = ((row[6], _SOCKET.search(row[7])) for row in rows if len(row) > 7 and row[3] == "00010000")
    return {inode: known[1] for inode, known in named if known}


def _sockets(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = str(file.readlink())
                if target.startswith("socket:["):
                    yield target[8:-1]


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end_all(marker: str, seconds: float = 20.0) -> None:
    """Kills everything that carries the marker, also what is started meanwhile."""
    until = time.monotonic() + seconds
    while (left := marked(marker)) and time.monotonic() < until:
        send([found.pid for found in left], signal.SIGKILL)
        time.sleep(0.1)
