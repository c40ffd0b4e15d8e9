"""A shard on the network: serves pulls once it has the requested version, keeps gradients, and carries out orders."""

from __future__ import annotations

from collections.abc import Callable

from gearshift.data.batch import Ids
from gearshift.embedding.rule_figures import rule_figures
from gearshift.embedding.tier_figures import tier_figures
from gearshift.engine.protocol.messages import (
    COORDINATOR,
    DenseValues,
    Done,
    Give,
    IsSaved,
    Load,
    Loaded,
    MachineRows,
    Out,
    Peek,
    Prefetch,
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
from gearshift.engine.protocol.relay_messages import MachineGive, MachineOffer, MachinePull, MachineTaken
from gearshift.engine.protocol.replica_messages import Offer
from gearshift.engine.protocol.sync_server import SyncServer
from gearshift.optim.trust_figures import as_figures
from gearshift.parameters.server import Server
from gearshift.parameters.shard import Shard

# Loads this shard's part of the snapshot with that name, now or in a thread, and then calls the function with it. The
# function belongs to the role: it must be called in the thread that handles the role's messages.
LoadPart = Callable[[str, Callable[[Server], None]], None]
TakeCut = Callable[
    [str, Server], None
]  # takes a copy-on-write snapshot of the server's state; `ShardRole.saved` is called when it is written


# Reads rows of these ids, by store, from disk into memory: later, in a thread, or not at all.
ReadAhead = Callable[[Server, tuple[Ids, ...]], None]


class ShardRole:
    def __init__(
        self,
        number: int,
        boot: int,
        load: LoadPart,
        take_cut: TakeCut,
        read_ahead: ReadAhead = lambda server, ids: None,
    ) -> None:
        self.number, self.boot, self._load, self._take_cut = number, boot, load, take_cut
        self._read_ahead = read_ahead
        self.incarnation = 0  # of the state that it holds; 0: none
        self.shard: Shard | None = None
        self._replicas: SyncServer | None = None  # exists when `shard` does
        self.out: Out = []
        self._parked: dict[int, Pull] = {}  # by worker: the newest
        self._parked_of_relays: dict[tuple[int, int, int], MachinePull] = {}  # by relay, boot and number
        self._saved: Saved | None = None  # the result of the last cut
        self._wanted: Load | None = None  # the newest request for a snapshot that has not been loaded yet
        self._loading = False
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
                case MachinePull(_, relay, boot, number):
                    self._parked_of_relays[relay, boot, number] = message
                case MachineGive(_, relay, boot, number, leases, push):
                    taken = self.shard.take_sum(tuple(lease for lease, _ in leases), push)
                    head = self.incarnation, self.number, boot, number
                    self.out.append((To("relay", relay), MachineTaken(*head, spoiled=not taken)))
                case Tell(_, order):
                    self.shard.receive(order)
                    self._send_done(self.shard)
                case Peek(_, number, ids):
                    rows, dense, statistics = self.shard.peek(ids)
                    seen = Seen(self.incarnation, self.number, self.boot, number, rows, dense, statistics)
                    self.out.append((COORDINATOR, seen))
                case IsSaved(_, name):
                    if self._saved is not None and self._saved.name == name:
                        self.out.append((COORDINATOR, self._saved))
                case Prefetch(_, _, ids):
                    self._read_ahead(self.shard.server, ids)
                case Offer() | MachineOffer():
                    self._replicas.take(message)
            self._serve(self.shard)
            self.out += self._replicas.take_out()

    def tick(self) -> None:
        """Time has passed: sends the coordinator a heartbeat with the last order carried out."""
        if self.shard is None:
            self._hello()
        else:
            self._send_done(self.shard)

    def figures(self) -> dict[str, float]:
        """Metrics of waiting pulls, gradients and orders, and of r under vr_*. May be called from any thread."""
        shard = self.shard
        if shard is None:
            return {"parked_pulls": 0, "gradients_waiting": 0}
        waits = {
            "parked_pulls": len(self._parked) + len(self._parked_of_relays),
            "gradients_waiting": len(shard.waiting),
        }
        stores = shard.server.stores
        return waits | tier_figures(stores) | rule_figures(stores) | as_figures(shard.server.statistics())

    def saved(self, incarnation: int, name: str, error: str = "") -> None:
        """The cut with this name was written, or the write failed."""
        if incarnation == self.incarnation:
            self._saved = Saved(incarnation, self.number, self.boot, name, error)
            self.out.append((COORDINATOR, self._saved))

    def _hello(self) -> None:
        self.out.append((COORDINATOR, ShardHello(self.number, self.boot)))

    def _cut(self, name: str, server: Server) -> None:
        self._saved = None
        self._take_cut(name, server)

    def _send_done(self, shard: Shard) -> None:
        self.out.append((COORDINATOR, Done(self.incarnation, self.number, self.boot, shard.done)))

    def _take_snapshot(self, load: Load) -> None:
        if load.incarnation < self.incarnation or load.boot != self.boot:
            return
        if load.incarnation == self.incarnation:
            self._send_loaded()
        elif self._wanted is None or load.incarnation > self._wanted.incarnation:
            self._wanted = load
            if not self._loading:  # one load at a time: there may not be memory for two
                self._begin_load(load.name)

    def _begin_load(self, name: str) -> None:
        self.shard = self._replicas = None  # there may not be memory for both
        self._loading = True
        self._load(name, lambda server: self._loaded(name, server))

    def _loaded(self, name: str, server: Server) -> None:
        self._loading = False
        assert self._wanted is not None, "a part that was not requested"
        if self._wanted.name != name:  # a newer incarnation begins from another snapshot
            self._begin_load(self._wanted.name)
            return
        self.incarnation, self._wanted = self._wanted.incarnation, None
        self._replicas = SyncServer(server, self.incarnation, self.number)
        self.shard = Shard(server, lambda name: self._cut(name, server), self._replicas.assemble)
        self._parked.clear()
        self._parked_of_relays.clear()
        self._saved = None
        self._send_loaded()

    def _send_loaded(self) -> None:
        self.out.append((COORDINATOR, Loaded(self.incarnation, self.number, self.boot)))

    def _serve(self, shard: Shard) -> None:
        """Answers the parked pulls whose version is available now."""
        for worker, pull in list(self._parked.items()):
            if shard.step >= pull.version:
                del self._parked[worker]
                self.out.append((To("worker", worker), self._rows(shard, pull)))

        for key, of_machine in list(self._parked_of_relays.items()):
            if shard.step >= of_machine.version:
                del self._parked_of_relays[key]
                answer = MachineRows(self.number, self._rows_for_relay(shard, of_machine))
                self.out.append((To("relay", of_machine.relay), answer))

    def _rows_for_relay(self, shard: Shard, pull: MachinePull) -> Rows:
        rows, flat, statistics = shard.pull(pull.ids, pull.tables, dense=pull.dense)
        head = self.incarnation, self.number, pull.boot, pull.pull, shard.step
        return Rows(*head, rows, DenseValues(flat) if pull.dense else None, statistics)

    def _rows(self, shard: Shard, pull: Pull) -> Rows:
        head = self.incarnation, self.number, pull.boot, pull.pull, shard.step
        made = None if pull.held is None else shard.way_on(pull.held)
        rows, flat, statistics = shard.pull(
            pull.ids,
            pull.tables,
            dense=pull.dense and made is None,
            version=pull.version,
            extrapolation=pull.extrapolation,
        )
        if made is not None:
            return Rows(*head, rows, made, statistics)
        state = {} if pull.held is None else shard.state()
        return Rows(*head, rows, DenseValues(flat, state) if pull.dense else None, statistics)
