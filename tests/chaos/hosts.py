"""Network namespaces as hosts: a Ray node in each, with an address and a link of its own that can be cut.

    with hosts(3) as made: ... settings_for(made.address) ... made.cut(0) ... made.mend(0)

The head of Ray and whoever watches are at one end of a bridge that leads nowhere else. It takes the rights of root.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from gearshift.engine.ray.end_session import end_session

NETWORK = "10.213.77"  # of the bridge
PORT = 6399
START_SECONDS = 60.0
GIVEN_UP_SECONDS = 30.0  # in which a node that Ray gave up hears of it


def may_be_made() -> bool:
    """Whether this process has the rights, and this machine the tool."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["unshare", "-n", "ip", "link", "add", "gst", "type", "bridge"]
        return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
    return False


class Hosts:
    """As `faults.Nodes`; each raylet on a host of its own."""

    def __init__(self, count: int, cpus: float = 2.0) -> None:
        self._id, self.cpus = f"gst{os.getpid()}", cpus
        self.folder = Path(tempfile.mkdtemp(prefix="gs-hosts-"))
        self._sessions: dict[str, int] = {}  # leaders, by host
        self.numbers = list(range(count))
        self._joining = threading.Lock()
        self._closed = False

    def open(self) -> None:
        _ip("link", "add", self._id, "type", "bridge")
        _ip("addr", "add", f"{NETWORK}.254/24", "dev", self._id)
        _ip("link", "set", self._id, "up")
        soon = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
        head = ["--head", f"--port={PORT}", f"--node-ip-address={NETWORK}.254", "--num-cpus=0"]
        head += [
            "--include-dashboard=false",
            f"--system-config={json.dumps(soon)}",
            f"--temp-dir={self.folder}/ray",
        ]
        self._ray("head", [], head)
        for number in self.numbers:
            self._make(number)
            self._join(number)

    @property
    def address(self) -> str:
        return f"{NETWORK}.254:{PORT}"

    def host(self, number: int) -> str:
        return f"{NETWORK}.{number + 1}"

    def moved(self, number: int) -> int:
        """Bytes that have crossed the link of this host, in both directions."""
        counts = Path("/sys/class/net", self._cable(number), "statistics")
        return sum(int((counts / name).read_text()) for name in ("rx_bytes", "tx_bytes"))

    def cut(self, number: int) -> None:
        """Nothing goes to that host, and nothing comes from it; nobody there notices anything else."""
        _ip("link", "set", self._cable(number), "down")

    def mend(self, number: int) -> None:
        """The link is back. Ray has given up a node that was away for long, which ends; another takes its place."""
        _ip("link", "set", self._cable(number), "up")
        leader = self._sessions[f"host {number}"]
        until = time.monotonic() + GIVEN_UP_SECONDS
        while _lives(leader) and time.monotonic() < until:
            time.sleep(0.1)
        with self._joining:
            if not _lives(leader) and not self._closed:
                end_session(leader, self.folder / "nothing")
                self._join(number)

    def kill(self, draw: random.Random) -> int:
        number = draw.choice(self.numbers)
        leader = self._sessions[f"host {number}"]
        end_session(leader, self.folder / "nothing")
        return leader

    def add(self) -> None:
        """Nodes for the hosts that have none."""
        for number in self.numbers:
            if not _lives(self._sessions[f"host {number}"]):
                self._join(number)

    def close(self) -> None:
        """Also what was opened in part."""
        with self._joining:
            self._closed = True
        for leader in self._sessions.values():
            end_session(leader, self.folder / "nothing")
        shutil.rmtree(self.folder, ignore_errors=True)
        for number in self.numbers:
            subprocess.run(["ip", "netns", "del", self._space(number)], capture_output=True, timeout=20)
        subprocess.run(["ip", "link", "del", self._id], capture_output=True, timeout=20)

    def _space(self, number: int) -> str:
        return f"{self._id}-{number}"

    def _cable(self, number: int) -> str:
        return f"{self._id}.{number}"

    def _make(self, number: int) -> None:
        space, cable = self._space(number), self._cable(number)
        _ip("netns", "add", space)
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", cable, "master", self._id, "up")
        for device in ("lo", "eth0"):
            _ip("-n", space, "link", "set", device, "up")
        _ip("-n", space, "addr", "add", f"{self.host(number)}/24", "dev", "eth0")

    def _join(self, number: int) -> None:
        node = [
            f"--address={self.address}",
            f"--node-ip-address={self.host(number)}",
            f"--num-cpus={self.cpus:g}",
        ]
        self._ray(f"host {number}", ["ip", "netns", "exec", self._space(number)], node)

    def _ray(self, name: str, where: list[str], how: list[str]) -> None:
        command = [*where, sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *how]
        command += ["--disable-usage-stats", f"--object-store-memory={80 << 20}"]
        log = self.folder / f"{name}.log"
        with log.open("w") as file:
            made = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        self._sessions[name] = made.pid
        until = time.monotonic() + START_SECONDS
        while "Ray runtime started" not in log.read_text():
            assert made.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.1)


@contextlib.contextmanager
def hosts(count: int = 3, cpus: float = 2.0) -> Iterator[Hosts]:
    import ray

    made = Hosts(count, cpus)
    try:
        made.open()
        yield made
    finally:
        ray.shutdown()
        made.close()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=20)


def _lives(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    return False
