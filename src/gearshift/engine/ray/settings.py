"""Where the processes of a run live, and how they talk: what a user may choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gearshift.engine.protocol.all_reduce import Transport
from gearshift.errors import UserError

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
    sync_transport: Transport = "servers"  # of dense gradients in sync; or all-reduce among the workers
    trusted_network: bool = False  # all-reduce, which does not encrypt, may go between machines

    def transport(self, wire: Wire) -> Transport:
        """What may be used with this wire."""
        reason = ""
        if self.half:
            reason = "cluster.half halves what goes through the servers; all-reduce sends whole numbers"
        elif wire == "curve" and not self.trusted_network:
            reason = (
                "all-reduce is neither encrypted nor authenticated; between machines it needs a network that only you "
                "can reach, and cluster.trusted_network=true (docs/security.md)"
            )
        if reason and self.sync_transport == "all_reduce":
            raise UserError(f"cluster.sync_transport=all_reduce: {reason}. Use sync_transport=servers")
        return "servers" if reason else self.sync_transport
