"""Checks that the files in a config exist. Errors name the line, and the files that are there instead."""

from __future__ import annotations

import glob
from pathlib import Path

from gearshift.config.tree import Config
from gearshift.errors import UserError


def check_files(config: Config) -> None:
    """Raises on the first path of data.train, valid or test that matches nothing."""
    for name in ("train", "valid", "test"):
        for i, pattern in enumerate(getattr(config.data, name) or ()):
            if not exists(pattern):
                place = config.place("data", name, i) or f"data.{name}"
                raise UserError(f"{place}: data.{name} matches no file: {pattern}{hint(pattern)}")


def exists(pattern: str) -> bool:
    """Whether a path or glob matches something. A remote address (s3://) is not checked."""
    return "://" in pattern or Path(pattern).exists() or matches(pattern) > 0


def matches(pattern: str) -> int:
    # Path.glob refuses absolute patterns.
    return len(glob.glob(pattern, recursive=True))  # noqa: PTH207


def hint(pattern: str) -> str:
    """` (folder data/ has 7 files that end in .csv: drop .gz?)`."""
    folder = Path(pattern).parent
    if any(mark in str(folder) for mark in "*?["):
        return ""
    if not folder.is_dir():
        return f" (there is no folder {folder}/ in {Path.cwd()})"
    for ending in (".gz", ".zst"):
        plain = pattern.removesuffix(ending)
        if plain != pattern and exists(plain):
            there = f"{_files(matches(plain))} that end in {Path(plain).suffix}"
            return f" (folder {folder}/ has {there}: drop {ending}?)"
        if exists(pattern + ending):
            return f" (folder {folder}/ has {_files(matches(pattern + ending))} with {ending}: add it?)"
    names = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
    if not names:
        return f" (folder {folder}/ is empty)"
    return f" (folder {folder}/ has {', '.join(names[:3])}{' ...' if len(names) > 3 else ''})"


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"
