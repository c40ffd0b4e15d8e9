"""Handles Ctrl-C, and the exit of the interpreter while a run still trains.

The same from Python and on the command line: the first Ctrl-C asks the run to stop after its step and to save, and
`wait` raises `KeyboardInterrupt` with the way to resume it; a second one raises at once (the command exits), without
waiting for the save. While the last save is being retried, Ctrl-C ends the retries and reports what is lost. A program
that ends while a run still trains (its last line, `sys.exit`, an exception) stops and saves the run before it leaves.

A run must not be left training: a thread that is inside C++ code when the interpreter ends takes the process down
("terminate called without an active exception").

During `wait` a signal handler catches Ctrl-C, so that no exception is raised in the middle of our code. A handler that
other code has installed stays; if it raises `KeyboardInterrupt`, that counts as well.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

from gearshift.run import folder as run_folder
from gearshift.run import startup_interrupts
from gearshift.run.run_handle import RunHandle

POLL_SECONDS = 0.2
QUIT = 130  # the exit code that shells report for a process ended by Ctrl-C


class Stoppable(RunHandle, Protocol):
    """A run that this process waits for. `stop` and `last_status` never wait, even while Ray's head is frozen."""

    def over(self, seconds: float) -> bool:
        """Waits at most this long. Returns whether the run has ended."""

    def ending(self) -> str:
        """A message about how a finished run ended."""


class Interrupts:
    """A signal handler: the first signal asks the run to stop, the next one quits.

    While the last save is being retried, a signal gives it up. A user who stopped the run before may not know that its
    save fails, so giving up takes a separate signal, and the one after it quits. The message to the user always matches
    the request to the run, whatever happens to the save in the meantime.
    """

    def __init__(self, run: RunHandle, say: Callable[[str], None], leave: Callable[[], NoReturn]) -> None:
        self._run, self._say, self._leave = run, say, leave
        self.came: list[int] = []
        self._gave_up = False

    def __call__(self, number: int, _frame: Any) -> None:
        status = self._run.last_status()
        if self.came and (self._gave_up or not status.save_retried):
            self._leave()
        self.came.append(number)
        self._gave_up = status.save_retried
        self._say(giving_up(self._run.folder, status.step, number) if self._gave_up else stopping(number))
        self._run.stop(give_up=self._gave_up)


def stopping(number: int) -> str:
    """A scheduler that sends SIGTERM has no use for Ctrl-C."""
    return f"Stopping after this step ...{_again(number, ', without saving')}"


def giving_up(folder: Path, step: int, number: int = signal.SIGINT) -> str:
    """What is kept, what is lost and how to resume, if the retries of the last save are stopped."""
    return f"Giving up the failing save: {what_is_kept(folder, step)}{_again(number)}"


def _again(number: int, effect: str = "") -> str:
    return f" (Ctrl-C again quits at once{effect})" if number == signal.SIGINT else ""


def what_is_kept(folder: Path, step: int) -> str:
    """What is kept of a run at that step if the retries of its last save are stopped."""
    hint = f"Resume: {resume_hint(folder)}"
    last = (folder / run_folder.CHECKPOINTS / run_folder.LAST).resolve()
    if not last.is_dir():  # nothing was saved, or the folder is unavailable
        return f"steps that are in no checkpoint are lost. {hint}"
    kept = int(last.name.removeprefix("step-"))
    if kept >= step:
        return f"all {step:,} steps are kept, in {last.name}; files written later, such as the report, are lost. {hint}"
    lost = f"step {step:,} is" if kept + 1 == step else f"steps {kept + 1:,} to {step:,} are"
    return f"{last.name} is kept, {lost} lost. {hint}"


def _abandon(run: Stoppable) -> NoReturn:
    _abandoned.append(run)
    raise KeyboardInterrupt(f"no longer waiting for run {run.folder}; its last steps may not be saved")


_abandoned: list[Stoppable] = []  # runs that a second Ctrl-C left behind


