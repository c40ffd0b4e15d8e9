"""`gearshift train`: reads the config, starts the run, shows it, and ends it cleanly.

The first Ctrl-C (or SIGTERM) asks the run to stop after its step and to save; a second one quits at once.
"""

from __future__ import annotations

import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gearshift.cli import terminal
from gearshift.cli.arguments import find_model
from gearshift.cli.progress import ProgressDisplay, ShownStatus, progress
from gearshift.config import Config, check_files, load_config
from gearshift.errors import UserError
from gearshift.run import folder as run_folder
from gearshift.run import interrupts

REFRESH_SECONDS = 0.25
TERMINATED = 143


class ShownResult(Protocol):
    @property
    def report(self) -> Mapping[str, Any]: ...
    @property
    def lines(self) -> Sequence[str]: ...


class StartedRun(Protocol):
    """What `gearshift.config.build.start` returns, as far as a command needs it."""

    @property
    def folder(self) -> Path: ...
    @property
    def header(self) -> Sequence[str]: ...
    @property
    def finished(self) -> bool: ...
    @property
    def messages(self) -> Sequence[str]: ...  # sentences for the user, all since the start
    def status(self) -> ShownStatus: ...
    def last_status(self) -> ShownStatus: ...
    def stop(self, *, give_up: bool = False) -> None: ...
    def wait(self, timeout: float | None = None) -> ShownResult: ...  # TimeoutError if it is not done by then


def train(
    config: str | None,
    settings: list[str],
    *,
    json_file: Path | None,
    resume: str | None,
    init_from: str | None,
) -> int:
    """Returns the exit code: 0 only if the run went to its end."""
    if config is not None and is_setting(config):
        settings, config = [config, *settings], None
    check_writable(json_file)
    asked, saved = configured(config, settings, resume)
    if saved is not None and nothing_left(saved, asked):
        return say_nothing_left(saved, json_file)
    check_files(asked)
    warm = find_model(init_from, asked.checkpoint.path, "runs") if init_from is not None else None

    from gearshift.config.build import start

    run: StartedRun = start(asked, command=command_line(), resume=saved, init_from=warm)
    ending = follow(run)
    if ending.exit_code == 0 and json_file is not None:
        run_folder.export_json(json_file, ending.result.report)
    return ending.exit_code


def configured(config: str | None, settings: list[str], resume: str | None) -> tuple[Config, Path | None]:
    """The config to run, and the run or checkpoint to go on from. A resumed run brings its own config."""
    if resume is None:
        if config is None:
            raise UserError("name a config: gearshift train clicks.yaml (gearshift init FILE writes one)")
        return load_config(config, settings), None
    if config is None:
        saved = run_folder.resume_from(resume)
        return load_config(run_folder.find(saved) / run_folder.CONFIG, settings), saved
    asked = load_config(config, settings)
    return asked, run_folder.resume_from(resume, asked.checkpoint.path, "runs")


def nothing_left(folder: Path, asked: Config) -> bool:
    """Whether a run went to its end, and no more epochs or other patience are asked of it than it had."""
    if not (folder / run_folder.RUN).is_file():
        return False  # an earlier checkpoint
    if run_folder.read(folder).state != "done" or not (folder / run_folder.CONFIG).is_file():
        return False
    had = load_config(folder / run_folder.CONFIG).train
    return asked.train.epochs <= had.epochs and asked.train.early_stopping == had.early_stopping


def say_nothing_left(folder: Path, json_file: Path | None) -> int:
    """The work is done, as a script that resumes until it is wants to hear."""
    if json_file is not None:
        run_folder.export_text(json_file, (folder / run_folder.REPORT).read_text())
    terminal.say(
        f"Run {folder} went to its end: nothing is left to train. Longer: --resume {folder} train.epochs=N; "
        f"a new run with its embeddings: --init-from {folder}"
    )
    return 0


def is_setting(argument: str) -> bool:
    return re.match(r"[A-Za-z_][\w.\[\]-]*=", argument) is not None


def command_line() -> str:
    return shlex.join(["gearshift", *sys.argv[1:]])


def check_writable(json_file: Path | None) -> None:
    """Before the run rather than after it."""
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise UserError(f"cannot write {json_file}: there is no folder {json_file.parent}/")


@dataclass(frozen=True)
class Ending:
    result: ShownResult
    exit_code: int  # 0: the run went to its end


def follow(run: StartedRun) -> Ending:
    """Prints what a run has to say from its start to its end."""
    with progress() as shown, interrupts.heard(run, shown.say) as signals:
        introduced = introduce(run.header, shown)
        while not run.finished:
            try:
                with suppress(TimeoutError):
                    run.wait(REFRESH_SECONDS)
            finally:  # also what it said before it failed
                introduced = introduced or introduce(run.header, shown)
                shown.show(run.status(), run.messages)
    result = run.wait()
    if signals or run.status().phase == "stopped":  # by a signal, or by `gearshift stop`
        step = terminal.count(run.status().step)
        terminal.say(f"Saved step {step}. Resume: gearshift train --resume {run.folder}")
        return Ending(result, interrupts.QUIT if signals[:1] == [signal.SIGINT] else TERMINATED)
    said = set(run.messages)
    for line in result.lines:
        if line not in said:
            terminal.say(line)
    return Ending(result, 0)


def introduce(header: Sequence[str], shown: ProgressDisplay) -> bool:
    """Whether there was something to say; a run of other processes knows it a little later."""
    for line in header:
        shown.say(line)
    return bool(header)
