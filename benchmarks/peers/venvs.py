"""A throw-away virtual environment per peer, made on first use.

The recipes are those that load together on a CPU: torch first, so that nothing pulls another build of it;
TorchRec and FBGEMM without their dependencies, which name packages that a CPU does not have.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TORCH = "torch==2.13.0"
RECIPES: dict[str, tuple[tuple[str, ...], ...]] = {
    "torchrec": (
        (TORCH,),
        ("--no-deps", "torchrec==1.9.2", "fbgemm-gpu-cpu==1.8.0"),
        ("numpy", "tensordict", "torchmetrics", "tqdm", "pyre-extensions", "iopath"),
    ),
    "fuxictr": ((TORCH,), ("fuxictr==2.3.10",)),
    "deepctr_torch": ((TORCH,), ("deepctr-torch==0.3.0", "requests")),
    "row_stores": (("numpy", "rocksdict==0.3.29", "lmdb==3.0.0"),),
}


class NotInstalled(Exception):
    """A peer cannot be set up here; the reason in words."""


def python_of(peer: str, folder: Path) -> Path:
    """The interpreter of this peer's environment below `folder`, made if it is not there yet."""
    venv, done = folder / peer, folder / peer / "installed"
    python = venv / "bin" / "python"
    if not done.exists():
        print(f"Setting up {peer} in {venv} ...", flush=True)
        _run(sys.executable, "-m", "venv", str(venv))
        for packages in RECIPES[peer]:
            _run(str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", *packages)
        done.touch()
    return python


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalled(lines[-1] if lines else result.stderr[-300:])
