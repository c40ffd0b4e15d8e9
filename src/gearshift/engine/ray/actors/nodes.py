"""Processes and machines as Ray knows them: where a process is, how to end it, and which machines are leaving."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ray
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gearshift.run.retry import retry

MEET_SECONDS = 1.0  # interval of heartbeats to the coordinator
ANSWER_SECONDS = 20.0  # timeout of a request to the coordinator
END_SECONDS = 20.0  # timeout for Ray to end the processes of a run
TITLES = b"gearshift ", b"ray::"  # process titles: ours, and Ray's until a process has set its own
STARTING_SECONDS = 60.0  # a process that has just started may be silent this long
ALONE_SECONDS = (
    900.0  # a process without a coordinator ends after this time, which is longer than a coordinator's start
)
Place = tuple[int, str]  # pid and node


def with_retries(ask: Callable[[], Any], seconds: float = ALONE_SECONDS) -> Any:
    """Retries while the actor may be starting. Raises `RayError` if there is no answer in that time."""
    return retry(
        lambda: ray.get(ask(), timeout=ANSWER_SECONDS),
        seconds,
        lambda error: isinstance(error, RayError | ValueError),  # Ray does not know an actor of that name yet
        first=MEET_SECONDS,
        longest=MEET_SECONDS,
    )


def within(seconds: float, work: Callable[[], object]) -> bool:
    """Runs `work` in a thread. Returns whether it finished in time.

    Ray's calls block for minutes while its head does not answer. Unfinished work is abandoned in its thread.
    """
    done = threading.Event()

    def run() -> None:
        with contextlib.suppress(Exception):
            work()
        done.set()

    threading.Thread(target=run, name="gearshift-ray-call", daemon=True).start()
    return done.wait(seconds)


def end_process(pid: int, node: str) -> None:
    """Kills a process at once, even if it is frozen: directly on our machine, else by a Ray task on its machine."""
    if node == ray.get_runtime_context().get_node_id():
        _kill(pid)
        return
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    with contextlib.suppress(RayError):
        task = ray.remote(_kill).options(num_cpus=0, scheduling_strategy=here, max_retries=0)
        ray.get(task.remote(pid), timeout=ANSWER_SECONDS)


@dataclass(frozen=True)
class ActorState:
    """What Ray knows about an actor."""

    state: Literal["starting", "alive", "dead"]
    place: Place | None = None  # of a live actor
    restarts: int = 0
    cause: str = ""  # why a dead actor will not be restarted


def state_of(actor: Any) -> ActorState:
    """Queries Ray's head. `starting` includes an actor that waits for resources, or that Ray does not know yet."""
    state: dict[str, Any] = ray._private.state.actors(actor._actor_id.hex()) or {}
    restarts = int(state.get("NumRestarts", 0))
    if state.get("State") == "ALIVE":
        return ActorState("alive", (int(state["Pid"]), str(state["Address"]["NodeID"])), restarts)
    if state.get("State") == "DEAD":
        return ActorState("dead", None, restarts, _first_line(state["DeathCause"]))
    return ActorState("starting", None, restarts)


def _first_line(cause: Any) -> str:
    """The first line of Ray's explanation of a death; if the process raised an exception, that exception."""
    account = str(cause.creation_task_failure_context.formatted_exception_string) or str(
        cause.actor_died_error_context.error_message
    )
    lines = [line.strip() for line in account.splitlines() if line.strip()]
    return (lines[-1] if "Traceback" in account else lines[0]) if lines else "Ray gives no reason"


def draining_machines() -> set[str]:
    """The nodes that Ray is draining. This uses a private API of Ray, which may disappear."""
    return set(getattr(ray._private.state.state, "get_draining_nodes", dict)())


def token_is_on() -> bool:
    """Whether Ray rejects clients without its token."""
    return bool(is_token_auth_enabled())


def take_title(role: str, number: int | None = None) -> None:
    """`gearshift shard 1` in ps and top. Ray would change the title at each call (`ray::ProcessActor.meet`)."""
    title = f"gearshift {role}" + ("" if number is None else f" {number}")
    with contextlib.suppress(AttributeError):  # a private API of Ray, which may disappear
        ray._raylet.setproctitle(title)  # type: ignore[attr-defined]
        ray._raylet.setproctitle = lambda title: None  # type: ignore[attr-defined]


def this_host() -> str:
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def this_place() -> tuple[int, str]:
    return os.getpid(), ray.get_runtime_context().get_node_id()


def _kill(pid: int) -> None:
    """Kills the process if it is still one of ours: pids are reused."""
    title = Path(f"/proc/{pid}/cmdline")
    with contextlib.suppress(OSError):
        if not Path("/proc").is_dir() or title.read_bytes().startswith(TITLES):
            os.kill(pid, signal.SIGKILL)
