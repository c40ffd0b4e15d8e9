"""Waits for the moment of a case and does the harm: signals to processes, troubles of the folder, second owners."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from tests.matrix import processes, scenarios
from tests.matrix.live_run import START_SECONDS, Command, LiveRun
from tests.matrix.scenarios import FREEZE, Case

STEPS_BEFORE = 15  # that a run has made before it is harmed
TROUBLE_SECONDS = 12.0  # of a full disk or a read-only folder that does not last for ever
DISK_MEGABYTES = 80
OTHER_STRATEGY = {"sync": "gba", "gba": "easgd", "easgd": "sync"}
OTHER_WORKERS = {"sync": 4, "gba": 4, "easgd": 2}
ELSEWHERE = ("unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$0" "$@"')
COMMAND_SECONDS = 90.0  # in which a command must be answered or refused


def _nothing() -> None:
    pass


@dataclass
class Injected:
    """What was done, and when."""

    at: float  # epoch seconds
    in_time: bool  # the moment was not over yet
    undo: Callable[[], None] = _nothing  # ends the harm, if it still lasts
    victims: list[int] = field(default_factory=list)  # processes that got a signal
    commands: list[Command] = field(default_factory=list)  # what was asked for at that moment
    frozen_for: float = 0.0  # seconds after which one of the victims was still seen frozen

    def look_at_victims(self) -> None:
        if any(processes.state(pid) == "T" for pid in self.victims):
            self.frozen_for = time.time() - self.at


def inject(run: LiveRun, case: Case) -> Injected:
    run.wait_for_folder()
    commands = ready_commands(run, case)  # they take seconds to start
    run.wait_until(lambda now: now.step >= STEPS_BEFORE, START_SECONDS, "the first steps")
    if case.target == scenarios.OWNER:
        return _second_owners(run, case, commands)
    victims = targets(run, case.target) if case.is_signal else []
    still = _wait_for(run, case, commands)
    at = time.time()
    undo = _signal(victims, FREEZE[case.fault]) if case.is_signal else _trouble(run, case)
    return Injected(at, still(), undo, victims, commands)


def ready_commands(run: LiveRun, case: Case) -> list[Command]:
    """What the operator, or a second one, will ask for at the moment of the fault."""
    if case.moment == scenarios.SWITCH:
        return [Command(run, "switch", "last", OTHER_STRATEGY[case.strategy])]
    if case.moment == scenarios.RESIZE:
        return [Command(run, "resize", "last", "--workers", str(OTHER_WORKERS[case.strategy]))]
    if case.target == scenarios.OWNER:
        before = ELSEWHERE if case.fault == scenarios.OTHER_HOST else ()
        count = 3 if case.fault == scenarios.WHILE_RESTARTING else 1
        return [Command(run, "train", "--resume", str(run.folder), before=before) for _ in range(count)]
    return []


# ---- moments ----


def _wait_for(run: LiveRun, case: Case, commands: list[Command]) -> Callable[[], bool]:
    """Returns at that moment, with what tells whether it still lasts."""
    match case.moment:
        case scenarios.CHECKPOINT:
            return _during_checkpoint(run)
        case scenarios.SWITCH | scenarios.RESIZE:
            (command,) = commands
            command.go()
            time.sleep(0.03)  # it has reached the coordinator, which answers when the change is made
            return lambda: not command.over
        case scenarios.EVALUATION:
            run.wait_until(lambda now: now.examples >= now.total, START_SECONDS, "the final evaluation")
            return lambda: "ended" not in run.record()
        case scenarios.THE_END:
            run.wait_until(lambda now: now.examples >= 0.7 * now.total, START_SECONDS, "the last steps")
            return lambda: run.samples[-1].examples < run.samples[-1].total
    return lambda: run.driver.poll() is None


def _during_checkpoint(run: LiveRun) -> Callable[[], bool]:
    def writing() -> bool:
        return any((run.folder / "checkpoints").glob(".*.part"))

    run.ask("checkpoint")
    end = time.monotonic() + 20
    while not writing() and time.monotonic() < end:
        time.sleep(0.001)
    return writing


# ---- signals ----


def targets(run: LiveRun, target: str) -> list[int]:
    if target == "driver":
        return [run.driver.pid]
    role, count = {"two workers": ("worker", 2), "both shards": ("shard", 2)}.get(target, (target, 1))
    found = run.roles()[role]
    assert len(found) >= count, f"{target}: found only {found}"
    return found[:count]


def _signal(victims: list[int], frozen: float) -> Callable[[], None]:
    if frozen == 0:
        processes.send(victims, signal.SIGKILL)
        return _nothing
    processes.send(victims, signal.SIGSTOP)
    if frozen < inf:
        thaw = threading.Timer(frozen, processes.send, (victims, signal.SIGCONT))
        thaw.daemon = True
        thaw.start()
    return lambda: processes.send(victims, signal.SIGCONT)


# ---- troubles ----


def _trouble(run: LiveRun, case: Case) -> Callable[[], None]:
    match case.fault:
        case scenarios.DISK_FULL | scenarios.DISK_FULL_FOR_EVER:
            undo = fill_disk(run.work / "runs")
        case scenarios.READ_ONLY | scenarios.READ_ONLY_RESTART:
            undo = make_read_only(run.folder)
        case scenarios.VANISHED | scenarios.VANISHED_RESTART:
            undo = hide(run.folder)
        case _:
            return kill_at_each_start(run, case.target)
    if case.fault in (scenarios.READ_ONLY_RESTART, scenarios.VANISHED_RESTART):
        processes.send(_coordinator_of(run), signal.SIGKILL)
    if case.fault in (scenarios.DISK_FULL, scenarios.READ_ONLY):
        ends = threading.Timer(TROUBLE_SECONDS, undo)
        ends.daemon = True
        ends.start()
    return undo


def _coordinator_of(run: LiveRun) -> list[int]:
    """By its title, or by what is left of the folder."""
    hidden = run.folder.with_name("hidden")
    return processes.by_role(run.marker, hidden if hidden.exists() else run.folder)["coordinator"]


def fill_disk(disk: Path) -> Callable[[], None]:
    """Takes all space of a small disk, also what others free on it, until it is undone."""
    filler, freed = disk / ".filler", threading.Event()

    def fill() -> None:
        with filler.open("ab", buffering=0) as file:
            while not freed.is_set():
                for size in (1 << 20, 4096, 1):
                    with suppress(OSError):
                        while file.write(bytes(size)):
                            pass
                freed.wait(0.02)
        filler.unlink(missing_ok=True)

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()

    def free() -> None:
        freed.set()
        thread.join(10)

    return free


def make_read_only(folder: Path) -> Callable[[], None]:
    """For every file that is opened from now on: a read-only view of the folder is mounted over it."""
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    once = threading.Lock()

    def undo() -> None:
        if once.acquire(blocking=False):
            subprocess.run(["umount", "--lazy", folder], check=True)

    return undo


def hide(folder: Path) -> Callable[[], None]:
    """The folder is gone, as when a file system is unmounted."""
    hidden = folder.with_name("hidden")
    folder.rename(hidden)

    def undo() -> None:
        if hidden.exists():
            if folder.exists():  # somebody made it anew
                folder.rename(folder.with_name("made-meanwhile"))
            hidden.rename(folder)

    return undo


def kill_at_each_start(run: LiveRun, role: str) -> Callable[[], None]:
    """One process of the role, and each that is started in its place."""
    over = threading.Event()
    victims = targets(run, role)
    others = set(run.roles()[role]) - set(victims)

    def kill() -> None:
        while not over.wait(0.1):
            processes.send([pid for pid in run.roles()[role] if pid not in others], signal.SIGKILL)

    processes.send(victims, signal.SIGKILL)
    threading.Thread(target=kill, daemon=True).start()
    return over.set


# ---- second owners ----


def _second_owners(run: LiveRun, case: Case, owners: list[Command]) -> Injected:
    """They try to take over a run that lives: each must be refused."""
    victims, at = targets(run, "coordinator"), time.time()
    if case.fault == scenarios.WHILE_RESTARTING:
        processes.send(victims, signal.SIGKILL)
    for owner in owners:
        owner.go()
        time.sleep(1.0)
    return Injected(at, run.driver.poll() is None, commands=owners)
