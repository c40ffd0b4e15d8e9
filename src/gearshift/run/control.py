"""Control of a live run from another process of the same machine: ask, and it answers.

    control.sock    a Unix-domain socket in the run folder; a link to one in a private folder where the path is too
                    long for a socket, or the file system has none
    control.key     what a request must carry; only the run's user can read it (mode 600)

One connection is one request: a JSON line each way, of bounded size and time. Both files go when the run ends; a run
that was killed leaves them behind, so whoever asks looks first whether its process lives. A run that cannot be
controlled trains all the same. Knows no torch: what the run does is behind `Controlled`.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import math
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from gearshift.errors import UserError
from gearshift.run import folder as run_folder
from gearshift.run import ownership, temporary_folders

SOCKET, KEY = "control.sock", "control.key"
MAX_BYTES = 64 << 10  # of a request
MAX_ANSWER = 16 << 20
NEWS = 20_000  # characters of messages in one answer; the rest is in the next
READ_SECONDS = 10.0  # for the whole of a request
ANSWER_SECONDS = 75.0  # a switch may wait a minute for a worker
AT_ONCE = 8  # connections


@dataclass(frozen=True)
class Status:
    """Where a run stands, for whoever watches."""

    step: int
    examples: int
    total: int
    seconds: float
    examples_per_second: float
    loss: float
    auc_so_far: float
    day: str | None
    phase: str  # starting, training, evaluating, saving, done, stopped or failed
    seconds_since_step: float = math.nan
    checkpoint_age: float = math.nan  # seconds since the newest was written
    failed_saves: int = 0
    missing_workers: int = 0  # that should be running but are not
    wall_seconds: float = math.nan  # of the whole run, with the sessions before a resume
    save_retried: bool = (
        False  # a save that the run cannot end without failed, and is tried again until somebody gives it up
    )


class NotLive(UserError):
    """There is nobody to answer: the run starts or ends just now, or is over."""


class Controlled(Protocol):
    """What a run lets others ask of it."""

    @property
    def header(self) -> Sequence[str]: ...
    @property
    def messages(self) -> Sequence[str]: ...
    def status(self) -> Status: ...
    @property
    def processes(self) -> Callable[[], dict[str, dict[str, float]]]: ...
    def switch(self, strategy: str, *, reason: str = "", **settings: Any) -> Any: ...
    def resize(self, workers: int) -> None: ...
    def stop(self, *, give_up: bool = False) -> None: ...
    def checkpoint(self) -> None: ...
    def tell(self, sentence: str) -> None: ...


# ---- in the run ----


class ControlServer:
    """Answers requests in threads of its own, until `close`."""

    def __init__(self, folder: Path, run: Controlled) -> None:
        self._folder, self._run = folder, run
        self._key = secrets.token_urlsafe(32)
        self._places = threading.BoundedSemaphore(AT_ONCE)
        ownership.check(folder)  # the socket of another owner is not ours to replace
        remove(folder)
        self._socket = _bound(folder / SOCKET)
        _write_key(folder / KEY, self._key)
        self._socket.listen(AT_ONCE)
        threading.Thread(target=self._accept, name="gearshift-control", daemon=True).start()

    def close(self) -> None:
        """Takes no more requests; one that is being answered may still get its answer."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for a connection
        self._socket.close()
        with contextlib.suppress(OSError):
            if (self._folder / KEY).read_text() == self._key:  # else another process has taken the run over
                remove(self._folder)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):  # whoever asked is gone
                answer = self._answer(_receive(connection, READ_SECONDS))
                connection.settimeout(READ_SECONDS)
                connection.sendall(answer)
        finally:
            self._places.release()

    def _answer(self, line: bytes) -> bytes:
        try:
            return _line(_plain({"done": self._do(_request(line, self._key))}))
        except (UserError, TimeoutError) as error:
            return _line({"error": str(error)})
        except Exception as error:  # a fault in answering must not end the training
            return _line({"error": f"internal error: {type(error).__name__}: {error}"})

    def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        run = self._run
        match request:
            case {"do": "status"}:
                return asdict(run.status())
            case {"do": "metrics"}:
                return {"status": asdict(run.status()), "processes": run.processes()}
            case {"do": "watch", "seen": int(seen), "process": int(process)}:
                return _news(run, seen if process == os.getpid() else 0)
            case {
                "do": "switch",
                "strategy": str(strategy),
                "settings": dict(settings),
                "reason": str(reason),
            }:
                for taken in ("strategy", "reason", "timeout", "self"):
                    if taken in settings:
                        raise UserError(f"strategy {strategy} has no setting `{taken}`")
                return asdict(run.switch(strategy, reason=reason, **settings))
            case {"do": "resize", "workers": int(workers)}:
                run.resize(workers)
                return asdict(run.status())
            case {"do": "stop"}:
                give_up = run.status().save_retried  # decided once: what is told is what is done
                what = "giving up the save that fails" if give_up else "stopping after this step"
                run.tell(f"asked to stop from another process; {what}")
                run.stop(give_up=give_up)
                return asdict(run.status())
            case {"do": "checkpoint"}:
                run.checkpoint()
                return asdict(run.status())
        raise UserError("this run does not know the request; is it of another version of Gearshift?")


