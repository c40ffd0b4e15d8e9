"""The versions of the software that a run uses, for its log and its config."""

from __future__ import annotations

import contextlib
import platform
import subprocess
from importlib import metadata


def versions() -> str:
    """`gearshift 0.1.0, torch 2.13.0, python 3.11.2, commit 1a2b3c4` without importing any of them."""
    names = {"gearshift": "gearshift-ctr", "torch": "torch", "numpy": "numpy", "pyarrow": "pyarrow"}
    parts = []
    for name, distribution in names.items():
        with contextlib.suppress(metadata.PackageNotFoundError):
            parts.append(f"{name} {metadata.version(distribution)}")
    commit = _git_commit()
    return ", ".join(
        [*parts, f"python {platform.python_version()}", *([f"commit {commit}"] if commit else [])]
    )


def _git_commit() -> str:
    """The commit of the working folder: the user's own project, if it is one."""
    try:
        git = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return git.stdout.strip() if git.returncode == 0 else ""
