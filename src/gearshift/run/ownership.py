"""Ownership of a run: one process at a time, also between machines that share the run's folder.

    lease/3.json             claim number 3: its process and session; its mtime is the heartbeat
    lease/3.released         the same claim after its owner gave it up
    lease/keep-shard-0.json  another process of the session, which keeps the lease while the owner restarts

The claim with the highest number, the fencing number, owns the run. Why this is safe:

- A claim is made by a hard link to a finished file: of several claimants of one number exactly one succeeds. A claimant
  then lists the folder again; if it finds a higher number, it has lost.
- The highest claim is never removed, only the lower ones are. So the highest number never falls, and an owner that
  finds a higher one than its own knows that it was replaced (it is fenced), however long it was frozen.
- An owner checks the folder before each important write. It may be frozen between the check and the write;
docs/adr/0017-ownership-lease.md explains the remaining risk.

The owner sets the mtime of its claim every two seconds, which needs no disk space. A reader watches whether the mtime
changes while its own monotonic clock advances; it never compares an mtime with its own time. On the owner's machine,
its pid and start time show at once whether it lives.

A session is everything that one `train` or `--resume` started, whichever of its processes owns the run: a restarted
coordinator takes over from its predecessor at once. Does not depend on torch, run.json or Ray.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gearshift.errors import UserError
from gearshift.run import process_identity
from gearshift.run.ownership_files import (
    FOLDER,
    OLD_LOCK,
    Holder,
    link_claim,
    newest_claim,
    number_of,
    read_holder,
    remove_older,
    write_whole,
)
from gearshift.run.ownership_files import current as current
from gearshift.run.ownership_files import keepers as keepers

BEAT_SECONDS = 2.0
# An owner whose process cannot be seen counts as dead after this long without a heartbeat, by the reader's clock.
LAPSE_SECONDS = 30.0


class Fenced(UserError):
    """Another session owns the run: this process must write nothing more."""


def claim(
    folder: Path, *, session: str | None = None, notify: Callable[[str], None] = lambda sentence: None
) -> OwnershipLease:
    """Makes this process the owner, or raises a `UserError` that names the owner.

    A member of the owning `session` takes over at once. `notify` gets a message if the claim has to wait.
    """
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    while True:
        owner = current(folder)
        same = owner is not None and session is not None and owner.session == session
        if same and owner is not None and owner.released:
            raise Fenced(f"run {folder.name} has ended: a restarted process of it has nothing to do")
        if owner is not None and not owner.released and not same:
            _refuse_if_alive(folder, owner, notify)
        before = _seconds_until_now(owner) if same and owner is not None else 0.0
        number = 1 if owner is None else owner.fence + 1
        new = session or secrets.token_hex(8)
        if link_claim(place, number, new, before):
            remove_older(place, number, new)
            (folder / OLD_LOCK).unlink(missing_ok=True)
            mine = _held[_key(folder)] = OwnershipLease(folder, number, new, before)
            mine.gap = max(0.0, time.time() - owner.beat / 1e9) if owner else 0.0
            return mine


def held(folder: Path) -> OwnershipLease | None:
    """The lease that this process claimed, whether or not it was fenced since."""
    return _held.get(_key(folder))


def check(folder: Path) -> None:
    """Called before a write: raises `Fenced` if this process owned the run and no longer does."""
    lease = held(folder)
    if lease is not None:
        lease.check()


_held: dict[str, OwnershipLease] = {}


def _key(folder: Path) -> str:
    return os.path.realpath(folder)


class OwnershipLease:
    """This process's claim. A thread renews it until it is released or fenced."""

    def __init__(self, folder: Path, fence: int, session: str, seconds_before: float) -> None:
        self.folder, self.fence, self.session = folder, fence, session
        self._place, self._seconds_before = (folder / FOLDER).absolute(), seconds_before
        self._since = time.monotonic()
        self.lost = ""  # the message that names the new owner
        self.gap = 0.0  # seconds from the previous owner's last heartbeat to this claim; only for reports
        self._heart = HeartbeatThread(self._claim, self._look)

    @property
    def seconds(self) -> float:
        """Wall time of the session, including the time before this process owned the run."""
        return self._seconds_before + time.monotonic() - self._since

    @property
    def seconds_without_owner(self) -> float:
        """Seconds since the previous owner's last heartbeat."""
        return self.gap + time.monotonic() - self._since

    def check(self) -> None:
        """Raises `Fenced` unless this claim is still the highest. It lists the folder to bypass cached names."""
        newest = newest_claim(self._place)
        if newest is not None and not self._is_mine(newest):
            self._lose(newest)
        if self.lost:
            raise Fenced(self.lost)

    def regain(self) -> OwnershipLease:
        """Makes this process the owner again if its session still owns the run; else raises `Fenced`."""
        owner = current(self.folder)
        if owner is None or owner.fence == self.fence:
            self.check()
            return self
        if owner.session != self.session or owner.released:
            self._lose(owner.path)
            raise Fenced(self.lost)
        self._heart.stop()
        return claim(self.folder, session=self.session)

    def release(self) -> None:
        """Releases the lease, so that others may claim the run at once. A fenced owner has nothing to release."""
        self._heart.stop()
        with contextlib.suppress(OSError):
            self._claim.rename(self._claim.with_suffix(".released"))
        if _held.get(_key(self.folder)) is self:
            del _held[_key(self.folder)]

    def _is_mine(self, newest: Path) -> bool:
        """Whether the newest claim is ours. The number alone does not prove it: the folder may have been removed."""
        number = number_of(newest)
        return number < self.fence or (
            number == self.fence and read_holder(newest).session in ("", self.session)
        )

    @property
    def _claim(self) -> Path:
        return self._place / f"{self.fence}.json"

    def _look(self) -> bool:
        """Called with each heartbeat; returns whether to continue. Here a frozen owner notices that it was fenced."""
        with contextlib.suppress(OSError):  # the folder cannot be reached: the next write will fail
            newest = newest_claim(self._place)
            if newest is not None and number_of(newest) > self.fence:
                self._lose(newest)
                return False
        return True

    def _lose(self, newest: Path) -> None:
        by = read_holder(newest)
        self.lost = (
            f"run {self.folder.name} was taken over by process {by.pid} on {by.host} (lease {by.fence}; this process "
            f"had {self.fence}): this process has stopped and writes nothing more"
        )


