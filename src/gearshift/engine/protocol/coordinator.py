"""The coordinator on the network: runs an `Epoch` for workers and shards that may be slow, lost or started anew.

A worker that is silent for too long, or that starts anew, loses its leases to others. If a shard or the coordinator
itself is lost there is one way on: a new incarnation, in which all shards load the newest snapshot and everything
after it is done again. A snapshot is an order like any other, right after a step; it counts once every shard has
written its part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from gearshift.engine.epoch import Epoch
from gearshift.engine.protocol.all_reduce import AllReduceGroups
from gearshift.engine.protocol.host import Accounts, SnapshotStore, StateLost
from gearshift.engine.protocol.messages import (
    Alive,
    Assignment,
    Done,
    Hello,
    IsSaved,
    Load,
    Loaded,
    Out,
    Over,
    Rejoin,
    Report,
    Saved,
    Seen,
    ShardHello,
    To,
    ToCoordinator,
    Welcome,
)
from gearshift.engine.protocol.orders import Orders
from gearshift.engine.protocol.replica_meetings import Meetings
from gearshift.engine.protocol.replica_messages import Met
from gearshift.parameters.shard import ApplyStep, Assemble, Drop, TakeCut
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.messages import Begin
from gearshift.sync.registry import make_strategy
from gearshift.training.engine import Log

LOADING = 20  # times as long may a shard be silent while it loads its part


@dataclass
class Session:
    """What is known of a worker since it started."""

    boot: int
    heard: float
    request: int = 0
    answer: Assignment | None = None  # to that request
    dismissed: bool = False  # it leaves when it has ended its batch


class CoordinatorRole:
    def __init__(
        self,
        snapshot_store: SnapshotStore,
        accounts: Accounts,
        *,
        shards: int,
        examples: int,
        patience: float,
        workers: int = 1 << 30,
        cut_every: int = 0,
        log: Log | None = None,
        tell: Callable[[str], None] = lambda sentence: None,
        all_reduce_groups: AllReduceGroups | None = None,
    ) -> None:
        """`patience` is how long a worker may be silent; a snapshot is taken every `cut_every` steps, 0: never.

        Workers have the numbers below `workers`; others are sent home.
        """
        self.snapshot_store, self.accounts, self.shards, self.examples = (
            snapshot_store,
            accounts,
            shards,
            examples,
        )
        self.patience, self.workers, self.cut_every, self._log = patience, workers, cut_every, log
        self.tell, self.all_reduce_groups = tell, all_reduce_groups or AllReduceGroups()
        self.out: Out = []
        self.now = 0.0
        self._boots = dict.fromkeys(range(shards), 0)  # the newest start of each shard
        self._heard = dict.fromkeys(range(shards), 0.0)  # when, of each shard
        self._silent_workers: list[tuple[int, int]] = []
        self._new_incarnation()

    # ---- incarnations ----

    def _new_incarnation(self) -> None:
        self.incarnation = self.snapshot_store.new_incarnation()
        self._snapshot, self._facts = self.snapshot_store.newest()
        self.epoch: Epoch[Any] | None = None
        self.over = False
        self._loaded: set[int] = set()
        self._workers: dict[int, Session] = {}
        self.all_reduce_groups.forget()
        self._given_up: dict[int, int] = {}  # by worker: the last start that was given up
        self.orders = Orders(self.incarnation, self.shards, lambda to, order: self.out.append((to, order)))
        self._heard = dict.fromkeys(range(self.shards), self.now)
        self._cut: tuple[str, dict[str, Any]] | None = None  # being written
        self._cut_parts: set[int] = set()
        self._cut_error = ""
        for shard in range(self.shards):
            self._send_load(shard)

    def _send_load(self, shard: int) -> None:
        if boot := self._boots[shard]:  # else nobody has said that it is there
            self.out.append((To("shard", shard), Load(self.incarnation, boot, self._snapshot)))

    def _begin(self) -> None:
        facts = self._facts
        strategy = make_strategy(facts["strategy"], facts["settings"])
        self.accounts.restore(facts["book"])
        self.epoch_number: int = facts.get("epoch", 0)
        self.position: int = facts["position"]
        self._open_epoch(Coordinator(strategy, make_strategy, step=facts["step"]))
        assert self.epoch is not None
        self.meetings = Meetings(self, strategy)
        for first, count in facts["leased"]:
            self.epoch.supply(first, count)
        for first, count in facts["unbegun"]:
            self.epoch.supply(first, count, strategy.batch)

    def _open_epoch(self, coordinator: Coordinator) -> None:
        self._looking = _SnapshotWatcher(self)
        self.epoch = Epoch(coordinator, self, self._looking, self._log, now=lambda: self.now)
        self.epoch.tell = self._tell

    def _next_pass(self) -> None:
        """Once more over the data, with everybody who is here; those who asked for work still want it."""
        old = self.the_epoch.coordinator
        self.epoch_number, self.position = self.epoch_number + 1, 0
        first_lease = old.work.supply.next_number
        self._open_epoch(
            Coordinator(old.strategy, make_strategy, step=self.the_epoch.step, first_lease=first_lease)
        )
        self.meetings.take_over(old.strategy, keep=False)
        for worker, session in self._workers.items():
            self.the_epoch.joined(worker)
            if session.request and session.answer is None:
                self.the_epoch.requested(worker)

    # ---- what is said ----

    def handle(self, message: ToCoordinator, now: float) -> None:
        self.now = now
        try:
            self._handle(message)
        except StateLost:
            self._new_incarnation()
        self.proceed()

    def proceed(self) -> None:
        """With what has become possible."""
        try:
            self._feed()
            while self.epoch is not None and self.meetings.advance():
                self._feed()
        except StateLost:
            self._new_incarnation()

    def _handle(self, message: ToCoordinator) -> None:
        if isinstance(message, ShardHello | Loaded | Done | Saved | Seen):
            self._heard[message.shard] = self.now
        match message:
            case ShardHello(shard, boot):
                self._shard_started(shard, boot)
            case Loaded(incarnation, shard, boot):
                if incarnation == self.incarnation and self.epoch is None:
                    self._shard_loaded(shard, boot)
                else:
                    self._is_known(shard, boot)
            case Done(incarnation, shard, boot, number):
                known = self._is_known(shard, boot) and incarnation == self.incarnation
                if known and self.orders.done(shard, number):
                    self.the_epoch.carried_out()
            case Saved(incarnation, shard, boot, name, error):
                if self._is_known(shard, boot) and incarnation == self.incarnation:
                    self._part_saved(shard, name, error)
            case Hello(worker, boot):
                self.worker_started(worker, boot)
            case Alive(incarnation, worker, boot):
                self._known(incarnation, worker, boot)
            case Report(incarnation, worker, boot):
                if session := self._known(incarnation, worker, boot):
                    self._reported(session, message)
            case Met(incarnation, worker, boot):
                if self._known(incarnation, worker, boot):
                    self.accounts.counted(worker, boot, message.counts)
                    self.meetings.met(message)
            case Seen():
                pass  # the answer to a question that nobody asks any more

    def tick(self, now: float) -> None:
        """Time has passed: what was not answered is said again, and who was silent too long is given up."""
        self.now = now
        if self.epoch is None:
            for shard in range(self.shards):
                if shard not in self._loaded:
                    self._send_load(shard)
            return
        self._orders_again()
        self.meetings.tick()
        for worker, session in list(self._workers.items()) if not self.over else ():  # they have left
            if now - session.heard > self.patience and self._is_here(worker, session):
                reason = f"worker {worker} was silent for {self.patience:g} s"
                self.tell(f"{reason}; its examples go to the others")
                self._given_up[worker] = session.boot
                self._silent_workers.append((worker, session.boot))
                self._lose(worker, reason)
        self.proceed()

    def figures(self) -> dict[str, float]:
        """Who is here, and what is under way. From any thread."""
        found = {
            "workers": len(self._workers),
            "orders_open": len(self.orders.open),
            "incarnation": self.incarnation,
            "ring_rounds": self.all_reduce_groups.rounds,
            "rings_broken": self.all_reduce_groups.broken,
        }
        if (epoch := self.epoch) is not None:
            work = epoch.coordinator.work
            found |= {"leases_open": len(work.flying), "gradients_waiting": len(work.waiting)}
        return dict(found)

    def settle(self, message: Done | Saved) -> None:
        """In the middle of a step's end, while the host waits for a snapshot: what shards say of it."""
        self._handle(message)

    def settle_again(self) -> None:
        self._orders_again()

    def switch(self, strategy: str, settings: dict[str, Any], reason: str) -> None:
        """Another strategy decides from here on; nothing under way is lost."""
        if self.epoch is not None:
            self.end_ring()  # its gradients count together, which only sync promises
            self.meetings.take_over(make_strategy(strategy, settings), keep=True)
            self.epoch.switch(strategy, settings, reason)
            self._feed()

    def stop(self) -> None:
        """Here, if nobody works: no step will come after which a run usually stops."""
        if not self.alone:
            return
        if self.epoch is None:
            self._begin()  # where the newest snapshot is; no shard is needed for it
        if self.the_epoch.at_rest and (self.meetings.shown or not self.meetings.replicated):
            self.the_epoch.stopped = self.over = True
        elif self.the_epoch.at_rest:
            self.meetings.want()

    def resize(self, workers: int) -> None:
        """Only those with a number below this shall work; others leave when they have ended their batch."""
        self.workers = workers
        for worker, session in list(self._workers.items()):
            if worker >= workers and session.answer is None and self._is_here(worker, session):
                self._leave(worker, session)

    def _is_here(self, worker: int, session: Session) -> bool:
        """Asked in a loop over sessions: whoever leaves may break a ring, and others of it leave at once."""
        return self._workers.get(worker) is session

    def dismiss(self, worker: int) -> None:
        """It ends its batch and leaves; whoever comes with its number later is welcome."""
        if (session := self._workers.get(worker)) is not None:
            if session.answer is None:
                self._leave(worker, session)
            else:
                session.dismissed = True

    # ---- shards ----

    def is_new(self, shard: int, boot: int) -> bool:
        """Whether a shard of this start is another than the one we know."""
        return boot > self._boots[shard]

    def boot_of(self, shard: int) -> int:
        """The newest start that was heard of."""
        return self._boots[shard]

    def silent(self) -> list[int]:
        """Shards that have said nothing for too long; each is named once in that time."""
        found = [
            shard for shard, heard in self._heard.items() if self.now - heard > self.patience_with_shards
        ]
        self._heard |= dict.fromkeys(found, self.now)
        return found

    def silent_workers(self) -> list[tuple[int, int]]:
        """Those given up for their silence since this was asked last, with their boots: nobody else will end them."""
        found, self._silent_workers = self._silent_workers, []
        return found

    @property
    def patience_with_shards(self) -> float:
        return self.patience if self.epoch is not None else LOADING * self.patience

    def _shard_started(self, shard: int, boot: int) -> None:
        if boot < self._boots[shard]:
            return
        again, self._boots[shard] = boot > self._boots[shard], boot
        if again and self.epoch is not None:
            self.tell(f"shard {shard} was lost and restarted")
            self._new_incarnation()
        elif self.epoch is None:
            self._loaded.discard(shard)
            self._send_load(shard)

    def _is_known(self, shard: int, boot: int) -> bool:
        """A shard that has started anew, unheard, holds another state than we believe: all begin anew."""
        if boot > self._boots[shard]:
            self._shard_started(shard, boot)
            return False
        return boot == self._boots[shard]

    def _shard_loaded(self, shard: int, boot: int) -> None:
        if boot >= self._boots[shard]:
            self._boots[shard] = boot
            self._loaded.add(shard)
        if len(self._loaded) == self.shards:
            self._begin()

    def carry_out(self, what: ApplyStep | Drop | TakeCut | Assemble, open_from: int) -> bool:
        """For `Epoch`: an order to all shards. Only a step is waited for."""
        self.orders.give(what, open_from)
        return False

    def _orders_again(self) -> None:
        self.orders.again()
        if self._cut is not None:
            for shard in self.unsaved:
                self.out.append((To("shard", shard), IsSaved(self.incarnation, self._cut[0])))

    # ---- snapshots ----

    @property
    def alone(self) -> bool:
        """Whether no worker is here."""
        return not self._workers

    @property
    def cutting(self) -> bool:
        """Whether a snapshot is being written."""
        return self._cut is not None

    @property
    def unsaved(self) -> list[int]:
        """The shards whose parts of it are not on disk yet."""
        return [shard for shard in range(self.shards) if shard not in self._cut_parts]

    def take_cut(self) -> None:
        """Of the step that all shards have just applied, unless one is still being written."""
        assert self.epoch is not None
        if self._cut is None:
            step, strategy = self.epoch.step, self.epoch.coordinator.strategy
            facts = {
                "step": step,
                "epoch": self.epoch_number,
                "position": self.position,
                "leased": self.epoch.leased_ranges(),
                "unbegun": self.epoch.unbegun_ranges(),
                "strategy": strategy.name,
                "settings": asdict(strategy),
                "book": self.accounts.facts(),
            }
            self._cut, self._cut_parts = (f"step-{step}-{self.incarnation}", facts), set()
            self._cut_error = ""
            self.carry_out(TakeCut(self._cut[0]), 0)

    def _part_saved(self, shard: int, name: str, error: str) -> None:
        if self._cut is None or self._cut[0] != name:
            return
        self._cut_parts.add(shard)
        self._cut_error = self._cut_error or error
        if len(self._cut_parts) == self.shards:  # also if one of them failed: the others write until then
            if self._cut_error:
                self.snapshot_store.failed(name, self._cut_error)  # the next one may fare better
            else:
                self.snapshot_store.commit(self.incarnation, *self._cut)
            self._cut = None

    # ---- replicas ----

    @property
    def members(self) -> dict[int, int]:
        """Boots of the workers that are here."""
        return {worker: session.boot for worker, session in self._workers.items()}

    @property
    def the_epoch(self) -> Epoch[Any]:
        assert self.epoch is not None
        return self.epoch

    def shown(self) -> None:
        """What replicas agree on is on the shards: what has waited for it is done."""
        self._looking.shown()
        self._feed()

    # ---- workers ----

    def worker_started(self, worker: int, boot: int) -> None:
        """It is there, or still there and was not heard."""
        session = self._workers.get(worker)
        if self.epoch is None or (session is not None and boot < session.boot):
            return
        if worker >= self.workers or (self.over and session is None):
            self.out.append((To("worker", worker), Over(boot)))
            return
        if boot <= self._given_up.get(worker, 0):
            self.out.append((To("worker", worker), Rejoin(boot)))
            return
        if session is not None and boot > session.boot:
            self.tell(f"worker {worker} started anew; what it had begun is begun again")
        if session is None or boot > session.boot:
            if not self.meetings.admits(worker, boot):
                if session is not None:
                    self._lose(worker, f"worker {worker} started anew")
                return
            held = self._undo_ring_of(worker)
            self._workers[worker] = Session(boot, self.now)
            self.epoch.joined(worker)
            self.meetings.joined()
            self._begin_again(held)
        self._workers[worker].heard = self.now
        self.out.append((To("worker", worker), Welcome(self.incarnation, boot)))

    def _known(self, incarnation: int, worker: int, boot: int) -> Session | None:
        session = self._workers.get(worker)
        if incarnation != self.incarnation or session is None or session.boot != boot:
            self.out.append((To("worker", worker), Rejoin(boot)))
            return None
        session.heard = self.now
        return session

    def _reported(self, session: Session, report: Report) -> None:
        assert self.epoch is not None
        if report.request < session.request:
            return
        if report.request == session.request:
            if session.answer is not None:
                self.out.append((To("worker", report.worker), session.answer))
            return
        session.request, session.answer = report.request, None
        if report.ring:
            self._ring_reported(report)
            return
        if report.lease is None or self.epoch.held_by(report.lease) not in (None, report.worker):
            pass  # nothing yet; or a lease that was given to another, who will report it
        elif report.refused:
            self.epoch.refused(report.worker, report.lease, report.refused)
        else:
            self.epoch.arrived(report.worker, report.lease, report.content, report.seconds, report.version)
        self._wants_more(report.worker)

    def _wants_more(self, worker: int) -> None:
        assert self.epoch is not None
        if worker >= self.workers or self._workers[worker].dismissed:
            self._leave(worker, self._workers[worker])
            return
        if self.epoch.coordinator.work.flights_of[worker]:
            self.epoch.joined(worker)  # it knows nothing of a lease that it did not report
        self.epoch.requested(worker)

    def _ring_reported(self, report: Report) -> None:
        """Gradients of a ring arrive together; what is of a ring that broke is done again."""
        assert self.epoch is not None
        if not self.all_reduce_groups.expects(report):
            self._wants_more(report.worker)
        elif report.lease is None:
            held = self.all_reduce_groups.failed(report.refused)
            self._wants_more(report.worker)
            self._begin_again(held)
        elif whole := self.all_reduce_groups.hold(report):
            for one in whole:
                assert one.lease is not None
                self.epoch.arrived(one.worker, one.lease, one.content, one.seconds, one.version)
            for one in whole:
                self._wants_more(one.worker)

    def _undo_ring_of(self, worker: int) -> list[Report]:
        """Before its lease goes to somebody else, no member of that ring; what was held begins again afterwards."""
        return self.all_reduce_groups.undo() if self.all_reduce_groups.has(worker) else []

    def end_ring(self) -> None:
        """A meeting begins: who has met would wait for the sum of one that may not give its part any more."""
        self._begin_again(self.all_reduce_groups.undo())

    def _begin_again(self, held: list[Report]) -> None:
        for report in held:
            session = self._workers.get(report.worker)
            if session is not None and session.boot == report.boot:
                self._wants_more(report.worker)

    def _leave(self, worker: int, session: Session) -> None:
        self._given_up[worker] = session.boot
        self._lose(worker, f"worker {worker} left")
        self.out.append((To("worker", worker), Over(session.boot)))

    def _lose(self, worker: int, reason: str) -> None:
        held = self._undo_ring_of(worker)
        del self._workers[worker]
        self.the_epoch.lost(worker, reason)
        self.meetings.lost(worker)
        self._begin_again(held)

    def _tell(self, begin: Begin) -> None:
        session = self._workers[begin.worker]
        rate = self.accounts.rate_after(begin.lease.count)
        head = self.incarnation, session.boot, session.request
        place = self.all_reduce_groups.place(begin, self._all_asking, self.the_epoch.coordinator, self.now)
        session.answer = Assignment(*head, begin, self.epoch_number, self.meetings.plan, rate, place)
        self.out.append((To("worker", begin.worker), session.answer))

    def _all_asking(self) -> dict[int, int] | None:
        """The boots of all workers, unless one of them is at work, has not asked yet, or is about to leave or meet."""
        if self.meetings.under_way:
            return None
        for worker, session in self._workers.items():
            leaves = worker >= self.workers or session.dismissed
            if leaves or session.answer is not None or not session.request:
                return None
        return self.members

    def _feed(self) -> None:
        """Examples for those who wait, a global batch at a time; farewell when there are none."""
        while (epoch := self.epoch) is not None and not self.over:
            while epoch.hungry:
                strategy = epoch.coordinator.strategy
                count = min(strategy.global_batch, self.examples - self.position)
                if count:
                    first, self.position = self.position, self.position + count
                    epoch.supply(first, count, strategy.batch)
                else:
                    epoch.exhausted()
            if not epoch.done:
                return
            if self.meetings.replicated and not self.meetings.shown:
                self.meetings.want()
                return
            if not epoch.stopped and self.accounts.passed(epoch.coordinator.work.supply.next_number):
                self._next_pass()
            else:
                self.over = True
        if self.over:
            for worker, session in self._workers.items():
                self.out.append((To("worker", worker), Over(session.boot)))


class _SnapshotWatcher:
    """The book, and a look after each step whether a snapshot is due."""

    def __init__(self, role: CoordinatorRole) -> None:
        self._role = role
        self.rate, self.ended = role.accounts.rate, role.accounts.ended
        self._steps = 0
        self._cut_due = self._stop = False

    def stepped(self) -> bool:
        role = self._role
        self._steps += 1
        go_on = role.accounts.stepped()
        self._cut_due |= bool(role.cut_every) and self._steps % role.cut_every == 0
        if role.meetings.replicated and not role.meetings.shown:
            self._stop |= not go_on
            if self._cut_due or self._stop:
                role.meetings.want()
            return True  # what is stopped here could not be saved
        self._take_cut()
        return go_on

    def meet(self, number: int) -> bool:
        return self._role.meetings.meet(number)

    def shown(self) -> None:
        self._role.accounts.shown()
        self._take_cut()
        if self._stop:
            self._role.the_epoch.stopped = True

    def _take_cut(self) -> None:
        if self._cut_due:
            self._cut_due = False
            self._role.take_cut()
