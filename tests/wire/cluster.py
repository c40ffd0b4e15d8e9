"""Coordinator, shards and workers as processes of their own, which train the tiny world and can be killed.

Each process announces its contact as a file on a board; snapshots and the history of steps are files too, so that a
restarted process finds them. The laws are those of the protocol's simulator.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gearshift.embedding.store import RowBlock
from gearshift.engine.protocol.coordinator import CoordinatorRole, CoordinatorSettings
from gearshift.engine.protocol.messages import To, WantedRows
from gearshift.engine.protocol.replica_exchange import Exchanger
from gearshift.engine.protocol.shard import ShardRole
from gearshift.engine.protocol.worker import Job, WorkerRole
from gearshift.engine.wire.address import ipc_address
from gearshift.engine.wire.driver import Computed, ComputeFailed, Driver
from gearshift.engine.wire.endpoint import Endpoint
from gearshift.engine.wire.keys import Contact, Keys
from gearshift.engine.wire.limits import Limits
from gearshift.parameters.server import Server
from gearshift.sync.events import Action, Apply, Begin, Event, Lease
from gearshift.training.ended import BatchMeasures, Ended
from tests.protocol.world import (
    IDS,
    Account,
    Applied,
    CutUnderWay,
    Disk,
    History,
    SavedPart,
    gradient,
    ids_of,
    layout_of,
    restored,
    whole_server,
)
from tests.shard_ids import split_ids

SHARDS, WORKERS = 2, 3
BATCH, GLOBAL_BATCH, EXAMPLES, CUT_EVERY = 2, 6, 360, 8
RATE = 1.25
TICK, PATIENCE, PACE = 0.1, 1.5, 0.004  # seconds; PACE is what a gradient takes
PROCESSES = mp.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.wire.cluster"])


@dataclass(frozen=True)
class Place:
    """Where a run's files are, and how its processes talk."""

    folder: Path
    curve: bool
    strategy: str = "sync"

    def endpoint(self, me: To, boot: int) -> Endpoint:
        dense = tuple(own.stop - own.start for own in layout_of(SHARDS).dense)
        limits = Limits((2,), dense, ids=IDS, batch=GLOBAL_BATCH)
        keys = Keys.make() if self.curve else None
        bind = "tcp://127.0.0.1:*" if self.curve else ipc_address(self.folder / "s", me, boot)
        endpoint = Endpoint(me, boot, limits, keys=keys, bind="" if me.role == "worker" else bind)
        self.write(f"board/{me.role}-{me.number}-{boot}.json", asdict(endpoint.contact))
        return endpoint

    def driver(self, endpoint: Endpoint) -> Driver:
        def look() -> Iterator[Contact]:
            if self.has("stop"):
                driver.stop()
            yield from self.contacts()

        driver = Driver(endpoint, tick=TICK, look=look, notify=lambda sentence: None, alone_after=30)
        return driver

    def contacts(self) -> list[Contact]:
        found = [json.loads(file.read_text()) for file in sorted(self.folder.glob("board/*.json"))]
        return [Contact(**{**one, "who": To(*one["who"])}) for one in found]

    def write(self, name: str, what: Any) -> None:
        """At once or not at all."""
        beside = self.folder / f"{name}.{os.getpid()}"
        beside.write_text(json.dumps(what))
        beside.rename(self.folder / name)

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()


# ---- what the processes do ----


def run(place: Place, me: To, boot: int) -> None:
    torch.set_num_threads(1)
    endpoint = place.endpoint(me, boot)
    try:
        {"coordinator": coordinate, "shard": serve, "worker": work}[me.role](place, me, boot, endpoint)
    finally:
        endpoint.close()


def coordinate(place: Place, me: To, boot: int, endpoint: Endpoint) -> None:
    snapshot_store, accounts = DiskOfFiles(place), CheckedAccount()
    role = CoordinatorRole(
        snapshot_store,
        accounts,
        CoordinatorSettings(shards=SHARDS, examples=EXAMPLES, patience=PATIENCE, cut_every=CUT_EVERY),
        log=Logbook(place),
    )
    place.driver(endpoint).run(role)
    assert role.over and role.epoch is not None
    found = {"step": role.epoch.step, "incarnation": role.incarnation, "ends": sorted(accounts.ends.items())}
    place.write(
        "result.json", {**found, "refused": endpoint.counts.refused, "unsent": endpoint.counts.unsent}
    )


