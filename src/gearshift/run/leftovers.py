"""Finds and removes what dead runs of this user left behind on this machine; nothing else is touched.

    gs-*, gearshift-control-*     in the folder for temporary files: sockets, and the Ray cluster of one run
    .*.part, .*.old               in a run's checkpoints: partially written or partially replaced checkpoints
    control.sock, control.key     of a run whose process was killed
    .NAME.PID, lease/.*           files that were being written
    rows-*                        rows on disk, below storage.path (embedding/cold_tier.py)

A temporary folder records which run it belongs to and which process made it (temporary_folders.py). It is stale if that
process is dead and its session of the run has ended. While the run's folder cannot be read (for example a share that is
not mounted), folders that processes still use are left alone. Folders of versions without that file are stale if no
process of this machine names them in its command line or as the path of a socket. Ray's processes are in the session of
the process that the file names, and are ended with it. Does not depend on torch or Ray.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from gearshift.embedding import cold_tier
from gearshift.errors import UserError
from gearshift.run import control_socket, ownership, process_identity, temporary_folders
from gearshift.run import folder as run_folder
from gearshift.run.ownership_files import FOLDER
from gearshift.run.polling import seen
from gearshift.run.temporary_folders import OwnerMark

PREFIXES = (temporary_folders.SOCKETS, temporary_folders.CONTROL)
YOUNG_SECONDS = 60.0  # a newer folder without the file may still be in creation

EndSession = Callable[[int | None, Path], None]  # ends all processes of a cluster and removes its folder


@dataclass(frozen=True)
class Leftover:
    path: Path
    what: str
    remove: Callable[[], None] | None  # None: it cannot be judged, and is left alone


def find(
    *roots: str | Path, end_session: EndSession, also_unmarked: bool = True, watch: float = 0.0
) -> Iterator[Leftover]:
    """The leftovers of runs below `roots`, and of all runs in the folder for temporary files.

    A run whose state only heartbeats can show is watched for `watch` seconds.
    """
    for root in roots:
        for path in sorted(Path(root).glob(f"*/{run_folder.RUN}")):
            if not path.parent.is_symlink():
                yield from of_run(path.parent, watch)
    yield from _rows(roots)
    for place in sorted(Path(tempfile.gettempdir()).iterdir()):
        if place.name.startswith(PREFIXES) and _is_our_folder(place):
            if marked := temporary_folders.mark_of(place):
                yield from _of_marked(place, marked, end_session, watch)
            elif also_unmarked and _is_old(place) and not _is_named(place):
                yield Leftover(place, "left by a run that is gone", lambda place=place: _remove(place))  # type: ignore[misc]


def clear(*roots: str | Path, end_session: EndSession) -> None:
    """Called when another run starts. What cannot be removed stays, and does not keep the run from starting."""
    with contextlib.suppress(OSError):
        for leftover in find(*roots, end_session=end_session, also_unmarked=False):
            if leftover.remove is not None:
                leftover.remove()


def of_run(folder: Path, watch: float = 0.0) -> Iterator[Leftover]:
    """The leftovers of one run, if it has ended."""
    checkpoints = folder / run_folder.CHECKPOINTS
    halves = [*checkpoints.glob(".*.part"), *checkpoints.glob(".*.old")]
    unfinished = [*folder.glob(".*.[0-9]*"), *checkpoints.glob(".*.[0-9]*"), *(folder / FOLDER).glob(".*")]
    sockets = [
        path
        for path in (folder / control_socket.KEY, folder / control_socket.SOCKET)
        if os.path.lexists(path)
    ]
    if not (halves or unfinished or sockets) or not _is_over(folder, watch):
        return
    if halves:
        names = ", ".join(path.name for path in halves)
        yield Leftover(
            checkpoints, f"partially written: {names}", lambda: run_folder.clear_leftovers(checkpoints)
        )
    if sockets:
        yield Leftover(sockets[-1], "socket of a dead run", lambda: control_socket.remove(folder))
    for path in unfinished:
        if path.is_symlink() or path.is_file():
            yield Leftover(path, "a file that was being written", path.unlink)


def _rows(roots: Iterable[str | Path]) -> Iterator[Leftover]:
    configs = [config for root in roots for config in sorted(Path(root).glob(f"*/{run_folder.CONFIG}"))]
    for place in _places_of_rows(roots, configs):
        for folder in cold_tier.abandoned(place):
            what = "rows on disk of a process that is gone"
            yield Leftover(folder, what, lambda folder=folder: cold_tier.remove(folder))  # type: ignore[misc]


def remove_rows(run: Path) -> None:
    """Removes the rows on disk of dead processes of this machine, wherever this run may have some."""
    for place in _places_of_rows([run.parent], [run / run_folder.CONFIG]):
        cold_tier.remove_abandoned(place)


def _places_of_rows(roots: Iterable[str | Path], configs: Iterable[Path]) -> list[Path]:
    places = [Path(root) / cold_tier.ROWS_FOLDER for root in roots] + [cold_tier.machine_folder()]
    return list(dict.fromkeys([*places, *filter(None, map(_storage_path, configs))]))


def _storage_path(config: Path) -> Path | None:
    """Where that run keeps rows on disk, if its config says so."""
    try:
        path = yaml.safe_load(config.read_text())["storage"]["path"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return None
    return Path(str(path))


def _of_marked(place: Path, marked: OwnerMark, end_session: EndSession, watch: float) -> Iterator[Leftover]:
    if process_identity.lives(marked.process) is not False:
        return
    is_over = _is_over(marked.run, watch, marked.session)
    if is_over is None and (process_identity.lives(marked.leader) or _is_named(place)):
        yield Leftover(place, _not_judged(marked), None)
    elif is_over is not False:
        yield _of_dead(place, marked, end_session)


def _not_judged(marked: OwnerMark) -> str:
    who = "sockets" if marked.leader is None else f"Ray cluster (process {marked.leader['pid']})"
    return f"{who} of run {marked.run.name}: processes use it, and {marked.run} cannot be read"


def _of_dead(place: Path, marked: OwnerMark, end_session: EndSession) -> Leftover:
    what = f"of run {marked.run.name}, which has ended"
    if marked.leader is not None and process_identity.lives(marked.leader):
        pid = int(marked.leader["pid"])
        return Leftover(place, f"Ray cluster (process {pid}) {what}", lambda: end_session(pid, place))
    if marked.leader is not None:  # its pid may have been reused
        return Leftover(place, f"what is left of a Ray cluster {what}", lambda: end_session(None, place))
    return Leftover(place, f"temporary folder {what}", lambda: _remove(place))


def _is_over(folder: Path, watch: float, session: str | None = None) -> bool | None:
    """Whether the run, or this session of it, has ended; None if its folder cannot be read. If in doubt, False."""
    try:
        owner = ownership.current(folder)
        record = run_folder.read(folder)
    except (UserError, OSError):
        return None
    if session is not None and owner is not None and owner.session != session:
        return True
    if record.needs_heartbeats:
        (record,) = seen([record], watch)
    return not record.is_live and record.state != "unknown"


def _is_our_folder(place: Path) -> bool:
    with contextlib.suppress(OSError):
        status = place.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return False


def _is_old(place: Path) -> bool:
    """Whether the folder is old and made by us: `mkdtemp` adds eight characters and sets mode 700."""
    made = re.fullmatch(rf"({'|'.join(PREFIXES)})[a-z0-9_]{{8}}", place.name) is not None
    status = place.lstat()
    return made and stat.S_IMODE(status.st_mode) == 0o700 and time.time() - status.st_mtime > YOUNG_SECONDS


def _is_named(place: Path) -> bool:
    """Whether a process of this machine names it, in its command line or as the path of a socket."""
    name = str(place).encode()
    sources = [*Path("/proc").glob("[0-9]*/cmdline"), Path("/proc/net/unix")]
    for source in sources:
        with contextlib.suppress(OSError):
            if name in source.read_bytes():
                return True
    return not Path("/proc/net/unix").exists()


def _remove(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