def _news(run: Controlled, seen: int) -> dict[str, Any]:
    """Where the run stands, and what it told since so many messages."""
    fresh, room = list[str](), NEWS
    for message in run.messages[max(0, seen) :]:
        room -= len(message)
        if room < 0 and fresh:
            break
        fresh.append(message[:NEWS])
    status = _plain(asdict(run.status()))
    return {"process": os.getpid(), "status": status, "header": list(run.header), "messages": fresh}


def serve(folder: Path, run: Controlled) -> Callable[[], None]:
    """Makes a run controllable as far as the machine lets it; returns what ends it."""
    try:
        return ControlServer(folder, run).close
    except OSError as error:
        run.tell(f"`switch` and `stop` from other processes will not reach this run: {error}")
        return lambda: None


def _bound(path: Path) -> socket.socket:
    try:
        return _bound_at(path)
    except OSError:  # the path is longer than a socket's may be, or the file system has no sockets
        private = temporary_folders.make(temporary_folders.CONTROL, path.parent)
        try:
            made = _bound_at(private / SOCKET)
            path.symlink_to(private / SOCKET)
        except OSError:
            shutil.rmtree(private, ignore_errors=True)
            raise
        return made


def _bound_at(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(str(path))
        path.chmod(0o600)  # before it listens
    except OSError:
        made.close()
        raise
    return made


def _write_key(path: Path, key: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(key)


def remove(folder: Path) -> None:
    """The files of this run, or what a process that was killed left of it."""
    path = folder / SOCKET
    with contextlib.suppress(OSError):
        target = path.readlink()
        if target.parent.name.startswith(temporary_folders.CONTROL):
            shutil.rmtree(target.parent, ignore_errors=True)
    for leftover in (path, folder / KEY):
        leftover.unlink(missing_ok=True)


def _request(line: bytes, key: str) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise UserError("the request is not a line of JSON")
    given = said.pop("key", "")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(errors="replace"), key.encode()):
        raise UserError("the key is wrong; it is in the run's control.key")
    return said


# ---- on both sides ----


def _line(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode() + b"\n"


def _plain(said: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no infinity: what is not known is null."""
    return {key: _plain_value(value) for key, value in said.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, dict):
        return _plain(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _receive(connection: socket.socket, seconds: float, most: int = MAX_BYTES) -> bytes:
    """Up to the end of the line; a sender that is slow or says too much is given up."""
    until, received = time.monotonic() + seconds, b""
    while not received.endswith(b"\n"):
        connection.settimeout(max(0.001, until - time.monotonic()))
        more = connection.recv(MAX_BYTES)
        received += more
        if not more or time.monotonic() > until:
            break
        if len(received) > most:
            raise OSError("the line is too long")
    return received


# ---- whoever asks ----


def ask(folder: Path, command: str, **what: Any) -> dict[str, Any]:
    """What the run answered; its refusal is a `UserError`, and so is a run that does not live."""
    check_live(folder, command)
    try:
        key = (folder / KEY).read_text()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(READ_SECONDS)
            connection.connect(os.path.realpath(folder / SOCKET))
            connection.sendall(_line({"key": key, "do": command, **what}))
            said = _receive(connection, ANSWER_SECONDS, MAX_ANSWER)
    except PermissionError:
        raise UserError(f"run {folder.name} belongs to another user; `{command}` is for its own") from None
    except TimeoutError:
        raise UserError(f"run {folder.name} does not answer; is its process halted?") from None
    except OSError:  # no socket, or one that nobody listens to
        check_live(folder, command)  # it may have ended meanwhile
        raise NotLive(
            f"run {folder.name} takes no requests: it starts or ends just now, or could not make {SOCKET}; try again"
        ) from None
    if not said.endswith(b"\n"):
        raise NotLive(f"run {folder.name} gave no answer to `{command}`: it ended, or is too busy; try again")
    answer: dict[str, Any] = json.loads(said)
    if "error" in answer:
        raise UserError(answer["error"])
    done: dict[str, Any] = answer["done"]
    return done


def status_of(said: dict[str, Any]) -> Status:
    """From an answer: what is not known yet is NaN again."""
    unknown = {key: math.nan for key, value in said.items() if value is None and key != "day"}
    return Status(**{**said, **unknown})


def check_live(folder: Path, command: str) -> None:
    record = run_folder.read(folder)
    if record.standing.answers:
        return
    if record.state == "unknown":
        raise UserError(f"run {record.name} was {record.reason}; give `{command}` there")
    if record.state == "recovering":
        since, what = clock(record.standing.since), record.standing.what
        raise NotLive(f"run {record.name} is recovering{since}: {what}; give `{command}` again in a minute")
    if record.is_live:
        raise UserError(f"run {record.name} is {record.state}, and {record.reason}; give `{command}` there")
    how = {"done": ", exit 0", "failed": f": {record.reason}" if record.reason else ""}.get(record.state, "")
    at = clock(record.ended).removeprefix(" since")
    raise NotLive(f"run {record.name} is not running ({record.state}{at}{how}); `{command}` needs a live run")


def clock(since: float | None) -> str:
    """` since 03:12`, or nothing if that is not known."""
    return time.strftime(" since %H:%M", time.localtime(since)) if since else ""
