"""The processes to start on Ray, and the resources of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from gearshift.engine.protocol.messages import To

NAMESPACE = "gearshift"


@dataclass(frozen=True)
class ProcessResources:
    """The resources of one process of a role."""

    cpus: float = 1.0
    gpus: float = 0.0

    def bundle(self) -> dict[str, float]:
        return {"CPU": self.cpus, "GPU": self.gpus} if self.gpus else {"CPU": self.cpus}


@dataclass(frozen=True)
class ProcessPlacement:
    """The processes to start, and where."""

    name: str  # the name of the run, unique among live runs
    needs: dict[str, ProcessResources]  # by role
    shards: int
    workers: int
    spread: bool = False  # spread over machines instead of packed together
    group: PlacementGroup | None = None

    @property
    def members(self) -> list[To]:
        """All processes that run from the start; the position in this list is that of its bundle."""
        shards = [To("shard", i) for i in range(self.shards)]
        return [To("coordinator"), *shards, *(To("worker", i) for i in range(self.workers))]

    def options(self, who: To) -> dict[str, Any]:
        needs = self.needs[who.role]
        options: dict[str, Any] = {
            "name": actor_name(self.name, who),
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "max_restarts": -1,
            "max_task_retries": 0,
            "num_cpus": needs.cpus,
            "num_gpus": needs.gpus,
        }
        if self.group is not None and who in self.members:
            place = self.members.index(who)
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self.group, place)
        return options


def actor_name(run: str, who: To) -> str:
    return f"{run}/{who.role}-{who.number}"
