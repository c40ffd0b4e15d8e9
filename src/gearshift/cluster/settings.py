"""Where the processes of a run live, and how they talk: what a user may choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Wire = Literal["auto", "ipc", "curve"]


@dataclass(frozen=True)
class ClusterSettings:
    """Where a run's processes live, and how they talk."""

    address: str = "local"  # of a Ray cluster; `local` starts one for the run, `auto` finds one that is there
    wire: Wire = "auto"  # ipc inside a machine, curve (encrypted) between machines
    half: bool = False  # rows and gradients travel as bfloat16
    patience: float = 30.0  # seconds after which one that is silent is lost
    spread: bool = False  # over machines, rather than together
    coordinator_cpus: float = 1.0
    shard_cpus: float = 1.0
    worker_cpus: float = 1.0
    worker_gpus: float = 0.0
    threads: int = 1  # of a worker and of a shard
