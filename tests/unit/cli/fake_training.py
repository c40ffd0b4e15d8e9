"""A fake run without training: the part of `gearshift.config.build.start` that the commands use.

Steps of 10 ms in a thread of its own; keeps its run folder like the real one.
"""

import sys
import threading
import time
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gearshift.config import Config
from gearshift.errors import UserError
from gearshift.run import folder as run_folder


@dataclass(frozen=True)
class Status:
    step: int = 812
    examples: int = 410_000
    total: int | None = 1_000_000
    seconds: float = 10.0
    examples_per_second: float | None = 41_000.0
    loss: float | None = 0.1312
    auc_so_far: float | None = 0.7698
    day: str | None = "day 3"
    phase: str = "training"
    save_retried: bool = False


@dataclass(frozen=True)
class Result:
    report: dict[str, Any]
    lines: Sequence[str]


@dataclass
class Run:
    config: Config
    folder: Path
    steps: int = 5
    failure: str = ""
    header: Sequence[str] = ("Data   1 file", "Memory enough")
    messages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.step = 0
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    def _train(self) -> None:
        while self.step < self.steps and not self._stop.is_set():
            self.step += 1
            time.sleep(0.01)
        if self.failure:
            self._error = UserError(self.failure)
        self.messages.append("valid AUC .7000")
        how = "failed" if self.failure else "stopped" if self._stop.is_set() else "done"
        run_folder.finish(self.folder, how, self.failure)

    @property
    def finished(self) -> bool:
        return not self._thread.is_alive()

    def status(self) -> Status:
        return Status(step=self.step, examples=self.step * 100, total=self.steps * 100)

    def last_status(self) -> Status:
        return self.status()

    def stop(self, *, give_up: bool = False) -> None:
        self._stop.set()

    def wait(self, timeout: float | None = None) -> Result:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError
        if self._error:
            raise self._error
        return Result({"auc": 0.7, "global_steps": self.step}, ["done   500 examples", "valid  AUC .7000"])


def module(**settings: Any) -> types.ModuleType:
    """A stand-in for `gearshift.config.build`; `calls` records the arguments of `start`."""
    stand_in: Any = types.ModuleType("gearshift.config.build")
    stand_in.calls = []

    def start(
        config: Config, *, command: str = "", resume: Path | None = None, init_from: Path | None = None
    ) -> Run:
        stand_in.calls.append((config, resume, init_from))
        folder = resume or run_folder.create(config.checkpoint.path, config.name or "run", command=command)
        if resume:
            run_folder.claim(folder, command=command)
        run_folder.write_config(folder, config, command)
        return Run(config, folder, **settings)

    stand_in.start = start
    return stand_in  # type: ignore[no-any-return]


if __name__ == "__main__":  # the `gearshift` command with a run that takes its time; for tests with signals
    from gearshift.cli.app import main

    sys.modules["gearshift.config.build"] = module(steps=100_000)
    main()
