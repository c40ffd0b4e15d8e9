"""The coordinator on the network: runs training for workers and shards that may be slow, lost or restarted.

A worker that is silent for too long, or that restarts, loses its leases to others. If a shard or the coordinator itself
is lost there is one way to recover: a new incarnation, in which all shards load the newest snapshot and all later steps
are redone. The role counts incarnations, tracks the starts and loads of shards, and passes all other messages to the
current `Incarnation`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gearshift.engine.epoch import Epoch
from gearshift.engine.protocol.all_reduce import AllReduceGroups
from gearshift.engine.protocol.assignments import Assignments
from gearshift.engine.protocol.data_passes import DataPasses
from gearshift.engine.protocol.host import Accounts, SnapshotStore, StateLost
from gearshift.engine.protocol.incarnation import Incarnation
from gearshift.engine.protocol.messages import (
    Alive,
    Done,
    Hello,
    Loaded,
    Message,
    Out,
    Rejoin,
    Report,
    Saved,
    Seen,
    ShardHello,
    To,
    ToCoordinator,
)
from gearshift.engine.protocol.orders import Orders
from gearshift.engine.protocol.pass_epochs import PassEpochs
from gearshift.engine.protocol.replica_meetings import Meetings
from gearshift.engine.protocol.replica_messages import Met
from gearshift.engine.protocol.replica_plans import ReplicaPlans
from gearshift.engine.protocol.shard_members import ShardMembers
from gearshift.engine.protocol.snapshot_cuts import SnapshotCuts
from gearshift.engine.protocol.worker_leases import WorkerLeases
from gearshift.engine.protocol.worker_sessions import Session, WorkerSessions
from gearshift.sync.registry import make_strategy
from gearshift.training.engine import Log


@dataclass(frozen=True)
class CoordinatorSettings:
    shards: int
    examples: int  # number of examples in the data
    patience: float  # seconds for which a worker may be silent
    workers: int = 1 << 30  # workers have numbers below this one; others are dismissed
    cut_every: int = 0  # steps between two snapshots; 0: only requested ones are taken
    look_ahead: bool = False  # shards have rows on disk: workers tell them the ids of coming leases


class CoordinatorRole:
    def __init__(
        self,
        snapshot_store: SnapshotStore,
        accounts: Accounts,
        settings: CoordinatorSettings,
        *,
        log: Log | None = None,
        notify: Callable[[str], None] = lambda sentence: None,
        all_reduce_groups: AllReduceGroups | None = None,
    ) -> None:
        self._snapshot_store, self._accounts, self._settings = snapshot_store, accounts, settings
        self.patience, self._log, self._notify = settings.patience, log, notify
        self.out: Out = []
        self.now = 0.0
        self.all_reduce_groups = all_reduce_groups or AllReduceGroups()
        self.sessions = WorkerSessions(settings.workers)
        self.shards = ShardMembers(settings.shards, settings.patience, self._send, lambda: self.now)
        self._new_incarnation()

    # ---- incarnations ----

    def _new_incarnation(self) -> None:
        self.incarnation = self._snapshot_store.new_incarnation()
        snapshot, self._facts = self._snapshot_store.newest()
        self.running: Incarnation | None = None  # until all shards have loaded
        self.sessions.forget()
        self.all_reduce_groups.forget()
        self.shards.load(self.incarnation, snapshot)

    def _begin(self) -> Incarnation:
        """Starts the work of an incarnation from the facts of the newest snapshot."""
        facts, number, settings = self._facts, self.incarnation, self._settings
        accounts, sessions, groups = self._accounts, self.sessions, self.all_reduce_groups
        send, clock = self._send, lambda: self.now
        strategy = make_strategy(facts["strategy"], facts["settings"])
        accounts.restore(facts["book"])
        orders = Orders(number, settings.shards, send)
        cuts = SnapshotCuts(number, settings.shards, self._snapshot_store, orders, send)
        meetings = Meetings(number, ReplicaPlans(strategy, sessions, orders), sessions, send)
        assignments = Assignments(
            number, accounts, sessions, groups, meetings, send, clock, look_ahead=settings.look_ahead
        )
        epochs = PassEpochs(orders, accounts, meetings, assignments, settings.cut_every, self._log, clock)
        examples = settings.examples
        passes = DataPasses(facts, strategy, examples, epochs, accounts, cuts, meetings, sessions, send)
        leases = WorkerLeases(number, passes, sessions, groups, meetings, send, self._notify, clock)
        self.running = Incarnation(orders, cuts, meetings, passes, leases, accounts)
        self.shards.begin()
        return self.running

    @property
    def epoch(self) -> Epoch[Any] | None:
        """The epoch of the current pass; None while shards load."""
        return None if self.running is None else self.running.passes.epoch

    @property
    def over(self) -> bool:
        return self.running is not None and self.running.passes.over

    # ---- messages ----

    def handle(self, message: ToCoordinator, now: float) -> None:
        self.now = now
        try:
            self.take(message)
        except StateLost:
            self._new_incarnation()
        self.proceed()

    def proceed(self) -> None:
        """Carries out everything that has become possible."""
        try:
            while self.running is not None and self.running.advance():
                pass
        except StateLost:
            self._new_incarnation()

    def take(self, message: ToCoordinator) -> None:
        """Handles a message but does not proceed: the host may still be busy with the end of a step."""
        match message:
            case ShardHello() | Loaded() | Done() | Saved() | Seen():
                self.shards.note_heard(message.shard)
                self._take_from_shard(message)
            case Hello(worker, boot):
                if self.running is not None:
                    self.running.leases.join(worker, boot)
            case Alive() | Report() | Met():
                session = self._session_of(message)
                if self.running is not None and session is not None:
                    self.running.take_from_worker(session, message)

    def _take_from_shard(self, message: ShardHello | Loaded | Done | Saved | Seen) -> None:
        match message:
            case ShardHello(shard, boot):
                self._shard_started(shard, boot)
            case Loaded(incarnation, shard, boot):
                if incarnation != self.incarnation or self.running is not None:
                    self._is_known(shard, boot)
                elif self.shards.take_loaded(shard, boot):
                    self._begin()
            case Done(incarnation, shard, boot) | Saved(incarnation, shard, boot):
                known = self._is_known(shard, boot) and incarnation == self.incarnation
                if known and self.running is not None:
                    self.running.take_from_shard(message)
            case Seen():
                pass  # the answer to a request that is no longer pending

    def _shard_started(self, shard: int, boot: int) -> None:
        if self.shards.start(shard, boot):
            self._notify(f"shard {shard} was lost and restarted")
            self._new_incarnation()

    def _is_known(self, shard: int, boot: int) -> bool:
        """Whether this boot is known. If not, we missed a restart that lost state: a new incarnation begins."""
        if self.shards.is_new(shard, boot):
            self._shard_started(shard, boot)
            return False
        return boot == self.shards.boot_of(shard)

    def _session_of(self, message: Alive | Report | Met) -> Session | None:
        """The session of the sender. None if it has none, or its session has ended; it must then rejoin."""
        session = self.sessions.get(message.worker)
        if message.incarnation != self.incarnation or session is None or session.boot != message.boot:
            self._send(To("worker", message.worker), Rejoin(message.boot))
            return None
        session.heard = self.now
        return session

    def _send(self, to: To, message: Message) -> None:
        self.out.append((to, message))

    # ---- time ----

    def tick(self, now: float) -> None:
        """Time has passed: unanswered messages are resent, and workers that were silent too long are declared lost."""
        self.now = now
        if self.running is None:
            self.shards.resend_load()
        else:
            self.running.tick(self.patience)
            self.proceed()

    def wakes_in(self, now: float) -> float | None:
        """The seconds after which `time_passed` may have a consequence; None: never, unless something happens."""
        self.now = now
        return None if self.epoch is None or self.over else self.epoch.wakes_in

    def time_passed(self, now: float) -> None:
        """Lets idle workers begin what only time allows."""
        self.now = now
        if self.epoch is not None and not self.over:
            self.epoch.time_passed()
            self.proceed()

    # ---- requests of the host ----

    def stop(self) -> None:
        """Stops at once if no worker is active. Otherwise the run stops after its next step."""
        if not self.sessions:
            running = self.running or self._begin()  # at the newest snapshot; this needs no shard
            running.stop()

    def resize(self, workers: int) -> None:
        """Only workers with a number below this stay; others leave after their batch."""
        self.sessions.limit = workers
        if self.running is not None:
            self.running.leases.dismiss_surplus()

    def dismiss(self, worker: int) -> None:
        """The worker finishes its batch and leaves. A later worker may use its number."""
        if self.running is not None:
            self.running.leases.dismiss(worker)
