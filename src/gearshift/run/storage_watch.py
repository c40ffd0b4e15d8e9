"""Stops a run whose rows can no longer be written to disk, before anything is lost.

A store keeps such rows in memory and retries (csrc/cold_tier.h), so the step is whole. The run then stops as if the
user had asked for it, which saves a checkpoint, and ends with the reason. Stores of other processes report their
failure among the metrics of their process.

If a file cannot be read, its rows are lost, and no checkpoint can be written: the run ends at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gearshift.embedding.store import RowStore
from gearshift.embedding.tier_figures import UNWRITTEN, tier_figures, write_failure
from gearshift.training.training import Training

LOOK_SECONDS = 1.0  # between two looks at other processes

Processes = Callable[[], dict[str, dict[str, float]]]


class StorageWatch:
    def __init__(self, training: Training, processes: Processes) -> None:
        """`processes` gives metrics of other processes."""
        self._training, self._processes = training, processes
        self._looked_at = 0.0
        self.failure: str | None = None  # once there was one

    def look(self) -> str | None:
        """Called between two steps: why rows cannot be written, with the file. Returned once.

        Raises `LostRows` if rows on disk cannot be read.
        """
        if self.failure is not None:
            return None
        self.failure = self._here() or self._elsewhere()
        return self.failure

    def _here(self) -> str | None:
        for store in _stores(self._training):
            if store.tier is None:
                continue
            store.tier.check()
            if (failure := store.tier.write_failure()) is not None:
                return f"rows on disk: {failure}"
        return None

    def _elsewhere(self) -> str | None:
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return None
        self._looked_at = time.monotonic()
        for name, figures in self._processes().items():
            if (failure := write_failure(figures)) is not None:
                return f"rows on disk of {name.replace('-', ' ')}: {failure}"
        return None


def figures_here(training: Training) -> dict[str, dict[str, float]]:
    """Metrics of the model's disk tiers in this process, by the name that a shard has on a cluster.

    Of the baseline only a failure to write counts, as it ends the run too.
    """
    figures = tier_figures(training.learner.server.stores)
    if not figures:
        return {}
    failed = any(store.tier and store.tier.write_failure() is not None for store in _stores(training))
    return {"shard-0": {**figures, UNWRITTEN: float(failed)}}


def _stores(training: Training) -> tuple[RowStore, ...]:
    """The baseline's too."""
    beside = training.baseline.learner
    return (*training.learner.server.stores, *(beside.server.stores if beside else ()))
