"""`gearshift train`: reads the config, starts the run, shows it, and ends it cleanly.

The first Ctrl-C (or SIGTERM) asks the run to stop after its step and to save; a second one exits immediately.
"""

from __future__ import annotations

import re
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gearshift.cli import terminal
from gearshift.cli.arguments import find_model
from gearshift.cli.progress import ProgressDisplay, progress
from gearshift.config import Config, check_files, load_config
from gearshift.errors import UserError
from gearshift.run import catalog, interrupts
from gearshift.run import folder as run_folder
from gearshift.run.run_handle import RunHandle

if TYPE_CHECKING:
    from gearshift.run.result import Result

REFRESH_SECONDS = 0.25
TERMINATED = 143


def train(
    config: str | None,
    settings: list[str],
    *,
    json_file: Path | None,
    resume: str | None,
    init_from: str | None,
) -> int:
    """Returns the exit code: 0 only if the run finished."""
    if config is not None and is_setting(config):
        settings, config = [config, *settings], None
    check_writable(json_file)
    requested, saved = configured(config, settings, resume)
    if saved is not None and nothing_left(saved, requested):
        return say_nothing_left(saved, json_file)
    check_files(requested)
    warm = find_model(init_from, requested.checkpoint.path, "runs") if init_from is not None else None

    from gearshift.config.build import start

    try:
        run: RunHandle = start(requested, command=command_line(), resume=saved, init_from=warm)
    except KeyboardInterrupt as interrupt:
        if str(interrupt):  # the run had started: the message explains how it ended
            terminal.say(str(interrupt))
        return interrupts.QUIT
    ending = follow(run)
    if ending.exit_code == 0 and json_file is not None:
        run_folder.export_json(json_file, ending.result.report)
    return ending.exit_code


def configured(config: str | None, settings: list[str], resume: str | None) -> tuple[Config, Path | None]:
    """The config to run, and the run or checkpoint to resume from. A resumed run uses its saved config."""
    if resume is None:
        if config is None:
            raise UserError("name a config: gearshift train clicks.yaml (gearshift init FILE writes one)")
        return load_config(config, settings), None
    if config is None:
        saved = catalog.resume_from(resume)
        return load_config(catalog.find(saved) / run_folder.CONFIG, settings), saved
    requested = load_config(config, settings)
    return requested, catalog.resume_from(resume, requested.checkpoint.path, "runs")


def nothing_left(folder: Path, requested: Config) -> bool:
    """Whether the run is done and the config requests no more epochs and no other early stopping."""
    if not (folder / run_folder.RUN).is_file():
        return False  # an earlier checkpoint
    if run_folder.read(folder).state != "done" or not (folder / run_folder.CONFIG).is_file():
        return False
    had = load_config(folder / run_folder.CONFIG).train
    return requested.train.epochs <= had.epochs and requested.train.early_stopping == had.early_stopping


def say_nothing_left(folder: Path, json_file: Path | None) -> int:
    """Reports that the work is done, with exit code 0, for scripts that resume a run until it is done."""
    if json_file is not None:
        run_folder.export_text(json_file, (folder / run_folder.REPORT).read_text())
    terminal.say(
        f"Run {folder} is finished; nothing is left to train. To train longer: --resume {folder} train.epochs=N; "
        f"to start a new run with its embeddings: --init-from {folder}"
    )
    return 0


def is_setting(argument: str) -> bool:
    return re.match(r"[A-Za-z_][\w.\[\]-]*=", argument) is not None


def command_line() -> str:
    return shlex.join(["gearshift", *sys.argv[1:]])


def check_writable(json_file: Path | None) -> None:
    """Checked now, to fail before the run rather than after it."""
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise UserError(f"cannot write {json_file}: there is no folder {json_file.parent}/")


@dataclass(frozen=True)
class Ending:
    result: Result
    exit_code: int  # 0: the run finished


def follow(run: RunHandle) -> Ending:
    """Prints a run's progress and messages from its start to its end."""
    with progress() as shown, interrupts.heard(run, shown.say) as signals:
        introduced = introduce(run.header, shown)
        while not run.finished:
            try:
                with suppress(TimeoutError):
                    run.wait(REFRESH_SECONDS)
            finally:  # also its messages before a failure
                introduced = introduced or introduce(run.header, shown)
                shown.show(run.status(), run.messages)
    result = run.wait()
    if signals or run.status().phase == "stopped":  # by a signal, or by `gearshift stop`
        step = terminal.count(run.status().step)
        terminal.say(f"Saved step {step}. Resume: gearshift train --resume {run.folder}")
        return Ending(result, interrupts.QUIT if signals[:1] == [signal.SIGINT] else TERMINATED)
    shown_before = set(run.messages)
    for line in result.lines:
        if line not in shown_before:
            terminal.say(line)
    return Ending(result, 0)


def introduce(header: Sequence[str], shown: ProgressDisplay) -> bool:
    """Whether the header was printed; a run in other processes provides it slightly later."""
    for line in header:
        shown.say(line)
    return bool(header)