def serve(place: Place, me: To, boot: int, endpoint: Endpoint) -> None:
    driver = place.driver(endpoint)

    def load(name: str, done: Callable[[Server], None]) -> None:
        file = place.folder / f"{name}-{me.number}.npz"
        server = restored(load_part(file) if file.exists() else None, me.number, SHARDS)
        driver.post(lambda: done(server))  # between two messages, as one that took its time

    def take_cut(name: str, server: Server) -> None:
        cut, incarnation = CutUnderWay.of(server), role.incarnation

        def write() -> None:
            save_part(place.folder / f"{name}-{me.number}.npz", cut.read())
            role.saved(incarnation, name)

        driver.post(write)

    role = ShardRole(me.number, boot, load, take_cut)
    driver.run(role)
    assert role.shard is not None
    save_part(place.folder / f"end-{me.number}.npz", CutUnderWay.of(role.shard.server).read())
    place.write(
        f"shard-{me.number}.json", {"refused": endpoint.counts.refused, "waiting": len(role.shard.waiting)}
    )


def work(place: Place, me: To, boot: int, endpoint: Endpoint) -> None:
    layout, boots = layout_of(SHARDS), iter(range(boot * 1_000_000, (boot + 1) * 1_000_000))

    def ids(begin: Begin, epoch: int) -> list[WantedRows]:
        return split_ids(layout.shards, (ids_of(begin.lease.first, begin.lease.count),))

    def compute(job: Job) -> Computed | ComputeFailed:
        lease = job.begin.lease
        assert all(answer.step >= job.begin.version for answer in job.answers), "a pull saw too little"
        time.sleep(PACE)
        if lease.first % 101 == 100:
            return ComputeFailed("not finite")
        return Computed(layout.split(gradient(lease.first, lease.count)), measured(lease))

    exchanger = Exchanger(me.number, whole_server(1), layout_of(SHARDS), time.monotonic)
    role = WorkerRole(me.number, SHARDS, lambda: next(boots), ids, exchanger)
    place.driver(endpoint).run(role, compute)


def measured(lease: Lease) -> BatchMeasures:
    labels_BT = np.arange(lease.first, lease.first + lease.count, dtype=np.float32)[:, None]
    return BatchMeasures(1.5, float(lease.count), labels_BT, labels_BT / 2)


# ---- what outlives them ----


class CheckedAccount(Account):
    """Looks at what the workers reported, too."""

    def horizons(self, step: int) -> None:
        return None

    def rate(self, examples: int) -> float:
        return RATE  # what the history does not hold

    def ended(self, leases: Sequence[Ended[Any]]) -> None:
        for one in leases:
            if one.report is not None:
                want = measured(one.lease)
                assert np.array_equal(one.report.labels_BT, want.labels_BT)
                assert np.array_equal(one.report.probabilities_BT, want.probabilities_BT)
        super().ended(leases)

    def restore(self, facts: dict[str, Any]) -> None:
        self.ends = Counter({int(example): count for example, count in facts["ends"].items()})
        self.done = facts["done"]


