"""The sides as the benchmark sees them: processes that wait on a pipe and are asked one at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.venvs import NotInstalled, python_of

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Kind:
    """A way to make a step: its script, the venv it needs (None: ours), its OpenMP threads."""

    name: str
    script: str
    venv: str | None = None
    threads: int = 2


GEARSHIFT = Kind("gearshift", "gearshift_side.py")
DENSE = Kind("dense", "dense_side.py")
TWO_CALLERS = Kind("two_callers", "two_callers_side.py", threads=1)
PYTORCH = Kind("pytorch_sparse", "pytorch_side.py")
TORCHREC = Kind("torchrec", "torchrec_side.py", "torchrec")
FUXICTR = Kind("fuxictr", "fuxictr_side.py", "fuxictr")
DEEPCTR = Kind("deepctr_torch", "deepctr_side.py", "deepctr_torch")


class SideFailed(Exception):
    """A side did not start or died; the last line it said."""


class Running:
    """One side's process. It computes only while `ask` waits for its answer."""

    def __init__(self, kind: Kind, peers: Path, task: Path, model: str) -> None:
        self.kind = kind
        try:
            python = python_of(kind.venv, peers) if kind.venv else Path(sys.executable)
        except NotInstalled as error:
            raise SideFailed(f"not installed: {error}") from None
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        reading, writing = os.pipe()
        self._process = subprocess.Popen(
            [str(python), "-W", "ignore", str(HERE / kind.script), str(task), model],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            text=True,
            env={**_environment(kind.threads), "ANSWERS": str(writing)},
            pass_fds=(writing,),
        )
        os.close(writing)
        self._answers = os.fdopen(reading)
        self._answer()

    def train(self, steps: int) -> tuple[float, float]:
        """Seconds per step, and the mean loss."""
        answer = self.ask(f"train {steps}")
        return answer["seconds"] / steps, answer["loss"]

    def ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the missing answer tells
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            code = self._process.wait()
            self._log.seek(0)
            said = self._log.read().strip().splitlines() or ["nothing"]
            raise SideFailed(f"ended with {code}: {said[-1]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.communicate()  # closes its input, and waits
        self._answers.close()
        self._log.close()


def _environment(threads: int) -> dict[str, str]:
    """Threads for every library alike; passive: a side that waits takes nothing from the one at work."""
    count = str(threads)
    own = {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "OMP_WAIT_POLICY": "passive"}
    return {**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **own}
