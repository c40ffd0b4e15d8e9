"""The memory of this machine and of this process, and how many bytes a value of the setting `memory` is here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gearshift.settings.units import Memory

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
OWN_STATUS = Path("/proc/self/status")


def budget_bytes(memory: Memory) -> int:
    """A number of bytes as it is; a share as that part of the memory of this machine or container."""
    return memory if isinstance(memory, int) else int(memory * machine_memory())


def machine_memory(cgroups: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int:
    """The memory of this machine, or the limit of its container if that is smaller."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min((physical, *_limits(cgroups, own)))


def resident_bytes(status: Path = OWN_STATUS) -> int:
    """What this process has taken of the memory; 0 where the system does not tell."""
    try:
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    except OSError:
        return 0
    kilobytes = lines.get("VmRSS", "").split()
    return int(kilobytes[0]) * 1024 if kilobytes and kilobytes[0].isdigit() else 0


def _limits(cgroups: Path, own: Path) -> Iterator[int]:
    """Of this process's control group and those above it, in versions 1 and 2."""
    try:
        groups = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        groups = []
    for _, controllers, path in [group for group in groups if len(group) == 3] or [["0", "", "/"]]:
        if controllers and "memory" not in controllers.split(","):
            continue
        top = cgroups / "memory" if controllers else cgroups
        group = top / path.strip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(top):
                yield from _limit(folder / ("memory.limit_in_bytes" if controllers else "memory.max"))


def _limit(file: Path) -> Iterator[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return
    if text.isdigit():  # `max` is none
        yield int(text)
