"""A limit for the memory of this process from now on, page cache included: a memory cgroup of its own.

The group lies below the one that the process is in, so nothing of that one changes. Version 2 of cgroups is used
where its memory controller is handed down, else version 1. Standard library only: it runs in the environments of the
peers.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class MemoryGroup:
    """Call `enter` in the process itself and `remove` after its end."""

    def __init__(self, name: str) -> None:
        self._places = [
            (folder / name, limit, peak)
            for folder, limit, peak in (
                (_own_group("memory", "cgroup"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
                (_own_group("", "cgroup2"), "memory.max", "memory.peak"),
            )
            if folder is not None and (folder / limit).exists() | (peak == "memory.peak")
        ]

    def enter(self, limit_bytes: int) -> str | None:
        """Why there is no limit; None if there is one. Memory that is in use already does not count."""
        reasons = []
        for folder, limit, _ in self._places:
            try:
                folder.mkdir(exist_ok=True)
                (folder / limit).write_text(str(limit_bytes))
                (folder / "cgroup.procs").write_text(str(os.getpid()))
                return None
            except OSError as error:
                reasons.append(f"{folder}: {error.strerror}")
                with suppress(OSError):
                    folder.rmdir()
        return "; ".join(reasons) or "this system has no memory cgroups"

    def peak(self) -> int | None:
        for folder, _, peak in self._places:
            with suppress(OSError, ValueError):
                return int((folder / peak).read_text())
        return None

    def remove(self) -> None:
        for folder, _, _ in self._places:
            with suppress(OSError):
                folder.rmdir()


def _own_group(controller: str, kind: str) -> Path | None:
    """Where this process's group of that hierarchy lies, if it is mounted."""
    mounted = None
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, of_kind, options, *_ = line.split()
        if of_kind == kind and (not controller or controller in options.split(",")):
            mounted = Path(place)
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if mounted is not None and controller in controllers.split(","):
            folder = mounted / path.lstrip("/")
            return folder if folder.is_dir() else mounted
    return None
