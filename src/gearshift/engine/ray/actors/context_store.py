"""What a run is made of, kept for all that start anew; and how its place on the cluster is left."""

from __future__ import annotations

import contextlib
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import remove_placement_group

from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.actors.nodes import take_title
from gearshift.engine.ray.actors.placement import NAMESPACE, ProcessPlacement, actor_name

HEAD = {"node:__internal_head__": 0.001}  # a resource that only the machine of Ray's head has


class ContextStore:
    """Holds what the run is made of, for the coordinator and all that start anew.

    It may be large (a table in memory), and Ray forgets large arguments of an actor before it starts it again.
    """

    def __init__(self, context: Any) -> None:
        take_title("site store")
        self._context = context

    def give(self) -> Any:
        return self._context


def context_store_of(run: str) -> Any:
    return ray.get_actor(f"{run}/site", namespace=NAMESPACE)


def context_store(run: str, context: Any) -> Any:
    """The context store of this run, which is started if it is not there."""
    with contextlib.suppress(ValueError):
        return context_store_of(run)
    options: dict[str, Any] = {"name": f"{run}/site", "namespace": NAMESPACE, "lifetime": "detached"}
    options |= {"num_cpus": 0, "resources": HEAD}  # any other machine may be lost, and the run goes on
    return ray.remote(ContextStore).options(**options).remote(context)


def leave_place(plan: ProcessPlacement) -> None:
    """What was reserved is free again; whatever still runs there ends."""
    with contextlib.suppress(Exception):
        ray.kill(context_store_of(plan.name), no_restart=True)
    if plan.group is not None:
        with contextlib.suppress(Exception):
            remove_placement_group(plan.group)


def end_members(plan: ProcessPlacement) -> None:
    """All actors of the run except the coordinator and the context store, whoever started them.

    Ray kills a frozen one too, within 5 s.
    """
    spared = {actor_name(plan.name, To("coordinator")), f"{plan.name}/site"}
    for found in ray.util.list_named_actors(all_namespaces=True):
        name = found["name"]
        if found["namespace"] == NAMESPACE and name.startswith(f"{plan.name}/") and name not in spared:
            with contextlib.suppress(ValueError, RayError):  # it has ended meanwhile
                ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
