"""The number of workers and shards of a run, and their memory: plain values, so that a config can be read without
torch.

Keys of the config's section `cluster` that apply to all engines are declared in `WorkerCounts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gearshift.cluster_model.cluster import ClusterModel
from gearshift.embedding.cold_tier import ColdTier, StorageSettings, too_much
from gearshift.errors import UserError
from gearshift.settings.declaration import setting
from gearshift.settings.units import Count, Memory, parse_memory

MOST_SHARDS = 256  # as many as a row store has partitions


@dataclass(frozen=True)
class WorkerCounts:
    """The numbers of workers, shards and threads."""

    count: Count = setting(1, "Number of workers that compute at the same time.", key="workers", at_least=1)
    shards: Count = setting(
        1,
        "Number of shards that rows and dense parameters are divided into.",
        at_least=1,
        at_most=MOST_SHARDS,
    )
    threads: Count | None = setting(
        None,
        "CPU threads: of all workers together (threads; all cores if not set), or of each process (ray; 1).",
        at_least=1,
    )


@dataclass(frozen=True)
class WorkerSettings(WorkerCounts):
    """How many workers compute, and into how many shards the parameters are divided.

    Workers are threads, or processes with `Trainer(cluster=...)`: each of these has `ClusterSettings.threads`.
    """

    inject: ClusterModel | None = None  # injected slowness, for experiments
    memory: int | float | str | None = (
        None  # for embedding rows (on a cluster: of each shard): bytes, "16GiB" or "25%"
    )
    storage: str | Path | StorageSettings | None = (
        None  # the folder for the others; by default below the runs
    )

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= MOST_SHARDS:
            raise UserError(f"shards={self.shards}: use 1 to {MOST_SHARDS} shards")
        if self._budget is None and self._storage != StorageSettings():
            raise UserError(
                f"WorkerSettings(storage={self.storage!r}) is for rows that do not fit in memory: set memory too, "
                'such as memory="50%"'
            )

    @property
    def _budget(self) -> Memory | None:
        try:
            return None if self.memory is None else parse_memory(self.memory)
        except ValueError as error:
            raise UserError(f"WorkerSettings(memory={self.memory!r}): {error}") from None

    @property
    def _storage(self) -> StorageSettings:
        return self.storage if isinstance(self.storage, StorageSettings) else StorageSettings(self.storage)

    def memory_warning(self) -> str | None:
        """A sentence if rows may take nearly all memory of this machine."""
        return None if self._budget is None else too_much(self._budget)

    def check_storage(self) -> None:
        """Raises if rows cannot be written where the user wants them on this machine."""
        if self._budget is not None:
            self._storage.check_path()

    def cold_tier(self, runs: str | Path, *, batches_here: bool = True) -> ColdTier | None:
        """Where rows go that do not fit in `memory` on this machine; `runs` is the folder of the runs."""
        if self._budget is None:
            return None
        return self._storage.tier(self._budget, runs, batches_here=batches_here)
