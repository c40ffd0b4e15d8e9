"""Keeps the context of a run for processes that restart, and frees the resources reserved on the cluster."""

from __future__ import annotations

import contextlib
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import remove_placement_group

from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.actors.nodes import take_title
from gearshift.engine.ray.actors.placement import NAMESPACE, ProcessPlacement, actor_name

HEAD = {"node:__internal_head__": 0.001}  # a resource that exists only on the machine of Ray's head


class ContextStore:
    """Holds the context of the run for the coordinator and for processes that restart.

    It may be large (a table in memory), and Ray drops large arguments of an actor before it restarts it.
    """

    def __init__(self, context: Any) -> None:
        take_title("site store")
        self._context = context

    def give(self) -> Any:
        return self._context


def context_store_of(run: str) -> Any:
    return ray.get_actor(f"{run}/site", namespace=NAMESPACE)


def context_store(run: str, context: Any) -> Any:
    """The context store of this run, which is started if it does not exist."""
    with contextlib.suppress(ValueError):
        return context_store_of(run)
    options: dict[str, Any] = {"name": f"{run}/site", "namespace": NAMESPACE, "lifetime": "detached"}
    options |= {"num_cpus": 0, "resources": HEAD}  # the run survives the loss of any other machine
    return ray.remote(ContextStore).options(**options).remote(context)


def leave_place(plan: ProcessPlacement) -> None:
    """Frees the reserved resources and ends all processes that still use them."""
    with contextlib.suppress(Exception):
        ray.kill(context_store_of(plan.name), no_restart=True)
    if plan.group is not None:
        with contextlib.suppress(Exception):
            remove_placement_group(plan.group)


def end_members(plan: ProcessPlacement) -> None:
    """Ends all actors of the run, also those of earlier coordinators, except the coordinator and the context store.

    Ray also kills frozen actors, within 5 s.
    """
    spared = {actor_name(plan.name, To("coordinator")), f"{plan.name}/site"}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        name = actor["name"]
        if actor["namespace"] == NAMESPACE and name.startswith(f"{plan.name}/") and name not in spared:
            with contextlib.suppress(ValueError, RayError):  # it has ended in the meantime
                ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
