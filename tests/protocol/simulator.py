"""The real roles on a network that loses, doubles, delays and reorders, on machines that die and freeze.

    python -m tests.protocol.simulator [--schedules 100000] [--first 0] [--processes 2]

A schedule follows from its seed alone; in every fourth, messages travel as the wire's bytes. It ends when the
coordinator says that everything is done; then every example must have ended once in every pass, and every shard must
hold, bit for bit, what the surviving history of steps makes of the parameters. A violation is an `AssertionError`, or
whatever a role raised, with the seed.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np
import torch

from gearshift.engine.mirror import Mirror, state_of
from gearshift.engine.roles.coordinator import CoordinatorRole
from gearshift.engine.roles.messages import COORDINATOR, Message, To
from gearshift.engine.roles.ring import Rings
from gearshift.engine.roles.shard import ShardRole
from gearshift.engine.roles.worker import Job, WorkerRole
from gearshift.engine.wire.codec import Codec, said_by
from gearshift.engine.wire.limits import Limits
from gearshift.server import Server
from gearshift.shard import Drop
from gearshift.sync.messages import Action, Apply, Begin, Event, Lease
from tests.protocol.world import (
    IDS,
    Account,
    Applied,
    CutUnderWay,
    Disk,
    History,
    gradient,
    ids_of,
    layout_of,
    restored,
    summed,
    whole_server,
)

TICK, PATIENCE, LIMIT = 3.0, 12.0, 3000.0
STRATEGIES: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "sync": lambda rng: {},
    "async": lambda rng: {},
    "bounded_staleness": lambda rng: {"bound": rng.randint(0, 3)},
    "buffered_async": lambda rng: {},
    "backup_workers": lambda rng: {"backups": rng.randint(0, 1)},
    "gba": lambda rng: {"max_lag": rng.choice([0, 1, 3]), "divisor": rng.choice(["all", "kept"])},
}


@dataclass
class Process:
    role: CoordinatorRole | ShardRole | WorkerRole | None = None  # None: it is dead
    frozen_until: float = 0.0
    job: Job | None = None  # that it computes
    mirror: Mirror | None = None  # of a worker: its dense state,
    server: Server | None = None  # where it lies,
    total: torch.Tensor | None = None  # and the sum that its last ring has made


@dataclass
class Reduce:
    """One sum of a ring: of whom it has come, and whether it can be made."""

    members: dict[int, tuple[To, WorkerRole, Job]] = field(default_factory=dict)  # by rank
    broken: bool = False


@dataclass
class Simulation:
    seed: int
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = rng = random.Random(self.seed)
        self.now, self._heap, self._order, self._boots = 0.0, [], 0, 0
        self.workers, self.shards = rng.randint(1, 4), rng.randint(1, 3)
        self.batch = rng.randint(1, 3)
        self.global_batch = self.batch * rng.randint(1, 4)
        self.examples = rng.randint(1, 6) * self.global_batch + rng.randint(0, self.global_batch)
        self.transport = rng.choice(["servers", "all_reduce", "all_reduce", "auto"])
        if self.transport != "servers":  # a lease for each worker makes a round
            self.global_batch = self.batch * self.workers
            self.examples = rng.randint(1, 8) * self.global_batch + rng.randint(0, self.global_batch)
        self._reduces: dict[tuple[int, int, int], Reduce] = {}  # by incarnation, ring and version
        self._ranks: dict[int, int] = {}  # by lease
        self.lossy, self.doubling = rng.choice([0, 0.05, 0.2]), rng.choice([0, 0.05, 0.2])
        self.slow = rng.choice([0.0, 0.1, 0.3])  # share of messages that take long
        self.faults_until = rng.choice([0.0, 20.0, 60.0])
        self.cut_every = rng.choice([0, 1, 2, 4])
        self.layout = layout_of(self.shards)
        self.wired = self.seed % 4 == 3  # messages travel as bytes
        dense = tuple(own.stop - own.start for own in self.layout.dense)
        state = state_of(whole_server(1))
        self.limits = Limits((2,), dense, ids=IDS, batch=self.global_batch, state=state)
        self.history = History()
        self.account = Account(passes=rng.choice([1, 1, 2]))
        self.ended, self.stepped, self.facts = self.account.ended, self.account.stepped, self.account.facts
        self.passed = self.account.passed
        self._decided: dict[int, tuple[list[tuple[Lease, float]], bool]] = {}
        self.over = False
        self._ranges: dict[int, Lease] = {}
        self.disk = Disk(*self._strategy())
        self.processes = {COORDINATOR: Process()}
        self.processes |= {To("shard", i): Process() for i in range(self.shards)}
        self.processes |= {To("worker", i): Process() for i in range(self.workers)}

    def run(self) -> Simulation:
        for at in self.processes:
            self._start(at)
            self._later(self.rng.random(), lambda at=at: self._tick(at))
        if self.faults_until:
            self._later(self.rng.expovariate(0.3), self._fault)
        self._later(self.rng.expovariate(0.05), self._switch)
        while not self.over:
            assert self.now < LIMIT, "the run does not end"
            self.now, _, happen = heappop(self._heap)
            happen()
        self._check()
        return self

    def _strategy(self) -> tuple[str, dict[str, Any]]:
        often = ["sync"] * 6 if self.transport != "servers" else []
        name = self.rng.choice([*STRATEGIES, *often])
        sizes = {"global_batch": self.global_batch, "batch": self.batch}
        return name, sizes | STRATEGIES[name](self.rng)

    # ---- time and the network ----

    def _later(self, seconds: float, happen: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._heap, (self.now + seconds, self._order, happen))

    def _delay(self) -> float:
        if self.rng.random() >= self.slow:
            return self.rng.random() * 0.2
        return self.rng.random() * self.rng.choice([8.0, 8.0, 60.0])

    def _send(self, to: To, message: Message) -> None:
        self.counts[type(message).__name__] += 1
        if self.rng.random() < self.lossy:
            self.counts["lost"] += 1
            return
        self._later(self._delay(), lambda: self._deliver(to, message))
        if self.rng.random() < self.doubling:
            self.counts["doubled"] += 1
            self._later(self._delay(), lambda: self._deliver(to, message))

    def _deliver(self, to: To, message: Message) -> None:
        process = self.processes[to]
        if process.role is None:
            return
        if process.frozen_until > self.now:
            self._later(process.frozen_until - self.now, lambda: self._deliver(to, message))
            return
        if self.wired:
            message = self._over_the_wire(to, message)
        if isinstance(process.role, CoordinatorRole):
            process.role.handle(message, self.now)
        else:
            process.role.handle(message)
        self._after(to)

    def _over_the_wire(self, to: To, message: Message) -> Message:
        """What is left of it after it was made bytes and read again."""
        frames = [bytes(frame) for frame in Codec(to, self.limits).encode(message)]
        found, _ = Codec(to, self.limits).decode(frames, said_by(message))
        assert found is not None
        return found

    def _tick(self, at: To) -> None:
        process = self.processes[at]
        if process.role is not None and process.frozen_until <= self.now:
            if isinstance(process.role, CoordinatorRole):
                process.role.tick(self.now)
            else:
                process.role.tick()
            self._after(at)
        self._later(TICK, lambda: self._tick(at))

    def _after(self, at: To) -> None:
        """What a role left to be done, is done."""
        process = self.processes[at]
        assert process.role is not None
        if isinstance(process.role, CoordinatorRole):
            self.over = process.role.over
        out, process.role.out = process.role.out, []
        for to, message in out:
            self._send(to, message)
        if isinstance(process.role, ShardRole) and process.role.shard is not None:
            # The places that gradients wait in are bounded: a step's, and one for each worker.
            most = 2 * self.global_batch + 2 * self.workers
            assert len(process.role.shard.waiting) <= most, "gradients pile up"
        if isinstance(process.role, WorkerRole) and process.role.job is not process.job:
            process.job = process.role.job
            if process.job is not None:
                self._compute(at, process.role, process.job)

    # ---- what processes do ----

    def _boot(self) -> int:
        self._boots += 1
        return self._boots

    def _start(self, at: To) -> None:
        process = self.processes[at]
        process.job = None
        if at.role == "coordinator":
            process.role = CoordinatorRole(
                self.disk,
                self,
                shards=self.shards,
                examples=self.examples,
                patience=PATIENCE,
                cut_every=self.cut_every,
                log=self._log,
                rings=Rings(self.transport, turn=1),
            )
            process.role.now = self.now
        elif at.role == "shard":
            process.role = self._shard(at)
        else:
            process.role = WorkerRole(at.number, self.shards, self._boot, self._ids)
            process.server = whole_server(self.shards)
            process.mirror = Mirror(process.server, self.layout)
        self._after(at)

    def _shard(self, at: To) -> ShardRole:
        def load(name: str) -> Server:
            return restored(self.disk.parts.get((name, at.number)), at.number, self.shards)

        def take_cut(name: str, server: Server) -> None:
            cut, incarnation = CutUnderWay.of(server), role.incarnation
            self._later(self._delay() * 3, lambda: self._write(at, role, incarnation, name, cut))

        role = ShardRole(at.number, self._boot(), load, take_cut)
        return role

    def _write(self, at: To, role: ShardRole, incarnation: int, name: str, cut: CutUnderWay) -> None:
        if self.processes[at].role is role and role.incarnation == incarnation:
            self.disk.parts[name, at.number] = cut.read()
            role.saved(incarnation, name)
            self._after(at)

    def _ids(self, begin: Begin, epoch: int = 0) -> list[tuple[np.ndarray, ...]]:
        return self.layout.split_ids((ids_of(begin.lease.first, begin.lease.count),))

    def _compute(self, at: To, role: WorkerRole, job: Job) -> None:
        lease, process = job.begin.lease, self.processes[at]
        process.mirror.take(job.answers, process.total)
        self.counts["stepped beside"] += any(answer.made and answer.made.ring for answer in job.answers)
        for answer, own, (ids,) in zip(job.answers, self.layout.dense, self._ids(job.begin), strict=True):
            assert answer.step >= job.begin.version, "a pull saw too little"
            if answer.incarnation != self.disk.incarnation:
                continue  # it works for a past that never was
            flat, rows = self.history.after(answer.step)
            assert torch.equal(process.server.flat[own], flat[own]), f"dense values at step {answer.step}"
            if job.place.ring:
                held, velocity = self._velocity(process, own), self.history.velocities[answer.step]
                assert torch.equal(held, velocity[own]), f"optimizer at step {answer.step}"
            assert np.array_equal(answer.rows[0], rows[ids]), f"rows pulled at step {answer.step}"
        fails = self.rng.random() < 0.02

        def done() -> None:
            if self.processes[at].role is not role:
                return  # it died over it
            if job.place.ring:
                self._reduce(at, role, job, usable=not fails)
            elif fails:
                role.failed(job, "not finite")
            else:
                role.computed(job, self.layout.split(gradient(lease.first, lease.count)), None)
            self._after(at)

        self._later(self.rng.expovariate(1.0) * (10.0 if self.rng.random() < 0.1 else 1.0), done)

    def _velocity(self, process: Process, own: slice) -> torch.Tensor:
        return process.server.optimizer_state["velocity"][own]

    def _reduce(self, at: To, role: WorkerRole, job: Job, usable: bool) -> None:
        """One more has come; the last one brings the sum to all, or to some of them."""
        key = job.answers[0].incarnation, job.place.ring, job.answers[0].step
        reduce = self._reduces.setdefault(key, Reduce())
        reduce.members[job.place.rank] = at, role, job
        reduce.broken |= not usable
        if len(reduce.members) < job.place.size:
            self._later(PATIENCE, lambda: self._waited(at, role, job, reduce))
            return
        alive = all(self.processes[at].role is role for at, role, _ in reduce.members.values())
        leases = [job.begin.lease for _, _, job in reduce.members.values()]
        total = torch.stack([gradient(lease.first, lease.count).dense for lease in leases]).sum(0)
        for one in reduce.members.values():
            fine = alive and not reduce.broken and self.rng.random() > 0.03
            self._later(self._delay(), lambda one=one, fine=fine: self._summed(*one, total if fine else None))
        reduce.members, reduce.broken = {}, True  # for whoever comes too late

    def _waited(self, at: To, role: WorkerRole, job: Job, reduce: Reduce) -> None:
        if reduce.members.get(job.place.rank) == (at, role, job):
            reduce.broken = True
            self._summed(at, role, job, None)

    def _summed(self, at: To, role: WorkerRole, job: Job, total: torch.Tensor | None) -> None:
        process, lease = self.processes[at], job.begin.lease
        if process.role is not role:
            return
        if total is None:
            self.counts["no sum"] += 1
            role.broke(job, "it broke")
        else:
            self.counts["sum"] += 1
            process.total = total
            if job.answers[0].incarnation == self.disk.incarnation:
                self._ranks[lease.number] = job.place.rank
            own = total if job.place.carries else None
            push = summed(gradient(lease.first, lease.count), own, job.place.ring)
            role.computed(job, self.layout.split(push), None, ring=job.place.ring)
        self._after(at)

    def _log(self, event: Event, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Begin):
                self._ranges[action.lease.number] = action.lease
                self._ranks.pop(action.lease.number, None)  # of an incarnation before
                assert action.lease.count <= self.batch, "a lease is a batch"
            elif isinstance(action, Apply):
                parts = [(self._ranges[part.lease], part.weight) for part in action.parts]
                self._decided[action.step] = parts, action.over_kept
                self._check_staleness(action)

    def _check_staleness(self, action: Apply) -> None:
        epoch = self._coordinator().epoch
        if epoch is not None and epoch.coordinator.strategy.name == "sync":
            before = epoch.coordinator.work.adopted_before
            assert all(part.staleness == 0 for part in action.parts if part.lease >= before), "sync is stale"

    def _coordinator(self) -> CoordinatorRole:
        role = self.processes[COORDINATOR].role
        assert isinstance(role, CoordinatorRole)
        return role

    def rate(self, examples: int) -> float:
        """For the coordinator: the step that is ordered now, with the rate that the accounts give it."""
        rate, epoch = self.account.rate(examples), self._coordinator().epoch
        assert epoch is not None
        parts, over_kept = self._decided[epoch.step + 1]
        ranks = {n: self._ranks[n] for n in (lease.number for lease, _ in parts) if n in self._ranks}
        self.history.steps[epoch.step + 1] = Applied(parts, over_kept, rate, ranks)
        return rate

    def restore(self, facts: dict[str, Any]) -> None:
        """For the coordinator: everything after a snapshot is done again."""
        self.account.restore(facts)
        self.history.rewind(self.disk.newest()[1]["step"])

    # ---- what goes wrong ----

    def _fault(self) -> None:
        if self.now > self.faults_until:
            return
        at = self.rng.choice(list(self.processes))
        process, seconds = self.processes[at], self.rng.random() * 15.0
        if self.rng.random() < 0.5:
            self.counts[f"{at.role} killed"] += 1
            process.role = None
            self._later(seconds, lambda: self._start(at) if process.role is None else None)
        else:
            self.counts[f"{at.role} frozen"] += 1
            process.frozen_until = self.now + seconds
        self._later(self.rng.expovariate(0.3), self._fault)

    def _switch(self) -> None:
        process = self.processes[COORDINATOR]
        if isinstance(process.role, CoordinatorRole) and process.frozen_until <= self.now:
            self.counts["switched"] += 1
            process.role.now = self.now
            process.role.switch(*self._strategy(), "why not")
            self._after(COORDINATOR)
        self._later(self.rng.expovariate(0.05), self._switch)

    # ---- the laws ----

    def _check(self) -> None:
        coordinator = self.processes[COORDINATOR].role
        assert isinstance(coordinator, CoordinatorRole) and coordinator.epoch is not None
        self.counts["incarnations"] += coordinator.incarnation
        self.counts["steps"] += coordinator.epoch.step
        wanted = Counter(dict.fromkeys(range(self.examples), self.account.passes))
        assert self.account.ends == wanted, "every example is applied or discarded once in every pass"
        flat, rows = self.history.after(coordinator.epoch.step)
        velocity = self.history.server.optimizer_state["velocity"]
        for i, own in enumerate(self.layout.dense):
            role = self.processes[To("shard", i)].role
            if not isinstance(role, ShardRole) or role.incarnation != coordinator.incarnation:
                continue  # it died just now
            assert role.shard is not None and role.shard.step == coordinator.epoch.step
            unheard = {order.what.lease for order in coordinator._orders if isinstance(order.what, Drop)}
            assert role.shard.waiting.keys() <= unheard, "a gradient waits for nothing"
            server = role.shard.server
            assert torch.equal(server.flat, flat[own]), f"dense values of shard {i}"
            assert torch.equal(server.optimizer_state["velocity"], velocity[own]), f"optimizer of shard {i}"
            mine = self.layout.split_ids((np.arange(IDS, dtype=np.int64),))[i][0]
            assert np.array_equal(server.stores[0].peek(mine), rows[mine]), f"rows of {i}"


def violation(seed: int) -> tuple[int, str]:
    """What this schedule finds, empty if nothing."""
    try:
        Simulation(seed).run()
    except Exception as error:  # whatever a role raises is a finding
        return seed, f"{type(error).__name__}: {error}"
    return seed, ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.first, options.first + options.schedules)
    began, found = time.perf_counter(), []
    with ProcessPoolExecutor(options.processes) as pool:
        for n, (seed, what) in enumerate(pool.map(violation, seeds, chunksize=50), 1):
            if what:
                found.append(seed)
                print(f"seed {seed}: {what}", flush=True)
            if n % 5000 == 0:
                print(
                    f"{n:,} schedules, {len(found)} violations, {time.perf_counter() - began:.0f} s",
                    flush=True,
                )
    rate = options.schedules / (time.perf_counter() - began) * 60
    print(f"{options.schedules:,} schedules, {len(found)} violations, {rate:,.0f} schedules a minute")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
