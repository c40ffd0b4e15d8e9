"""The coordinator's session with the processes of a cluster, from their start to their end.

It composes the coordinator's parts: its role in the protocol, its accounts, its questions to the shards, and its view
of their parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gearshift.engine.protocol.all_reduce import AllReduceGroups, Transport
from gearshift.engine.protocol.coordinator import CoordinatorRole, CoordinatorSettings
from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.accounts import TrainingAccounts
from gearshift.engine.ray.connection import layout_of
from gearshift.engine.ray.dense_copy import why_not_copied
from gearshift.engine.ray.process_context import ProcessContext
from gearshift.engine.ray.process_manager import ProcessManager
from gearshift.engine.ray.remote_rows import RemoteParameters
from gearshift.engine.ray.saver import ClusterSaver, FolderSnapshotStore
from gearshift.engine.ray.shard_questions import ShardQuestions
from gearshift.engine.ray.worker_process import STARTS
from gearshift.engine.wire.driver import Driver
from gearshift.errors import UserError
from gearshift.optim.variance_reduced import VarianceReduced
from gearshift.run.observer import RunObserver
from gearshift.training.learner import Learner


class CoordinatorSession:
    """Is also notified of what happens to processes (`process_manager.ProcessListener`)."""

    def __init__(
        self,
        context: ProcessContext,
        process_manager: ProcessManager,
        observer: RunObserver,
        saver: ClusterSaver,
        driver: Driver,
    ) -> None:
        self.context, self.process_manager, self.driver = context, process_manager, driver
        self.observer, self.parts, self.training = observer, observer.parts, observer.parts.training
        self.saver, self.layout = saver, layout_of(self.training.learner, context.shards)
        self.accounts = TrainingAccounts(self)
        connection, training = context.connection, self.training
        self.role = CoordinatorRole(
            FolderSnapshotStore(context.folder, training, saver, self.parts.last_save.persist, observer),
            self.accounts,
            CoordinatorSettings(
                shards=context.shards,
                examples=training.train.counted(),
                patience=connection.settings.patience,
                workers=training.workers,
                look_ahead=training.learner.lookahead is not None,
            ),
            log=self.accounts.observe,
            notify=observer.notify,
            all_reduce_groups=AllReduceGroups(
                _transport(training.learner, connection.transport), observer.notify
            ),
        )
        self.shards = ShardQuestions(
            self.role, driver, process_manager, context.shards, connection.settings.patience
        )
        self.parameters = RemoteParameters(training.learner, self.layout, self.shards)

    def use_relays(self) -> None:
        """Called regularly: in sync, relays sum gradients once there are some, unless each gradient counts alone."""
        server = self.training.learner.server
        summable = not isinstance(server.optimizer, VarianceReduced) and server.row_policy.reduce != "touched"
        self.role.all_reduce_groups.relays = summable and self.process_manager.relays()

    def leaving(self, members: Sequence[To], reason: str) -> None:
        """Takes a checkpoint before these leave; workers finish their batches. May be called from any thread."""
        names = ", ".join(f"{who.role} {who.number}" for who in members)
        self.observer.notify(
            f"{reason}: a checkpoint is taken, and {names} will continue elsewhere if there is room"
        )
        self.parts.saving.request()
        for who in members:
            if who.role == "worker":
                self.driver.post(partial(self.role.dismiss, who.number))

    def replaced(self, who: To, reason: str) -> None:
        """Marks the run as recovering until its next step. May be called from any thread."""
        fault = partial(self.parts.health.recovers, "frozen", who.role, who.number, reason=reason)
        self.driver.post(partial(fault, action="it is replaced"))

    def replace_worker(self, worker: int, boot: int) -> None:
        """`boot` is that of the worker's role; each process has `STARTS` of them."""
        reason = f"worker {worker} was silent for {self.context.connection.settings.patience:g} s"
        self.process_manager.replace(To("worker", worker), boot // STARTS, reason)


def _transport(learner: Learner, requested: Transport) -> Transport:
    """The requested transport, or the servers if the optimizer cannot step on a sum."""
    reason = why_not_copied(learner.server)
    if reason and requested == "all_reduce":
        raise UserError(
            f"cluster.sync_transport=all_reduce: {reason}. Use sync_transport=servers, or another optimizer"
        )
    return "servers" if reason else requested
