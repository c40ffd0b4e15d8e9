"""A shard on the network: it serves pulls once it has the version they ask for, keeps gradients, carries out orders."""

from __future__ import annotations

from collections.abc import Callable

from gearshift.engine.protocol.messages import (
    COORDINATOR,
    Done,
    Give,
    IsSaved,
    Load,
    Loaded,
    Out,
    Peek,
    Pull,
    Rows,
    Saved,
    Seen,
    ShardHello,
    Taken,
    Tell,
    To,
    ToShard,
)
from gearshift.engine.protocol.replica_messages import Offer
from gearshift.engine.protocol.sync_server import SyncServer
from gearshift.optim.trust_figures import as_figures
from gearshift.parameters.server import Server
from gearshift.parameters.shard import Shard

LoadPart = Callable[[str], Server]  # this shard's part of the snapshot of that name
TakeCut = Callable[
    [str, Server], None
]  # sets the server's state aside; `ShardRole.saved` is called when it is written


class ShardRole:
    def __init__(self, number: int, boot: int, load: LoadPart, take_cut: TakeCut) -> None:
        self.number, self.boot, self._load, self._take_cut = number, boot, load, take_cut
        self.incarnation = 0  # of what it holds; 0: nothing
        self.shard: Shard | None = None
        self._replicas: SyncServer | None = None  # there with the shard
        self.out: Out = []
        self._parked: dict[int, Pull] = {}  # by worker: the newest
        self._saved: Saved | None = None  # what became of the last cut
        self._hello()

    def handle(self, message: ToShard) -> None:
        if isinstance(message, Load):
            self._take_snapshot(message)
        elif (
            self.shard is not None and self._replicas is not None and message.incarnation == self.incarnation
        ):
            match message:
                case Pull(worker=worker):
                    parked = self._parked.get(worker, message)
                    if (message.boot, message.pull) >= (parked.boot, parked.pull):
                        self._parked[worker] = message
                case Give(_, worker, lease, push):
                    self.shard.take(lease, push)
                    self.out.append((To("worker", worker), Taken(self.incarnation, self.number, lease)))
                case Tell(_, order):
                    self.shard.tell(order)
                    self._say_done(self.shard)
                case Peek(_, number, ids):
                    rows, dense, statistics = self.shard.peek(ids)
                    seen = Seen(self.incarnation, self.number, self.boot, number, rows, dense, statistics)
                    self.out.append((COORDINATOR, seen))
                case IsSaved(_, name):
                    if self._saved is not None and self._saved.name == name:
                        self.out.append((COORDINATOR, self._saved))
                case Offer():
                    self._replicas.take(message)
            self._serve(self.shard)
            self.out += self._replicas.said()

    def tick(self) -> None:
        """Time has passed: what was not answered is said again, and that it lives."""
        if self.shard is None:
            self._hello()
        else:
            self._say_done(self.shard)

    def figures(self) -> dict[str, float]:
        """What waits here, and what r did where variance is reduced. From any thread."""
        shard = self.shard
        if shard is None:
            return {"parked_pulls": 0, "gradients_waiting": 0}
        waits = {"parked_pulls": len(self._parked), "gradients_waiting": len(shard.waiting)}
        return waits | as_figures(shard.server.statistics())

    def saved(self, incarnation: int, name: str, error: str = "") -> None:
        """The cut of this name is written, or could not be."""
        if incarnation == self.incarnation:
            self._saved = Saved(incarnation, self.number, self.boot, name, error)
            self.out.append((COORDINATOR, self._saved))

    def _hello(self) -> None:
        self.out.append((COORDINATOR, ShardHello(self.number, self.boot)))

    def _cut(self, name: str, server: Server) -> None:
        self._saved = None
        self._take_cut(name, server)

    def _say_done(self, shard: Shard) -> None:
        self.out.append((COORDINATOR, Done(self.incarnation, self.number, self.boot, shard.done)))

    def _take_snapshot(self, load: Load) -> None:
        if load.incarnation < self.incarnation or load.boot != self.boot:
            return
        if load.incarnation > self.incarnation:
            self.shard = self._replicas = None  # there may be no room for both
            server = self._load(load.name)
            self.incarnation = load.incarnation
            self._replicas = SyncServer(server, self.incarnation, self.number)
            self.shard = Shard(server, lambda name: self._cut(name, server), self._replicas.assemble)
            self._parked.clear()
            self._saved = None
        self.out.append((COORDINATOR, Loaded(self.incarnation, self.number, self.boot)))

    def _serve(self, shard: Shard) -> None:
        """The pulls that have waited for what is there now."""
        for worker, pull in list(self._parked.items()):
            if shard.step >= pull.version:
                del self._parked[worker]
                self.out.append((To("worker", worker), self._rows(shard, pull)))

    def _rows(self, shard: Shard, pull: Pull) -> Rows:
        head = self.incarnation, self.number, pull.boot, pull.pull, shard.step
        if pull.held is None:
            return Rows(*head, *shard.pull(pull.ids, dense=pull.dense))
        if (made := shard.way_on(pull.held)) is not None:
            return Rows(*head, *shard.pull(pull.ids, dense=False), made)
        return Rows(*head, *shard.pull(pull.ids), state=shard.state())
