"""A real run on a local Ray cluster, started and asked as an operator would: by its command line and control socket.

It knows no module of the package: the run may be of another checkout, whose interpreter is given. All that the run
puts into a temporary folder goes to one of its own, so that whatever is left there is the run's.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.matrix import processes
from tests.matrix.scenarios import PATIENCE

WORKERS, SHARDS, BATCH, STEP_SECONDS = 3, 2, 128, 0.2
RATE = WORKERS * BATCH / STEP_SECONDS  # examples/s at best
START_SECONDS = 180.0  # until the first step, at most
SAMPLE_SECONDS = 0.1
PACE = Path(__file__).parent / "pace"  # what makes a step take STEP_SECONDS
CONFIG = """\
name: op
data: {{synthetic: {{examples: {examples}, days: 2}}}}
model: {{name: deepfm, dim: 8, hidden: [16]}}
strategy: {{name: {strategy}}}
train: {{global_batch: {batch_of_all}, batch: {batch}, eval_every: none, baseline: false}}
cluster:
  {{engine: ray, address: local, workers: {workers}, shards: {shards}, threads: 1, patience: {patience:g}s,
   resources: {{coordinator_cpus: 0.1, shard_cpus: 0.1, worker_cpus: 0.1}}}}
checkpoint: {{every: 5s, keep: 2}}
"""
# Imported and ready: the command itself is carried out when a line comes.
_READY = """\
import contextlib, importlib, runpy, sys
for name in ("cli", "train", "control", "commands.control", "commands.train"):
    with contextlib.suppress(ImportError):
        importlib.import_module(f"gearshift.{name}")
print("ready", flush=True)
sys.stdin.readline()
sys.argv[0] = "gearshift"
runpy.run_module("gearshift", run_name="__main__")
"""


@dataclass(frozen=True)
class Sample:
    """Where the run said it stood, at a time."""

    at: float  # epoch seconds
    step: int
    examples: int
    total: int
    phase: str


class Command:
    """A command line that is ready to be carried out at once. It prints into a file: a pipe may outlive it."""

    def __init__(self, run: LiveRun, *arguments: str, before: tuple[str, ...] = ()) -> None:
        command = [*before, run.python, "-c", _READY, *arguments]
        handle, name = tempfile.mkstemp(".txt", "command-", run.work)
        self._printed = Path(name)
        with os.fdopen(handle, "w") as out:
            self._process = subprocess.Popen(
                command, cwd=run.work, env=run.environment, stdin=subprocess.PIPE, stdout=out, stderr=out
            )
        end = time.monotonic() + START_SECONDS
        while not self._printed.read_text().startswith("ready"):
            assert not self.over and time.monotonic() < end, f"{command}: {self._printed.read_text()}"
            time.sleep(0.05)

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.close()

    @property
    def over(self) -> bool:
        return self._process.poll() is not None

    def result(self, seconds: float) -> tuple[int | None, str]:
        """Exit code and words; no code if it is not over by then, in which case it is killed."""
        try:
            code: int | None = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            code = None
        return code, self._printed.read_text(errors="replace").removeprefix("ready\n")


class LiveRun:
    """One run in the folder `work`, from its start to its end, with all that it says on the way."""

    def __init__(self, python: str, work: Path, marker: str, strategy: str, seconds: float) -> None:
        self.python, self.work, self.marker = python, work, marker
        self.trained = (
            int(RATE * seconds) // (WORKERS * BATCH) * (WORKERS * BATCH) + 77
        )  # the last step is short
        self.temporary = work / "t"
        self.temporary.mkdir()
        self.environment = {**os.environ, processes.VARIABLE: marker, "TMPDIR": str(self.temporary)}
        for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE", "RAY_ADDRESS"):
            self.environment.pop(name, None)
        self.environment |= {
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(PACE),
            "OPERATOR_PACE": str(STEP_SECONDS),
        }
        self.samples: list[Sample] = []
        self._folder: Path | None = None
        self._over = threading.Event()
        text = CONFIG.format(
            examples=2 * self.trained,  # the second of two days is for validation
            strategy=strategy,
            batch=BATCH,
            batch_of_all=WORKERS * BATCH,
            workers=WORKERS,
            shards=SHARDS,
            patience=PATIENCE,
        )
        (work / "op.yaml").write_text(text)

    # ---- start and end ----

    def start(self, *arguments: str) -> None:
        self.driver = self.train(*(arguments or ("op.yaml",)))
        threading.Thread(target=self._sample, daemon=True).start()

    def train(self, *arguments: str) -> subprocess.Popen[bytes]:
        """In a session of its own, as by an operator's shell; what it prints is appended to out.txt."""
        with (self.work / "out.txt").open("ab") as out:
            return subprocess.Popen(
                [self.python, "-m", "gearshift", "train", *arguments],
                cwd=self.work,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return (self.work / "out.txt").read_text(errors="replace")

    @property
    def folder(self) -> Path:
        """Of the run; `runs` itself until it is there."""
        if self._folder is None and (self.work / "runs" / "last").exists():
            self._folder = (self.work / "runs" / "last").resolve()
        return self._folder or self.work / "runs"

    def record(self) -> dict[str, Any]:
        """run.json as it is; empty if it cannot be read."""
        with suppress(OSError, ValueError):
            return dict(json.loads((self.folder / "run.json").read_text()))
        return {}

    def wait_for_driver(self, seconds: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.driver.wait(seconds)
        return None

    def stop(self) -> None:
        """As Ctrl-C does."""
        with suppress(ProcessLookupError):
            self.driver.send_signal(signal.SIGINT)

    def close(self) -> None:
        self._over.set()
        processes.end_all(self.marker)
        with suppress(subprocess.TimeoutExpired):
            self.driver.wait(10)

    # ---- what it says ----

    def ask(self, do: str, seconds: float = 3.0, **more: Any) -> dict[str, Any] | None:
        """The answer of its control socket; None if there is none."""
        with suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as connection:
            key = (self.folder / "control.key").read_text()
            connection.settimeout(seconds)
            connection.connect(str((self.folder / "control.sock").resolve()))
            connection.sendall(json.dumps({"key": key, "do": do, **more}).encode() + b"\n")
            received = b""
            while not received.endswith(b"\n") and (more_bytes := connection.recv(1 << 16)):
                received += more_bytes
            return dict(json.loads(received)).get("done")
        return None

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            if said := self.ask("status"):
                now = Sample(time.time(), said["step"], said["examples"], said["total"], said["phase"])
                self.samples.append(now)

    def wait_for_folder(self) -> None:
        end = time.monotonic() + START_SECONDS
        while self._folder is None or not self.record():
            assert self.driver.poll() is None and time.monotonic() < end, (
                f"no run folder: {self.output[-300:]}"
            )
            time.sleep(0.1)
            _ = self.folder

    def wait_until(self, true: Callable[[Sample], bool], seconds: float, what: str) -> None:
        """Until a sample says so; an error if the run is over before, or takes too long."""
        end = time.monotonic() + seconds
        while not (self.samples and true(self.samples[-1])):
            last = self.output.strip().splitlines()[-3:]
            assert self.driver.poll() is None, f"the run ended before {what}: {last}"
            assert time.monotonic() < end, f"not within {seconds:g} s: {what}: {last}"
            time.sleep(0.01)

    def roles(self) -> dict[str, list[int]]:
        return processes.by_role(self.marker, self.folder)
