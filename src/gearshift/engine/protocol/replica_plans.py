"""The coordinator's decisions about replica exchanges: the plan for workers, and the member list for shards.

Each change of strategy that affects replicas creates a plan with a higher generation. The shards get the member list as
an order whenever the members or the plan have changed.
"""

from __future__ import annotations

from gearshift.engine.protocol.orders import Orders
from gearshift.engine.protocol.replica_messages import ExchangePlan, choices_text
from gearshift.engine.protocol.worker_sessions import WorkerSessions
from gearshift.parameters.shard import Assemble
from gearshift.sync.replicated import choices_of
from gearshift.sync.strategy import Strategy


class ReplicaPlans:
    """The plans of one incarnation."""

    def __init__(self, strategy: Strategy, sessions: WorkerSessions, orders: Orders) -> None:
        self._sessions, self._orders = sessions, orders
        self.plan = ExchangePlan()  # generation 0: before the first plan
        self._choices = choices_of(strategy)
        self._assembled = Assemble(0, 0, "")  # the last order to the shards
        self._replan(keep=False)  # a later switch to replicas then has a later generation
        self.assemble()

    @property
    def replicated(self) -> bool:
        return self._choices is not None

    @property
    def assembly(self) -> int:
        """The number of the newest list of members."""
        return self._assembled.number

    def differs(self, strategy: Strategy) -> bool:
        """Whether this strategy exchanges replicas differently, or has none."""
        return choices_of(strategy) != self._choices

    def change(self, strategy: Strategy, *, keep: bool) -> None:
        """Adopts the plan of this strategy; `keep`: replicas stay as they are, else they are forked again."""
        choices = choices_of(strategy)
        keep = keep and choices is not None and self._choices is not None
        self._choices = choices
        self._replan(keep=keep)

    def assemble(self) -> None:
        """Sends the list of members to the shards, if it or the plan has changed."""
        if self.replicated:
            last, members = self._assembled, tuple(sorted(self._sessions.members.items()))
            if (last.generation, last.members) != (self.plan.generation, members):
                self._assembled = Assemble(last.number + 1, self.plan.generation, self.plan.choices, members)
                self._orders.carry_out(self._assembled, 0)

    def _replan(self, *, keep: bool) -> None:
        generation = self.plan.generation + 1
        if self._choices is None:
            self.plan = ExchangePlan(generation)
        else:
            lineage = self.plan.lineage if keep else generation
            self.plan = ExchangePlan(generation, lineage, choices_text(self._choices))
