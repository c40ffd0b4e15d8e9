"""Injected delays: each batch of a real worker is padded to the duration that a cluster model draws for it.

The delay is added to real work and never replaces it, so a batch cannot become faster. `overrun` is the share of
batches whose work took longer than the drawn duration. The draws equal those of the simulator.
"""

from __future__ import annotations

import threading
import time

from gearshift.cluster_model.closed_forms import possible_rate
from gearshift.cluster_model.cluster import ClusterModel
from gearshift.cluster_model.durations import worker_times


class Pacer:
    """Injects the delays; called from each worker's thread."""

    def __init__(self, cluster: ClusterModel) -> None:
        self.cluster = cluster
        self._times = worker_times(cluster)
        self._batches = [0] * cluster.workers
        self._overruns = [0] * cluster.workers
        self._began = time.monotonic()
        self._closed = threading.Event()

    def pad(self, worker: int, examples: int, since: float) -> None:
        """Wait until the batch that began at `since` has lasted for the drawn duration."""
        n = self._batches[worker]
        self._batches[worker] = n + 1
        seconds = self._times[worker].seconds(n, examples, since - self._began)
        left = since + seconds - time.monotonic()
        if left > 0:
            self._closed.wait(left)
        else:
            self._overruns[worker] += 1

    def close(self) -> None:
        """End all waiting."""
        self._closed.set()

    @property
    def overrun(self) -> float:
        """The share of batches whose real work took longer than the drawn duration."""
        return sum(self._overruns) / max(1, sum(self._batches))

    def possible(self, batch: int) -> float:
        """Examples per second without waiting for other workers."""
        return possible_rate(self.cluster, batch, time.monotonic() - self._began)
