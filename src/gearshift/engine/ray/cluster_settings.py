"""Where the processes of a run are placed, and how they communicate: the user's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gearshift.engine.protocol.all_reduce import Transport
from gearshift.errors import UserError
from gearshift.settings.declaration import setting
from gearshift.settings.units import Count, Number, Seconds, Text

Wire = Literal["auto", "ipc", "curve"]
TwoLevels = Literal["auto", "on", "off"]


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What Ray reserves for each process."""

    coordinator_cpus: Number = setting(1.0, "CPUs of the coordinator.", at_least=0)
    shard_cpus: Number = setting(1.0, "CPUs of a shard.", at_least=0)
    worker_cpus: Number = setting(1.0, "CPUs of a worker.", at_least=0)
    worker_gpus: Number = setting(0.0, "GPUs of a worker. Untested.", at_least=0)


@dataclass(frozen=True)
class ConnectionSettings:
    """Where the cluster is, and how processes communicate."""

    address: Text = setting(
        "local",
        "Address of a Ray cluster, such as 10.0.0.5:6379; auto: that of this machine; local: a new one for the run.",
    )
    wire: Wire = setting(
        "auto", "How processes communicate: ipc inside a machine, curve (encrypted) between machines."
    )
    half: bool = setting(False, "Send rows and gradients as bfloat16, half the bytes.")
    patience: Seconds = setting(30.0, "A process that is silent for this long is replaced.", above=0)
    sync_transport: Transport = setting(
        "servers",
        "How sync sums dense gradients: on the servers, among the workers, or whichever is faster.",
    )
    trusted_network: bool = setting(
        False, "Only you have access to the network: all-reduce may be used between machines, unencrypted."
    )
    two_levels: TwoLevels = setting(
        "auto",
        "Combine the traffic of a machine's workers: auto where several workers have shards on other machines.",
    )


@dataclass(frozen=True)
class ClusterSettings(ConnectionSettings, Resources):
    """Where a run's processes are placed, and how they communicate."""

    spread: bool = setting(False, "Spread processes over many machines instead of few.")
    threads: Count = setting(1, "CPU threads per worker and per shard.", at_least=1)

    def transport(self, wire: Wire) -> Transport:
        """Checks which settings may be used with this wire."""
        reason = ""
        if self.half:
            reason = "cluster.half applies only to transfers through the servers; all-reduce sends float32"
        elif wire == "curve" and not self.trusted_network:
            reason = (
                "all-reduce is neither encrypted nor authenticated; between machines it needs a network that only you "
                "can reach, and cluster.trusted_network=true (docs/security.md)"
            )
        if reason and self.sync_transport == "all_reduce":
            raise UserError(f"cluster.sync_transport=all_reduce: {reason}. Use sync_transport=servers")
        return "servers" if reason else self.sync_transport
