"""The server side of control, in the run: it answers the requests of other processes (control_socket.py).

Does not import torch: the run is behind the interface `Controlled`.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from gearshift.errors import UserError
from gearshift.run import control_socket, ownership, temporary_folders
from gearshift.run.run_handle import RunHandle


class Controlled(RunHandle, Protocol):
    """A run in this process that other processes can control."""

    @property
    def processes(self) -> Callable[[], dict[str, dict[str, float]]]:
        """Returns the metrics of each process, by its name."""

    def notify(self, sentence: str) -> None:
        """Passes a message on to the user."""


class ControlServer:
    """Answers requests in background threads, until `close`."""

    def __init__(self, folder: Path, run: Controlled) -> None:
        self._folder, self._run = folder, run
        self._key = secrets.token_urlsafe(32)
        self._places = threading.BoundedSemaphore(control_socket.AT_ONCE)
        ownership.check(folder)  # the socket of another owner is not ours to replace
        control_socket.remove(folder)
        self._socket = _bound(folder / control_socket.SOCKET)
        _write_key(folder / control_socket.KEY, self._key)
        self._socket.listen(control_socket.AT_ONCE)
        threading.Thread(target=self._accept, name="gearshift-control", daemon=True).start()

    def close(self) -> None:
        """Accepts no more requests; a request in progress may still be answered."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._socket.close()
        key = self._folder / control_socket.KEY
        with contextlib.suppress(OSError):
            if key.read_text() == self._key:  # otherwise another process has taken over the run
                control_socket.remove(self._folder)

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
            with connection, contextlib.suppress(OSError):  # the client is gone
                answer = self._answer(control_socket.receive(connection, control_socket.READ_SECONDS))
                connection.settimeout(control_socket.READ_SECONDS)
                connection.sendall(answer)
        finally:
            self._places.release()

    def _answer(self, line: bytes) -> bytes:
        try:
            return control_socket.line(control_socket.plain({"done": self._do(_request(line, self._key))}))
        except (UserError, TimeoutError) as error:
            return control_socket.line({"error": str(error)})
        except Exception as error:  # a fault in answering must not end the training
            return control_socket.line({"error": f"internal error: {type(error).__name__}: {error}"})

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
                control_socket.refuse_reserved(strategy, settings)
                return asdict(run.switch(strategy, reason=reason, **_timeout(request), **settings))
            case {"do": "resize", "workers": int(workers)}:
                run.resize(workers, **_timeout(request))
                return asdict(run.status())
            case {"do": "stop"}:
                give_up = run.status().save_retried  # evaluated once, so that message and action agree
                what = "giving up the failing save" if give_up else "stopping after this step"
                run.notify(f"stop requested by another process; {what}")
                run.stop(give_up=give_up)
                return asdict(run.status())
            case {"do": "checkpoint"}:
                run.checkpoint()
                return asdict(run.status())
        raise UserError("this run does not know the request; was it started by another version of Gearshift?")


def _timeout(request: dict[str, Any]) -> dict[str, float]:
    """The timeout of a request, if it has one: requests of older versions have none."""
    seconds = request.get("timeout")
    return {"timeout": float(seconds)} if isinstance(seconds, int | float) else {}


def _news(run: Controlled, seen: int) -> dict[str, Any]:
    """The status of the run, and its messages after the first `seen`."""
    fresh, room = list[str](), control_socket.NEWS
    for message in run.messages[max(0, seen) :]:
        room -= len(message)
        if room < 0 and fresh:
            break
        fresh.append(message[: control_socket.NEWS])
    status = control_socket.plain(asdict(run.status()))
    return {"process": os.getpid(), "status": status, "header": list(run.header), "messages": fresh}


def serve(folder: Path, run: Controlled) -> Callable[[], None]:
    """Makes a run controllable if the machine allows it; returns a function that ends it."""
    try:
        return ControlServer(folder, run).close
    except OSError as error:
        run.notify(f"`switch` and `stop` from other processes will not reach this run: {error}")
        return lambda: None


class ControlChannel:
    """The control of one run: open while the run is live."""

    def __init__(self, folder: Path, run: Controlled) -> None:
        self._folder, self._run = folder, run
        self._close: Callable[[], None] = lambda: None

    def open(self) -> None:
        self._close = serve(self._folder, self._run)

    def close(self) -> None:
        self._close()


def _bound(path: Path) -> socket.socket:
    try:
        return _bound_at(path)
    except OSError:  # the path is too long for a socket, or the file system does not support sockets
        private = temporary_folders.make(temporary_folders.CONTROL, path.parent)
        try:
            made = _bound_at(private / control_socket.SOCKET)
            path.symlink_to(private / control_socket.SOCKET)
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


def _request(line: bytes, key: str) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except ValueError:
        request = None
    if not isinstance(request, dict):
        raise UserError("the request is not a line of JSON")
    given = request.pop("key", "")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(errors="replace"), key.encode()):
        raise UserError("the key is wrong; it is in the run's control.key")
    return request
