"""Control of a live run from another process of the same machine: requests and answers.

    control.sock    a Unix-domain socket in the run folder; a link to one in a private folder where the path is too
                    long for a socket, or the file system has none
    control.key     a secret that every request must contain; only the run's user can read it (mode 600)

One connection is one request: a JSON line each way, of bounded size and time. Both files are removed when the run ends;
a killed run leaves them behind, so clients first check whether its process lives. A run that cannot be controlled still
trains. The server side, in the run, is control_socket_server.py. Does not import torch.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import socket
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from gearshift.errors import UserError
from gearshift.run import folder as run_folder
from gearshift.run import temporary_folders
from gearshift.run.status import Status

SOCKET, KEY = "control.sock", "control.key"
MAX_BYTES = 64 << 10  # of a request
MAX_ANSWER = 16 << 20
NEWS = 20_000  # characters of messages in one answer; the rest is in the next
READ_SECONDS = 10.0  # for a complete request
ANSWER_MARGIN = 15.0  # seconds for an answer, in addition to those that the request itself may take
ANSWER_SECONDS = 60.0 + ANSWER_MARGIN  # a switch may wait a minute for a worker
AT_ONCE = 8  # connections


class NotLive(UserError):
    """The run cannot answer: it is starting, ending or has ended."""


# ---- on both sides ----


def remove(folder: Path) -> None:
    """Removes the files of this run, including those that a killed process left behind."""
    path = folder / SOCKET
    with contextlib.suppress(OSError):
        target = path.readlink()
        if target.parent.name.startswith(temporary_folders.CONTROL):
            shutil.rmtree(target.parent, ignore_errors=True)
    for leftover in (path, folder / KEY):
        leftover.unlink(missing_ok=True)


def line(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def plain(content: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no infinity: unknown values are null."""
    return {key: _plain_value(value) for key, value in content.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, dict):
        return plain(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def receive(connection: socket.socket, seconds: float, most: int = MAX_BYTES) -> bytes:
    """Receives a line. Raises if the sender is too slow or the line too long."""
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


# ---- client side ----


def ask(folder: Path, command: str, *, seconds: float | None = None, **what: Any) -> dict[str, Any]:
    """The run's answer. Raises a `UserError` if it refuses or is not alive.

    The answer may take up to `seconds`.
    """
    check_live(folder, command)
    try:
        key = (folder / KEY).read_text()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(READ_SECONDS)
            connection.connect(os.path.realpath(folder / SOCKET))
            connection.sendall(line({"key": key, "do": command, **what}))
            received = receive(connection, ANSWER_SECONDS if seconds is None else seconds, MAX_ANSWER)
    except PermissionError:
        raise UserError(
            f"run {folder.name} belongs to another user; only that user can `{command}` it"
        ) from None
    except TimeoutError:
        raise UserError(f"run {folder.name} does not answer; is its process suspended?") from None
    except OSError:  # no socket, or no process listens to it
        check_live(folder, command)  # it may have ended in the meantime
        raise NotLive(
            f"run {folder.name} accepts no requests: it is starting or shutting down, or cannot create {SOCKET}; "
            "try again"
        ) from None
    if not received.endswith(b"\n"):
        raise NotLive(
            f"run {folder.name} did not answer `{command}`: it has ended, or is too busy; try again"
        )
    answer: dict[str, Any] = json.loads(received)
    if "error" in answer:
        raise UserError(answer["error"])
    done: dict[str, Any] = answer["done"]
    return done


def status_of(answer: dict[str, Any]) -> Status:
    """The status in an answer; unknown values are NaN again."""
    unknown = {key: math.nan for key, value in answer.items() if value is None and key != "day"}
    return Status(**{**answer, **unknown})


def refuse_reserved(strategy: str, settings: Collection[str]) -> None:
    """No strategy has a setting with the name of one of the arguments of `switch`."""
    for taken in ("strategy", "reason", "timeout", "self"):
        if taken in settings:
            raise UserError(f"strategy {strategy} has no setting `{taken}`")


def check_live(folder: Path, command: str) -> None:
    record = run_folder.read(folder)
    if record.standing.answers:
        return
    if record.state == "unknown":
        raise UserError(f"run {record.name} was {record.reason}; run `{command}` there")
    if record.state == "recovering":
        since, what = clock(record.standing.since), record.standing.what
        raise NotLive(f"run {record.name} is recovering{since}: {what}; retry `{command}` in a minute")
    if record.is_live:
        raise UserError(f"run {record.name} is {record.state}, and {record.reason}; run `{command}` there")
    how = {"done": ", exit 0", "failed": f": {record.reason}" if record.reason else ""}.get(record.state, "")
    at = clock(record.ended).removeprefix(" since")
    raise NotLive(f"run {record.name} is not running ({record.state}{at}{how}); `{command}` needs a live run")


def clock(since: float | None) -> str:
    """` since 03:12`, or nothing if that is not known."""
    return time.strftime(" since %H:%M", time.localtime(since)) if since else ""
