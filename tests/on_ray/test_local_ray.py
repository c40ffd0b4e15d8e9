"""The Ray cluster that is started for one run: nobody outside reaches it, and nobody without its token is let in."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gearshift.engine.ray.end_session import processes_of
from gearshift.engine.ray.local_cluster import LOOPBACK, LocalRay
from tests.on_ray.fixtures import ON_RAY

pytestmark = ON_RAY
IS_LOOPBACK = {
    "/proc/net/tcp": lambda hexed: hexed.endswith("7F"),  # 127.*, bytes in the machine's order
    "/proc/net/tcp6": lambda hexed: (
        hexed in ("0" * 24 + "01000000", "0" * 16 + "FFFF0000" + "0100007F")
    ),  # ::1, ::ffff:127.0.0.1
}
JOIN = """
import ray, sys
ray.init(sys.argv[1], log_to_driver=False)
print(ray.get(ray.remote(lambda: "ran").remote(), timeout=60), flush=True)
sys.stdin.read()
"""


def outer_listeners(pids: set[int]) -> list[str]:
    """Ports on which one of these processes listens beyond this machine."""
    sockets = {}
    for table, is_loopback in IS_LOOPBACK.items():
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A":
                sockets[f"socket:[{inode}]"] = local, is_loopback(local.partition(":")[0])
    found, seen = [], 0
    for pid in pids:
        for handle in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                address, inner = sockets[str(handle.readlink())]
            except (OSError, KeyError):
                continue
            seen += 1
            found += [] if inner else [f"{pid} {address}"]
    assert seen >= 3, "Ray's head and raylet listen somewhere"
    return found


def test_ray_listens_on_loopback_alone_and_lets_in_who_has_its_token(ray_here: LocalRay) -> None:
    with stranger(
        ray_here, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{ray_here.folder}/token"}
    ) as joined:
        assert joined.stdout is not None and joined.stdout.readline() == "ran\n"
        # Every process of Ray has a port of its own, and so has whoever is connected.
        assert outer_listeners({joined.pid, *processes_of(Path(ray_here.folder))}) == []
    outer = socket.gethostbyname(socket.gethostname())
    if not outer.startswith("127."):
        with pytest.raises(OSError):
            socket.create_connection((outer, ray_here.port), 2)


@pytest.mark.parametrize("token", ["wrong", "missing"])
def test_ray_refuses_who_has_not_its_token(ray_here: LocalRay, tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text("0" * 64)
    given = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    with stranger(ray_here, given if token == "wrong" else {}) as refused:
        out, error = refused.communicate(timeout=120)
    assert refused.returncode != 0 and "ran" not in out
    assert "token" in error.lower(), error


@contextmanager
def stranger(ray_here: LocalRay, given: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Another process that connects to the cluster, and stays until we let it go."""
    unset = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "PYTHONPATH"}
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    environment |= {
        **LOOPBACK,
        **given,
        "RAY_NUM_REDIS_GET_RETRIES": "2",
    }
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", JOIN, ray_here.address]
    process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