@contextmanager
def heard(run: RunHandle, say: Callable[[str], None]) -> Iterator[list[int]]:
    """For the command line: SIGINT and SIGTERM stop the run; the next one ends this process. Yields their numbers."""
    handler = Interrupts(
        run, say, lambda: os._exit(QUIT)
    )  # does not wait for threads; nothing more is written
    previous = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield handler.came
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def wait(run: Stoppable, timeout: float | None = None) -> None:
    """Returns when the run is over. Raises `KeyboardInterrupt` if Ctrl-C ended it, `TimeoutError` after `timeout`."""
    ctrl_c = _in_python(run)
    with _handled_by(ctrl_c):
        _wait(run, timeout, ctrl_c)
    if ctrl_c.came:
        raise KeyboardInterrupt(run.ending())


def _in_python(run: Stoppable) -> Interrupts:
    return Interrupts(run, _say, partial(_abandon, run))


def _wait(run: Stoppable, timeout: float | None, ctrl_c: Interrupts) -> None:
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        try:
            left = POLL_SECONDS if until is None or ctrl_c.came else until - time.monotonic()
            if run.over(min(POLL_SECONDS, max(0.0, left))):
                return
        except KeyboardInterrupt:
            if run in _abandoned:
                raise
            ctrl_c(signal.SIGINT, None)
        if until is not None and not ctrl_c.came and time.monotonic() >= until:
            raise TimeoutError(f"run {run.folder.name} is not done after {timeout} s")


@contextmanager
def held_back() -> Iterator[list[int]]:
    """Defers Ctrl-C until a run has started; yields the received signals."""
    came: list[int] = []
    with _handled_by(lambda number, _frame: came.append(number)):
        yield came


def stop_now(run: Stoppable) -> None:
    """Does what Ctrl-C does during `wait`."""
    ctrl_c = _in_python(run)
    with _handled_by(ctrl_c):
        ctrl_c(signal.SIGINT, None)
        _wait(run, None, ctrl_c)
    raise KeyboardInterrupt(run.ending())


@contextmanager
def _handled_by(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Installs the handler: only in the main thread, and only if Ctrl-C would raise `KeyboardInterrupt`."""
    ours = threading.current_thread() is threading.main_thread()
    previous = signal.getsignal(signal.SIGINT)
    if not ours or previous not in (signal.default_int_handler, startup_interrupts.handler):
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


class ExitStop:
    """A run that still trains when the interpreter exits is stopped and saved, between `set` and `cancel`."""

    def __init__(self, run: Stoppable) -> None:
        self._leave = partial(_leave, run, os.getpid())

    def set(self) -> None:
        atexit.register(self._leave)

    def cancel(self) -> None:
        atexit.unregister(self._leave)


def _leave(run: Stoppable, process: int) -> None:
    if os.getpid() != process:  # a fork of the process, which has none of its threads
        return
    if run in _abandoned:
        _quit()
    if run.over(0.0):
        return
    when = "when its last save succeeds" if run.last_status().save_retried else "after this step"
    _say(f"The program ends, and run {run.folder} with it, {when} ... (Ctrl-C quits at once)")
    try:
        run.stop()
        while not run.over(POLL_SECONDS):
            pass
    except KeyboardInterrupt:
        _quit()
    _say(run.ending())


def _quit() -> None:
    """Exits without waiting for the run's threads, which would crash an interpreter that exits normally."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # stderr is closed or missing
            stream.flush()
    os._exit(QUIT)


def ending(folder: Path, phase: str, step: int, error: BaseException | None) -> str:
    """A message about how a run ended."""
    if error is not None:
        return f"run {folder} failed: {error}"
    if phase == "stopped":
        return f"run {folder} was stopped and saved at step {step:,}. Resume: {resume_hint(folder)}"
    return f'run {folder} was done already; its model: gs.load("{folder}")'


def resume_hint(folder: Path, checkpoint: str = "") -> str:
    """How to resume a run: a command if it was started from the command line, else Python code.

    `checkpoint` is the name of an earlier one, such as step-600.
    """
    name = f"{folder}@{checkpoint}" if checkpoint else f"{folder}"
    if (folder / run_folder.CONFIG).is_file():
        return f"gearshift train --resume {name}"
    return f'trainer.fit(model, train, valid, resume="{name}")'


def resume_elsewhere_hint(folder: Path) -> str:
    """The same, with another folder for rows on disk."""
    if (folder / run_folder.CONFIG).is_file():
        return f"{resume_hint(folder)} storage.path=/other/folder"
    return f'{resume_hint(folder)}, with gs.WorkerSettings(storage="/other/folder")'


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
