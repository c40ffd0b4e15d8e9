"""Processes and machines, as Ray knows them: where one is, how one is ended, which go away."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

MEET_SECONDS = 1.0  # between two looks at who is there
ANSWER_SECONDS = 20.0  # for a question to the hub
STARTING_SECONDS = 60.0  # in which a process that has just started may be silent


def patiently(ask: Callable[[], Any]) -> Any:
    """The hub may be starting anew itself."""
    while True:
        try:
            return ray.get(ask(), timeout=ANSWER_SECONDS)
        except RayError:
            time.sleep(MEET_SECONDS)


def end_process(pid: int, node: str) -> None:
    """At once, also if it is frozen; by a task on its own machine."""
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    with contextlib.suppress(RayError):
        task = ray.remote(_kill).options(num_cpus=0, scheduling_strategy=here, max_retries=0)
        ray.get(task.remote(pid), timeout=ANSWER_SECONDS)


def draining_machines() -> set[str]:
    """The nodes that Ray has been told will be gone; it has no public word for it, and may lose this one."""
    return set(getattr(ray._private.state.state, "get_draining_nodes", dict)())


def token_is_on() -> bool:
    """Whether Ray refuses those without its token."""
    return bool(is_token_auth_enabled())


def this_host() -> str:
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def this_place() -> tuple[int, str]:
    return os.getpid(), ray.get_runtime_context().get_node_id()


def _kill(pid: int) -> None:
    """If it is still one of Ray's: numbers are used again."""
    title = Path(f"/proc/{pid}/cmdline")
    with contextlib.suppress(OSError):
        if not Path("/proc").is_dir() or title.read_bytes().startswith(b"ray::"):
            os.kill(pid, signal.SIGKILL)
