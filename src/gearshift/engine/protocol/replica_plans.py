"""The coordinator's decision how replicas are exchanged: the plan that workers get, and the members that shards know.

Each change of strategy that concerns replicas makes a plan of a higher generation. The shards get the list of members
as an order whenever members or plan have changed.
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
        self.plan = ExchangePlan()  # of generation 0, before the first
        self._choices = choices_of(strategy)
        self._assembled = Assemble(0, 0, "")  # the last order to the shards
        self._replan(keep=False)  # a later switch to replicas is then of a later generation
        self.assemble()

    @property
    def replicated(self) -> bool:
        return self._choices is not None

    @property
    def assembly(self) -> int:
        """The number of the newest list of members."""
        return self._assembled.number

    def differs(self, strategy: Strategy) -> bool:
        """Whether this strategy exchanges replicas in another way, or has none."""
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
