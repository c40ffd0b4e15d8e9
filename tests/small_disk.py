"""A real disk of a few megabytes that can be filled, made read-only and emptied again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class SmallDisk:
    path: Path

    @property
    def _filler(self) -> Path:
        return self.path / "filler"

    def fill(self) -> None:
        """To the last byte."""
        with self._filler.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass

    def free(self) -> None:
        self._filler.unlink()

    def remount(self, how: str) -> None:
        """`ro` or `rw`."""
        subprocess.run(["mount", "-o", f"remount,{how}", self.path], check=True)


@contextmanager
def small_disk(path: Path, size: str = "16m") -> Iterator[SmallDisk]:
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)
