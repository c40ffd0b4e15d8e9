"""What a run left behind: its processes, known by the environment they were started with, and its folders."""

from __future__ import annotations

from pathlib import Path

from gearshift.engine.ray.end_session import processes_of


def processes(folder: Path, *titles: str) -> dict[int, str]:
    """Of the local cluster with this folder, those whose command begins with one of these, or all."""
    found = processes_of(folder)
    return {pid: command for pid, command in found.items() if command.startswith(titles or ("",))}


def folders(temporary: Path) -> set[str]:
    return {path.name for path in temporary.glob("gs-*")}
