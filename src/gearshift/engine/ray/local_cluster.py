"""A Ray cluster on this machine for one run: started before it and stopped after it, even if its starter is gone.

Only this user can use it: Ray's token authentication is on, the token is in a folder that no other user can read, and
all ports are on loopback. Its folder names its run (run/temporary_folders.py), for `gearshift clean`.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from gearshift.engine.ray.end_session import __file__ as end_session_file
from gearshift.engine.ray.end_session import end_session
from gearshift.errors import UserError
from gearshift.run import temporary_folders
from gearshift.run.process_identity import process_start

START_SECONDS = 60.0
STORE_BYTES = 80 << 20  # size of Ray's object store, which is almost empty
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
# Ray uses 127.0.0.1 as its address, and listens only there, if it believes that it cannot have a second machine. This
# variable makes it believe so on every system.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@dataclass(frozen=True)
class LocalRay:
    folder: str  # its own: token, sockets and logs
    port: int
    pid: int

    @classmethod
    def start(cls, cpus: float, run: Path | None = None) -> LocalRay:
        """Starts a cluster for this run; if None, for several, and only its starter ends it."""
        folder = Path(tempfile.mkdtemp(prefix=temporary_folders.SOCKETS))
        try:
            port = _free_port()
            made = cls._begin(folder, port, cpus)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        local = cls(str(folder), port, made.pid)
        until = time.monotonic() + START_SECONDS
        try:
            if run is not None:  # at once: the starter may die before Ray answers
                temporary_folders.mark(folder, run, leader=made.pid)
            while not local._answers():
                if made.poll() is not None or time.monotonic() > until:
                    last_lines = (folder / "start.log").read_text().strip().splitlines()[-3:]
                    raise UserError(f"Ray did not start on this machine: {' '.join(last_lines)}")
                time.sleep(0.1)
        except BaseException:  # also Ctrl-C, which Ray does not receive in its separate session
            local.stop()
            raise
        return local

    @staticmethod
    def _begin(folder: Path, port: int, cpus: float) -> subprocess.Popen[bytes]:
        token = folder / "token"
        token.touch(0o600)
        token.write_text(_own_token())
        environment = {**os.environ, **TOKEN, **LOOPBACK, "RAY_AUTH_TOKEN_PATH": str(token)}
        environment.setdefault("RAY_worker_niceness", "0")  # Ray's default niceness is 15
        environment.pop("RAY_AUTH_TOKEN", None)
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
        command += [
            f"--port={port}",
            f"--num-cpus={max(ceil(cpus), os.cpu_count() or 1)}",
            "--include-dashboard=false",
        ]
        command += [
            f"--object-store-memory={STORE_BYTES}",
            f"--temp-dir={folder}/ray",
            "--disable-usage-stats",
        ]
        with (folder / "start.log").open("w") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def sockets(self) -> str:
        return f"{self.folder}/s"

    def died(self) -> bool:
        """Whether Ray is gone, as its starter sees it. `ray start --block` ends when any process of Ray does."""
        with suppress(ChildProcessError):
            return os.waitpid(self.pid, os.WNOHANG) != (0, 0)
        return process_start(self.pid) is None

    def last_words(self) -> str:
        """Which of Ray's processes ended, if its log says so."""
        with suppress(OSError):
            log = (Path(self.folder) / "start.log").read_text()
            if match := re.search(r"(\w+) \[exit code=(-?\d+)\]", log):
                name, code = match.group(1), int(match.group(2))
                return (
                    f"its {name} was killed by signal {-code}"
                    if code < 0
                    else f"its {name} exited with {code}"
                )
        return "its processes were killed"

    def stop(self) -> None:
        """Kills its processes and removes its folder. An orderly stop takes over ten seconds and would save nothing."""
        end_session(self.pid, Path(self.folder))

    def stop_soon(self) -> None:
        """The same, from a process that is part of the cluster and ends with it."""
        program = [sys.executable, "-I", end_session_file, "2"]
        subprocess.Popen([*program, str(self.pid), self.folder], start_new_session=True)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return "Ray runtime started" in (Path(self.folder) / "start.log").read_text()
        return False


def _own_token() -> str:
    """The token of this process, for all clusters that it starts: Ray reads mode and token once, at import."""
    if os.environ.get("RAY_AUTH_MODE") != "token" and "ray" in sys.modules:
        raise UserError(
            "Ray was imported before this run was started, without its token authentication; "
            "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN in the environment, or import ray later"
        )
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ |= TOKEN
    return os.environ["RAY_AUTH_TOKEN"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
