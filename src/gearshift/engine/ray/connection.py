"""How the processes of a run reach each other: their endpoints, and the size limits of their messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gearshift.data.schema import Bag, Sequence
from gearshift.engine.protocol.all_reduce import Transport
from gearshift.engine.ray.cluster_settings import ConnectionSettings
from gearshift.engine.ray.dense_copy import state_of, wants_spread
from gearshift.engine.wire.address import ipc_address
from gearshift.engine.wire.driver import Driver
from gearshift.engine.wire.endpoint import Endpoint
from gearshift.engine.wire.keys import Keys
from gearshift.engine.wire.limits import Limits, Statistic
from gearshift.parameters.shard import ShardLayout
from gearshift.training.learner import Learner
from gearshift.training.training import Training

if TYPE_CHECKING:
    from gearshift.engine.ray.process_context import Membership

BAG = 256  # maximum number of ids per example and bag in a message


@dataclass(frozen=True)
class Connection:
    """How processes communicate."""

    wire: Literal["ipc", "curve"]
    sockets: str  # the folder for ipc
    settings: ConnectionSettings = field(default_factory=ConnectionSettings)  # what the user chose
    tick: float = 0.25  # seconds between two ticks, after which messages are resent
    transport: Transport = "servers"  # of dense gradients in sync

    def meeting_place(self, folder: Path) -> Path:
        """The folder where members of an all-reduce group find each other; other users cannot read it."""
        return folder if self.wire == "curve" else Path(self.sockets)

    def endpoint(
        self, member: Membership, training: Training, shards: int, local: Path | None = None
    ) -> Endpoint:
        """Opens the sockets of this process and announces their addresses to the others.

        A relay listens in the folder `local`, which only this machine can reach.
        """
        keys = Keys.make() if self.wire == "curve" else None
        bind = ""
        if local is not None:
            bind = ipc_address(local, member.me, member.boot)
        elif member.me.role != "worker":
            host = f"[{member.host}]" if ":" in member.host else member.host
            bind = f"tcp://{host}:*" if keys else ipc_address(Path(self.sockets), member.me, member.boot)
        limits = limits_of(training, shards)
        endpoint = Endpoint(member.me, member.boot, limits, bind=bind, keys=keys, half=self.settings.half)
        member.announce(endpoint.contact)
        return endpoint

    def driver(self, member: Membership, endpoint: Endpoint) -> Driver:
        driver = Driver(endpoint, tick=self.tick, look=member.contacts, notify=member.notify)
        member.measured_by(driver.figures)
        return driver


def layout_of(learner: Learner, shards: int) -> ShardLayout:
    dense, together = learner.worker.dense, learner.server.dense_policy.clip_norm is not None
    return ShardLayout.of(shards, len(dense), dense.offsets, together=together)


def limits_of(training: Training, shards: int) -> Limits:
    """The largest messages of this run: a lease is never larger than the global batch."""
    learner, batch = training.learner, training.plan.global_batch
    schema = learner.schema
    per_example = 0
    for group in learner.worker.groups:
        ragged = [schema.ragged_fields[i] for i in group.ragged]
        lists = sum(
            f.max_len if isinstance(f, Sequence) else BAG for f in ragged if isinstance(f, Bag | Sequence)
        )
        per_example = max(per_example, len(group.singles) + lists)
    statistics = tuple(
        Statistic(name, tuple(values.shape), not values.is_floating_point())
        for name, values in learner.model.named_buffers()
    )
    return Limits(
        tuple(store.width for store in learner.server.stores),
        tuple(part.stop - part.start for part in layout_of(learner, shards).dense),
        ids=max(1, batch * per_example),
        batch=batch,
        tasks=max(1, len(schema.labels)),
        statistics=statistics,
        state=state_of(learner.server),
        spread=wants_spread(learner.server),
    )
