"""The strategy in force, the name and settings that it was requested with, and the number of workers.

They change through a switch, a resize or a restored checkpoint. Does not depend on data or engines.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from gearshift.errors import UserError
from gearshift.parameters.replicas.group import rule_for
from gearshift.parameters.server import Server
from gearshift.sync.automatic import Automatic
from gearshift.sync.registry import make_auto, resolve, shared_replicas_need_threads
from gearshift.sync.replicated import choices_of
from gearshift.sync.strategy import Strategy
from gearshift.training.plan import Plan
from gearshift.training.requests import SwitchRequest


class ActiveStrategy:
    """`strategy` decides; `name` and `settings` are as requested; `automatic` proposes switches under `auto`."""

    def __init__(self, plan: Plan, server: Server, *, shared_memory: bool) -> None:
        """`shared_memory`: all workers are threads of one process, so several of them can share one replica."""
        self._plan, self._server, self._shared_memory = plan, server, shared_memory
        self.workers = plan.workers  # the current number
        first = plan.strategy
        self.name = "sync" if first.name == "auto" else first.name
        self.settings = {} if first.name == "auto" else dict(first.settings)
        self.strategy = self.make(first.name, first.settings)
        self.automatic = self.automatic_for(first.name, first.settings)

    def make(self, name: str, settings: dict[str, Any]) -> Strategy:
        """A strategy for this run's global batch and workers; `batch` may be among the settings."""
        plan = self._plan
        cut = plan.strategy.steps.batch, plan.strategy.steps.micro_batches
        strategy = resolve(name, settings, plan.global_batch, self.workers, *cut)
        if choices := choices_of(strategy):
            rule_for(self._server, choices)  # raises if replicas cannot use the optimizer
            if choices.workers_per_replica > 1 and not self._shared_memory:
                raise UserError(shared_replicas_need_threads(strategy.name))
        return strategy

    def automatic_for(self, name: str, settings: dict[str, Any]) -> Automatic | None:
        """The object that proposes switches if this strategy is `auto`, else None."""
        return Automatic(make_auto(settings), self._plan.global_batch) if name == "auto" else None

    def recut(self, workers: int) -> Strategy:
        """The current strategy with its global batch divided among `workers`; unchanged if `batch` was set."""
        plan = self._plan
        if plan.strategy.steps.batch is not None or "batch" in self.settings:
            return self.strategy
        return resolve(
            self.name, self.settings, plan.global_batch, workers, None, plan.strategy.steps.micro_batches
        )

    def check_same_batch(self, settings: dict[str, Any]) -> None:
        if "global_batch" in settings:
            raise UserError(
                f"a switch keeps the global batch, {self.strategy.global_batch:,}, and with it the learning rates; "
                "leave global_batch out (batch, what a worker takes at a time, may change)"
            )

    def take(self, request: SwitchRequest) -> None:
        """Records a switch that has been carried out."""
        self.name, self.strategy, self.automatic = request.name, request.strategy, request.automatic
        self.settings = request.settings

    @property
    def planned(self) -> dict[str, Any]:
        """The planned first strategy, as JSON returns it. A resumed run whose plan differs uses its new plan."""
        plan = self._plan.strategy
        first: dict[str, Any] = json.loads(json.dumps({"name": plan.name, "settings": plan.settings}))
        return first

    def facts(self) -> dict[str, Any]:
        """The values from which a resumed run restores the current strategy."""
        return {
            "name": self.name,
            "settings": asdict(self.strategy),
            "asked": self.settings,
            "auto": None if self.automatic is None else asdict(self.automatic.settings),
            "planned": self.planned,
        }

    def restore(self, facts: dict[str, Any]) -> None:
        self.name = facts["name"]
        self.strategy = self.make(facts["name"], facts["settings"])
        self.settings = facts.get("asked", facts["settings"])
        self.automatic = None if facts["auto"] is None else self.automatic_for("auto", facts["auto"])

    def restore_workers(self, facts: dict[str, int]) -> None:
        """Restores the number of workers after the last resize, unless the resumed run's config sets another number."""
        if facts.get("planned") == self._plan.workers:
            self.workers = facts["now"]
