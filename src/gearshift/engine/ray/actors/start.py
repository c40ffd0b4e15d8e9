"""For the process that starts a run: connects to Ray, reserves resources, starts the coordinator, and queries it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray._private import ray_constants, services
from ray.exceptions import RayError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.actors.context_store import context_store, end_members, leave_place
from gearshift.engine.ray.actors.coordinator import CoordinatorActor, RunView
from gearshift.engine.ray.actors.nodes import ANSWER_SECONDS, END_SECONDS, within
from gearshift.engine.ray.actors.placement import NAMESPACE, ProcessPlacement
from gearshift.errors import UserError

REACH_SECONDS = 10.0  # timeout for a connection to Ray's head
PLACE_SECONDS = 60.0  # timeout for the start of the first process


def connect(address: str) -> None:
    """Connects to a running cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray prints a paragraph for every process that dies; the run's own message is shorter.
    setattr(ray._private.worker, "listen_error_messages", lambda *_: None)  # noqa: B010
    # Ray reports uncaught errors to its head, and waits for minutes if the head is gone.
    if sys.excepthook is ray._private.worker.custom_excepthook:
        sys.excepthook = ray._private.worker.normal_excepthook
    host, _, port = address.rpartition(":")
    if ray.is_initialized():
        raise UserError(
            "this process is connected to Ray already: wait for the run that it started, or start this one from "
            "another process"
        )
    try:
        if (
            port.isdigit() and "//" not in host
        ):  # Ray would retry for minutes at an address where nothing listens
            socket.create_connection((host, int(port)), REACH_SECONDS).close()
        with _loopback_kept(host, port):
            ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise UserError(
            f"cannot reach Ray at {address} ({str(error).splitlines()[0]}). Is the head up (`ray status`)? "
            "For a cluster on this machine: cluster.address=local"
        ) from None


@contextlib.contextmanager
def _loopback_kept(host: str, port: str) -> Iterator[None]:
    """Ray replaces 127.0.0.1 by an outer address of this machine, where a local cluster does not listen.

    It does not do this if it assumes a single machine, which this setting of Ray makes it assume.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    outer: str = services.get_node_ip_address()  # type: ignore[no-untyped-call]
    only_here = host in ("127.0.0.1", "localhost") and not _listens(outer, int(port))
    ray_constants.ENABLE_RAY_CLUSTER = before and not only_here
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), REACH_SECONDS).close()
    except OSError:
        return False
    return True


def reserve(plan: ProcessPlacement, seconds: float) -> PlacementGroup:
    """Reserves resources for all processes of the plan; raises with what is missing."""
    bundles = [plan.needs[who.role].bundle() for who in plan.members]
    strategy = "SPREAD" if plan.spread else "PACK"
    group: PlacementGroup = placement_group(bundles, strategy=strategy, name=plan.name, lifetime="detached")
    try:
        ready, _ = ray.wait([group.ready()], timeout=seconds)
    except BaseException:  # such as Ctrl-C
        remove_placement_group(group)
        raise
    if not ready:
        remove_placement_group(group)
        wanted = sum(bundle["CPU"] for bundle in bundles)
        there, free = _cpus(ray.cluster_resources), _cpus(ray.available_resources)
        raise UserError(
            f"the run needs {wanted:g} CPUs ({len(bundles)} processes); the Ray cluster has {there:g}, {free:g} of "
            "them free. Wait for other jobs to finish, or lower cluster.workers, cluster.shards or cluster.resources"
        )
    return group


def refuse_several_machines(plan: ProcessPlacement) -> None:
    """Raises if processes that communicate by ipc are placed on several machines."""
    placed = set(placement_group_table(plan.group)["bundles_to_node_id"].values())
    hosts = sorted({node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] in placed})  # type: ignore[no-untyped-call]
    if len(hosts) > 1:
        raise UserError(
            f"cluster.wire is ipc, which works only on one machine, but Ray placed the run on {len(hosts)} "
            f"({', '.join(hosts)}); set cluster.wire=curve, or remove the setting"
        )


def launch(
    plan: ProcessPlacement,
    begin: Callable[[Any, Any, Any], RunView],
    bodies: dict[str, Callable[[Any, Any], None]],
    context: Any,
) -> Any:
    """Starts the coordinator, which starts the others. Returns its handle."""
    options = plan.options(To("coordinator")) | {"max_concurrency": 64}
    try:
        ray.get(context_store(plan.name, context).give.remote(), timeout=PLACE_SECONDS)
        return ray.remote(CoordinatorActor).options(**options).remote(plan, begin, bodies)
    except TypeError as error:  # raised by pickle for objects that it cannot serialize
        cause = error.__cause__ or error
        raise UserError(
            f"the run cannot be sent to other processes: {cause}. Models, losses and data must be picklable, and "
            "their classes importable there; a config always works"
        ) from None


def answered(reference: Any, seconds: float) -> bool:
    """Whether an answer or an error arrives in time."""
    return bool(ray.wait([reference], timeout=seconds)[0])


def answer(reference: Any, seconds: float = ANSWER_SECONDS, silence: Any = None) -> Any:
    """An actor's answer. Returns `silence` if there is none: the actor is restarting, or Ray is gone."""
    try:
        return ray.get(reference, timeout=seconds)
    except RayError as error:
        cause = getattr(error, "cause", None)  # the original exception, without Ray's wrapper
        if isinstance(cause, UserError | TimeoutError):
            raise cause from None
        return silence


def end(coordinator: Any, plan: ProcessPlacement) -> None:
    """Ends all processes of the run. If Ray's head does not answer, the remaining ones end with the cluster."""

    def all_of_them() -> None:
        with contextlib.suppress(RayError):
            ray.kill(coordinator, no_restart=True)
        with contextlib.suppress(Exception):
            end_members(plan)
        leave_place(plan)

    within(END_SECONDS, all_of_them)


def leave() -> None:
    ray.shutdown()


def answers() -> bool:
    """Whether Ray's head accepts connections. Checked without Ray, whose calls would block."""
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    return _listens(host, int(port))


def _cpus(of: Callable[[], dict[str, float]]) -> float:
    return of().get("CPU", 0)
