"""What a run left behind: its processes, known by the environment they were started with, and its folders."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def processes(folder: Path, *titles: str) -> dict[int, str]:
    """Of the local cluster with this folder, those whose command begins with one of these, or all."""
    found = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):
            environment = (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if f"RAY_AUTH_TOKEN_PATH={folder}/token".encode() in environment and command.startswith(
                titles or ("",)
            ):
                found[int(process.name)] = command
    return {pid: command for pid, command in found.items() if command}  # one without is a zombie


def folders(temporary: Path) -> set[str]:
    return {path.name for path in temporary.glob("gs-*")}
