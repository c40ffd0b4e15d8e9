"""The files of a run's lease, written so that only one process succeeds. The rules are in ownership.py.

A claim is a hard link to a file that was written before: it appears atomically, and of several claimants of one number
exactly one succeeds, even on NFS. On a file system without hard links, an exclusive create does the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gearshift.errors import naming
from gearshift.run import process_identity

FOLDER = "lease"
OLD_LOCK = "run.lock"  # lock file of runs from versions without a lease


@dataclass(frozen=True)
class Holder:
    """A file of the lease: the claim of an owner, or a process that keeps the lease for its session."""

    path: Path
    session: str
    process: Mapping[str, Any] | None
    beat: int  # mtime in ns, by the clock of its writer
    beats: bool = True  # False: it has no heartbeat, and is judged by its process alone
    fence: int = 0
    released: bool = False
    claimed: float = 0.0  # epoch seconds, by the clock of its writer
    seconds_before: float = 0.0  # seconds of the session before this claim

    @property
    def host(self) -> str:
        return str((self.process or {}).get("host", "another machine"))

    @property
    def pid(self) -> Any:
        return (self.process or {}).get("pid", "?")


def current(folder: Path) -> Holder | None:
    """The claim that owns the run, released or not; None if nobody ever claimed it."""
    newest = newest_claim(folder / FOLDER)
    return _read_old_lock(folder) if newest is None else read_holder(newest)


def keepers(folder: Path, session: str) -> list[Holder]:
    """The processes that keep this session's lease while its owner restarts."""
    holders = [read_holder(path) for path in sorted((folder / FOLDER).glob("keep-*.json"))]
    return [keeper for keeper in holders if keeper.session == session]


def newest_claim(place: Path) -> Path | None:
    claims = [path for path in place.iterdir() if _is_claim(path.name)] if place.is_dir() else []
    return max(claims, key=number_of, default=None)


def _is_claim(name: str) -> bool:
    return re.fullmatch(r"\d+\.(json|released)", name) is not None


def number_of(path: Path) -> int:
    return int(path.stem)


def read_holder(path: Path) -> Holder:
    """A claim that cannot be read, or is not written yet, has an unknown owner: only its heartbeat counts."""
    content: dict[str, Any] = {}
    beat = 0
    with (
        contextlib.suppress(OSError, ValueError),
        path.open() as file,
    ):  # opening the file makes NFS query the server
        beat = os.fstat(file.fileno()).st_mtime_ns
        content = dict(json.load(file))
    fence = number_of(path) if _is_claim(path.name) else int(content.get("fence", 0))
    return Holder(
        path,
        str(content.get("session", "")),
        content.get("process"),
        beat,
        bool(content.get("beats", True)),
        fence,
        path.suffix == ".released",
        float(content.get("claimed", 0.0)),
        float(content.get("seconds_before", 0.0)),
    )


def _read_old_lock(folder: Path) -> Holder | None:
    """Reads an old run.lock: it is valid while its process lives, and has no heartbeat."""
    path = folder / OLD_LOCK
    with contextlib.suppress(OSError, ValueError):
        return Holder(path, "", dict(json.loads(path.read_text())), 0, beats=False)
    return None


def link_claim(place: Path, number: int, session: str, seconds_before: float) -> bool:
    """Whether this process now has the highest claim."""
    content = {
        "session": session,
        "process": process_identity.this_process(),
        "claimed": time.time(),
        "seconds_before": seconds_before,
    }
    temporary = place / f".{number}.{secrets.token_hex(8)}"
    write_whole(temporary, content)
    path = place / f"{number}.json"
    try:
        won = _linked(temporary, path, content)
    finally:
        temporary.unlink(missing_ok=True)
    if not won:
        return False
    # Others may have claimed and released this number while we slept. The order matters: a process that removes the
    # released claim has made a later one before, and the listing shows it.
    released = path.with_suffix(".released").exists()
    newest = newest_claim(place)
    if released or (newest is not None and number_of(newest) > number):
        path.unlink(missing_ok=True)
        return False
    return True


def _linked(temporary: Path, path: Path, content: Mapping[str, Any]) -> bool:
    try:
        os.link(temporary, path)
        return True
    except FileExistsError:
        return temporary.stat().st_nlink == 2  # NFS may lose the answer and then reject its own retry
    except OSError:  # no hard links here: with an exclusive create also exactly one process succeeds
        try:
            with naming(path), path.open("x") as file:
                json.dump(content, file)
            return True
        except FileExistsError:
            return False


def write_whole(path: Path, content: Mapping[str, Any]) -> None:
    """Writes the file atomically."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with naming(path), temporary.open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_older(place: Path, number: int, session: str) -> None:
    """Removes lower claims, and keepers of earlier sessions."""
    for path in list(place.iterdir()):
        is_claim, keeps = _is_claim(path.name), path.name.startswith("keep-")
        if not (is_claim or keeps) or (holder := read_holder(path)).fence >= number:
            continue
        if is_claim or holder.session != session:
            path.unlink(missing_ok=True)