class HeartbeatThread(threading.Thread):
    """Updates the mtime of a file every two seconds while `look` returns True."""

    def __init__(self, path: Path, look: Callable[[], bool] = lambda: True) -> None:
        super().__init__(name="gearshift-heartbeat", daemon=True)
        self._path, self._look, self._stopped = path, look, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stopped.wait(BEAT_SECONDS) and self._look():
            with contextlib.suppress(OSError):  # unreachable for now; a write will fail
                os.utime(self._path, ns=(time.time_ns(), time.time_ns()))

    def stop(self) -> None:
        """Stops the heartbeats. Does not wait for a file system that hangs."""
        self._stopped.set()
        if threading.current_thread() is not self:
            self.join(BEAT_SECONDS)


class LeaseKeeper:
    """Keeps the lease for a session on behalf of a process that is not the owner, as long as that process lives."""

    def __init__(
        self, folder: Path, session: str, name: str, process: Mapping[str, Any] | None = None
    ) -> None:
        """For this process, with heartbeats; or for another `process` of this machine, which is checked by its pid."""
        is_this_process = process is None
        self.path = (folder / FOLDER).absolute() / f"keep-{name}.json"
        content = {
            "session": session,
            "process": process_identity.this_process() if is_this_process else process,
            "beats": is_this_process,
        }
        owner = current(folder)
        write_whole(self.path, {**content, "fence": owner.fence if owner else 0})
        self._heart = HeartbeatThread(self.path) if is_this_process else None

    def close(self) -> None:
        if self._heart is not None:
            self._heart.stop()
        self.path.unlink(missing_ok=True)


class HeartbeatWatcher:
    """Watches the heartbeats of other processes: the time since one of their files changed, on our monotonic clock."""

    def __init__(self) -> None:
        self._beats: dict[Path, int] = {}
        self._changed = time.monotonic()
        self.heard = False  # whether a heartbeat was seen since this object was created

    def look(self, holders: list[Holder]) -> float:
        """Seconds since a change was seen.

        A file that exists when we start proves nothing. A file that appears later was just created: the timer restarts,
        but only its next heartbeat proves that its process is alive.
        """
        began = bool(self._beats)
        for holder in holders:
            if began and holder.path not in self._beats:
                self._changed = time.monotonic()
            known = self._beats.get(holder.path)
            if known is not None and known != holder.beat:
                self._changed, self.heard = time.monotonic(), True
            self._beats[holder.path] = holder.beat
        return time.monotonic() - self._changed


# ---- judging ----


def is_alive(folder: Path, owner: Holder) -> bool | None:
    """Whether the owner or a keeper of its session lives; None if only heartbeats can show it."""
    verdicts = [process_identity.lives(one.process) for one in (owner, *keepers(folder, owner.session))]
    if any(verdicts):
        return True
    return None if None in verdicts else False


def _refuse_if_alive(folder: Path, owner: Holder, notify: Callable[[str], None]) -> None:
    alive = is_alive(folder, owner)
    if alive is None and owner.beats:
        alive = _beats_on(folder, owner, notify)
    if alive:
        raise UserError(_refusal(folder, owner))


def _beats_on(folder: Path, owner: Holder, notify: Callable[[str], None]) -> bool:
    """Watches for longer than a live owner can be silent. Ends early if the lease changes hands."""
    notify(f"watching for {LAPSE_SECONDS:g} s whether {folder.name} still runs on {owner.host} ...")
    pulse = HeartbeatWatcher()
    while True:
        now = current(folder)
        if now is None or now.fence != owner.fence or now.released:
            return False  # the caller checks again
        quiet = pulse.look([now, *keepers(folder, owner.session)])
        if pulse.heard:
            return True
        if quiet > LAPSE_SECONDS:
            return False
        time.sleep(BEAT_SECONDS / 8)


def _refusal(folder: Path, owner: Holder) -> str:
    name, stop = folder.name, f"gearshift stop {folder}"
    here = process_identity.lives(owner.process)
    if here and process_identity.is_stopped(owner.pid):
        return (
            f"run {name} is suspended, not dead: process {owner.pid} was stopped by a signal. Let it continue "
            f"(kill -CONT {owner.pid}) or end it (kill -9 {owner.pid}) before resuming it"
        )
    if here:
        return f"run {name} is still running (process {owner.pid}); stop it before resuming it: {stop}"
    if here is False:
        return (
            f"run {name} is recovering: its owner, process {owner.pid}, died and is being restarted by other "
            f"processes of the run; wait until it has recovered, or stop it before resuming it: {stop}"
        )
    return (
        f"run {name} is still running on {owner.host} (process {owner.pid}, its heartbeat is still advancing); stop "
        f"it there before resuming it: {stop}"
    )


def _seconds_until_now(owner: Holder) -> float:
    """Seconds of the session until now. It trusts the clocks of two machines, so it is used only for reports."""
    return owner.seconds_before + max(0.0, time.time() - owner.claimed)