class DiskOfFiles:
    """A `SnapshotStore`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        if not place.has("vault.json"):
            settings = {"global_batch": GLOBAL_BATCH, "batch": BATCH}
            name, facts = Disk(place.strategy, settings).newest()
            place.write("vault.json", {"incarnation": 0, "name": name, "facts": facts})

    def new_incarnation(self) -> int:
        known = self._place.read("vault.json")
        self._place.write("vault.json", {**known, "incarnation": known["incarnation"] + 1})
        return int(known["incarnation"] + 1)

    def newest(self) -> tuple[str, dict[str, Any]]:
        known = self._place.read("vault.json")
        return known["name"], known["facts"]

    def commit(self, incarnation: int, name: str, facts: dict[str, Any]) -> None:
        known = self._place.read("vault.json")
        if known["incarnation"] == incarnation:
            self._place.write("vault.json", {**known, "name": name, "facts": facts})

    def failed(self, name: str, error: str) -> None:
        raise AssertionError(error)


class Logbook:
    """The history of steps, a line each; of two lines for one step the later counts."""

    def __init__(self, place: Place) -> None:
        self._file = (place.folder / "history.jsonl").open("a", buffering=1)
        self._leases: dict[int, Lease] = {}

    def __call__(self, event: Event, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Begin):
                self._leases[action.lease.number] = action.lease
            elif isinstance(action, Apply):
                parts = [(asdict(self._leases[part.lease]), part.weight) for part in action.parts]
                self._file.write(json.dumps([action.step, parts, action.over_kept]) + "\n")


def save_part(file: Path, part: SavedPart) -> None:
    names = [one.name for one in fields(RowBlock)]
    rows = {
        name: np.concatenate([getattr(block, name) for block in part.rows]) for name in names if part.rows
    }
    optimizer = {f"optimizer.{name}": values.numpy() for name, values in part.optimizer.items()}
    beside = file.with_suffix(".beside.npz")
    np.savez(beside, step=part.step, flat=part.flat.numpy(), **rows, **optimizer)
    beside.rename(file)


def load_part(file: Path) -> SavedPart:
    with np.load(file, allow_pickle=False) as found:
        names = [one.name for one in fields(RowBlock) if one.name in found]
        rows = [RowBlock(**{name: found[name] for name in names})] if names else []
        optimizer = {
            name.removeprefix("optimizer."): torch.from_numpy(found[name])
            for name in found
            if name.startswith("optimizer.")
        }
        return SavedPart(int(found["step"]), torch.from_numpy(found["flat"]), optimizer, rows)


# ---- the whole of it ----


@dataclass
class Cluster:
    place: Place
    processes: dict[To, BaseProcess] = field(default_factory=dict)
    boots: int = 0

    def __enter__(self) -> Cluster:
        for folder in ("board", "s"):
            (self.place.folder / folder).mkdir(mode=0o700)
        self.start(To("coordinator"))
        for i in range(SHARDS):
            self.start(To("shard", i))
        for i in range(WORKERS):
            self.start(To("worker", i))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()
        shutil.rmtree(self.place.folder)

    def start(self, who: To) -> None:
        self.boots += 1
        process = PROCESSES.Process(target=run, args=(self.place, who, self.boots), daemon=True)
        process.start()
        self.processes[who] = process

    def kill(self, who: To) -> None:
        pid = self.processes[who].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self.processes[who].join()

    def steps(self) -> int:
        file = self.place.folder / "history.jsonl"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def until(self, true: Callable[[], object], seconds: float = 25.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "the run does not get on"
            time.sleep(0.01)

    def finish(self) -> dict[str, Any]:
        """Waits for the end, and checks the laws; what coordinator and shards say of the run."""
        self.until(lambda: self.place.has("result.json"))
        self.place.write("stop", True)
        for who, process in self.processes.items():
            process.join(30)
            assert process.exitcode == 0, f"{who} ended with {process.exitcode}"
        result: dict[str, Any] = self.place.read("result.json")
        self._check(result["step"], dict(result["ends"]))
        return {**result, "shards": [self.place.read(f"shard-{i}.json") for i in range(SHARDS)]}

    def _check(self, step: int, ends: dict[int, int]) -> None:
        assert ends == Counter(range(EXAMPLES)), "every example is applied or discarded once"
        history = self._history()
        flat, rows = history.after(step)
        velocity_of_all = history.server.optimizer_state["velocity"]
        layout = layout_of(SHARDS)
        for i, own in enumerate(layout.dense):
            part = load_part(self.place.folder / f"end-{i}.npz")
            assert part.step == step
            assert torch.equal(part.flat, flat[own]), f"dense values of shard {i}"
            assert torch.equal(part.optimizer["velocity"], velocity_of_all[own]), f"optimizer of shard {i}"
            server, mine = restored(part, i, SHARDS), split_ids(layout.shards, (np.arange(IDS),))[i].ids[0]
            assert np.array_equal(server.stores[0].peek(mine), rows[mine]), f"rows of {i}"
            assert self.place.read(f"shard-{i}.json")["waiting"] == 0, "a gradient waits for nothing"

    def _history(self) -> History:
        history = History()
        for line in (self.place.folder / "history.jsonl").read_text().splitlines():
            step, parts, over_kept = json.loads(line)
            leases = [(Lease(**lease), weight) for lease, weight in parts]
            history.steps[step] = Applied(leases, over_kept, RATE)
        return history


def cluster(*, curve: bool, strategy: str = "sync") -> Cluster:
    """In a folder whose name is short enough for sockets."""
    return Cluster(Place(Path(tempfile.mkdtemp(prefix="gs-")), curve, strategy))
