"""How dense parameters are transferred under a strategy: with pulls and pushes, or in exchanges of replicas."""

from __future__ import annotations

from collections.abc import Iterable

from gearshift.cluster_model.cluster import Network
from gearshift.engine.simulation.exchanges import Exchanges
from gearshift.engine.simulation.replica_members import ReplicaLearning
from gearshift.engine.simulation.virtual_time import VirtualTime
from gearshift.parameters.replicas.figures import Counts
from gearshift.sync.replicated import choices_of
from gearshift.sync.strategy import Strategy
from gearshift.sync.synchronous import Sync


class DenseTraffic:
    def __init__(self, network: Network, time: VirtualTime) -> None:
        self._network, self._time = network, time
        self.seconds = 0.0  # added to a pull or a push by dense parameters
        self.exchanges: Exchanges | None = None  # of a replica strategy
        self.counts: dict[int, Counts] = {}  # of each replica

    def take_over(self, strategy: Strategy, workers: Iterable[int], learning: ReplicaLearning | None) -> None:
        """This strategy decides from here on: replicas end or begin."""
        choices = choices_of(strategy)
        in_pulls = choices is None and not isinstance(strategy, Sync)
        self.seconds = self._network.dense if in_pulls else 0.0
        if self.exchanges is not None:
            self.exchanges.end()
            self.exchanges = None
        if choices is not None:
            self.exchanges = Exchanges(choices, self._network, self._time, self.counts, learning)
            for worker in workers:
                self.exchanges.join(worker)
