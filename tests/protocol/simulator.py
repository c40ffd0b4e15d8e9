"""The real roles on a network that loses, doubles, delays and reorders, on machines that die and freeze.

    python -m tests.protocol.simulator [--schedules 100000] [--first 0] [--processes 2]

A schedule follows from its seed alone; in every fourth, messages travel as the wire's bytes. It ends when the
coordinator says that everything is done; then every example must have ended once in every pass, and every shard must
hold, bit for bit, what the surviving history of steps makes of the parameters. Where workers keep replicas: whenever
these are shown, every step that a worker has made is accounted for, the shards hold what the replicas agree on with
the mean of their optimizer states, and after an overwriting merge all are the same, bit for bit. A violation is an
`AssertionError`, or whatever a role raised, with the seed.
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
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from gearshift.engine.protocol.all_reduce import AllReduceGroups
from gearshift.engine.protocol.coordinator import CoordinatorRole, CoordinatorSettings
from gearshift.engine.protocol.messages import (
    COORDINATOR,
    ComingRange,
    Give,
    Message,
    RelayRequest,
    To,
    WantedRows,
)
from gearshift.engine.protocol.relay import RelayRole
from gearshift.engine.protocol.relay_messages import MachineGive, MachineOffer
from gearshift.engine.protocol.replica_exchange import Exchanger
from gearshift.engine.protocol.replica_messages import Meet
from gearshift.engine.protocol.requests import carry_out_requests
from gearshift.engine.protocol.shard import ShardRole
from gearshift.engine.protocol.worker import Job, WorkerRole
from gearshift.engine.ray.dense_copy import DenseCopy, state_of
from gearshift.engine.wire.codec import Codec, said_by
from gearshift.engine.wire.limits import Limits
from gearshift.optim.first_order import Adam
from gearshift.parameters.push import ReplicaRowsPush
from gearshift.parameters.replicas.arithmetic import mean_of
from gearshift.parameters.replicas.group import mean_state
from gearshift.parameters.server import Server
from gearshift.parameters.shard import Drop, StepOnSum
from gearshift.sync.events import Action, Apply, Begin, Event, Lease, WorkerLost, version_of
from gearshift.sync.registry import make_strategy
from gearshift.sync.replicated import choices_of
from gearshift.sync.strategy import Strategy
from tests.protocol.world import (
    IDS,
    MOMENTUM,
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
from tests.shard_ids import split_ids

TICK, PATIENCE, LIMIT = 3.0, 12.0, 3000.0
MOST_WORKERS = 5
CALM = 100.0  # seconds after which nobody comes or goes any more: it would help those out who wait in vain


def _exchange(rng: random.Random) -> dict[str, Any]:
    chosen = rng.choice(["background", {"every": rng.randint(1, 3)}, {"every": "4s"}])
    return {"exchange": chosen, "pause": rng.choice([0.5, 3.0])}


STRATEGIES: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "sync": lambda rng: {},
    "balanced": lambda rng: {"smallest": rng.choice([None, 1, 2])},
    "async": lambda rng: {},
    "bounded_staleness": lambda rng: {"bound": rng.randint(0, 3)},
    "ringmaster": lambda rng: {"max_staleness": rng.choice([None, 0, 1, 3])},
    "buffered_async": lambda rng: {},
    "backup_workers": lambda rng: {"backups": rng.randint(0, 1)},
    "gba": lambda rng: {
        "max_lag": rng.choice([0, 1, 3]),
        "divisor": rng.choice(["all", "kept"]),
        "predicted_pull": rng.random() < 0.5,
        "staleness_rate": rng.random() < 0.5,
        "late_rows": rng.choice(["drop", "unchanged"]),
    },
    "easgd": lambda rng: {**_exchange(rng), "merge": rng.choice(["elastic", "delta"])},
    "model_averaging": _exchange,
    "bmuf": lambda rng: {**_exchange(rng), "nesterov": rng.random() < 0.5},
    "k_step_adam": lambda rng: {
        "exchange": rng.randint(1, 3),
        "warmup_steps": rng.choice([0, 2]),
        "mode": rng.choice(["params", "frozen_v", "params_m_v"]),
    },
}


@dataclass(frozen=True)
class Asked:
    """A switch, or another number of workers, on its way to the coordinator."""

    switch: tuple[str, dict[str, Any]] | None = None
    workers: int = 0


@dataclass
class Process:
    role: CoordinatorRole | ShardRole | WorkerRole | RelayRole | None = None  # None: it is dead
    frozen_until: float = 0.0
    job: Job | None = None  # that it computes
    alarm: float | None = None  # that is set
    dense_copy: DenseCopy | None = None  # of a worker: its dense state,
    server: Server | None = None  # where it lies,
    total: torch.Tensor | None = None  # and the sum that its last group has made


@dataclass
class Reduce:
    """One sum of an all-reduce group: of whom it has come, and whether it can be made."""

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
        self.machines = 1 + self.seed % 2 if self.seed % 5 < 2 else 0  # that have relays
        if self.transport != "servers" or self.machines:  # a lease for each worker makes a round
            self.global_batch = self.batch * self.workers
            self.examples = rng.randint(1, 8) * self.global_batch + rng.randint(0, self.global_batch)
        self._reduces: dict[tuple[int, int, int], Reduce] = {}  # by incarnation, group and version
        self._ranks: dict[int, int] = {}  # by lease
        self.lossy, self.doubling = rng.choice([0, 0.05, 0.2]), rng.choice([0, 0.05, 0.2])
        self.slow = rng.choice([0.0, 0.1, 0.3])  # share of messages that take long
        self.faults_until = rng.choice([0.0, 20.0, 60.0])
        self.cut_every = rng.choice([0, 1, 2, 4])
        self.looks_ahead = self.seed % 2 == 0
        self.layout = layout_of(self.shards)
        self.wired = self.seed % 4 == 3  # messages travel as bytes
        dense = tuple(own.stop - own.start for own in self.layout.dense)
        self.optimizer = Adam(lr=0.01) if self.seed % 3 == 0 else MOMENTUM
        state = state_of(whole_server(1, self.optimizer))
        self.limits = Limits((2,), dense, ids=IDS, batch=self.global_batch, state=state)
        self.history = History(optimizer=self.optimizer)
        self.account = Account(passes=rng.choice([1, 1, 2]))
        self.ended, self.stepped, self.facts = self.account.ended, self.account.stepped, self.account.facts
        self.passed, self.counted = self.account.passed, self.account.counted
        self.duplicated = self.account.duplicated
        self.rate_after = self.account.rate_after
        self._asked: SimpleQueue[Asked] = SimpleQueue()
        self._given_dense: dict[tuple[int, int], bool] = {}  # by incarnation and lease
        self._given_examples: dict[tuple[int, int], float] = {}  # the same
        self._met_at: dict[tuple[int, int], float] = {}  # when a meeting began, by incarnation and number
        self._lost_at = 0.0  # a worker, last
        self._unknown = 0  # an incarnation whose dense values do not follow from the steps alone
        self._decided: dict[int, Apply] = {}
        self.over = False
        self._ranges: dict[int, Lease] = {}
        self.disk = Disk(*self._strategy())
        self.most_workers = self.workers  # at any time so far
        self.processes = {COORDINATOR: Process()}
        self.processes |= {To("shard", i): Process() for i in range(self.shards)}
        self.processes |= {To("worker", i): Process() for i in range(MOST_WORKERS)}
        self.processes |= {To("relay", i): Process() for i in range(self.machines)}

    def run(self) -> Simulation:
        for at in self.processes:
            if at.role != "worker" or at.number < self.workers:
                self._start(at)
            self._later(self.rng.random(), lambda at=at: self._tick(at))
        if self.faults_until:
            self._later(self.rng.expovariate(0.3), self._fault)
        self._later(self.rng.expovariate(0.05), self._switch)
        if self.rng.random() < 0.5:
            self._later(self.rng.expovariate(0.04), self._resize)
            self._later(self.rng.expovariate(0.03), self._dismiss)
        while not self.over:
            assert self.now < LIMIT, "the run does not end"
            self.now, _, happen = heappop(self._heap)
            happen()
        self._check()
        return self

    def _strategy(self) -> tuple[str, dict[str, Any]]:
        often = ["sync"] * 6 if self.transport != "servers" or self.machines else []
        name = self.rng.choice([*STRATEGIES, *often])
        settings = {"global_batch": self.global_batch, "batch": self.batch} | STRATEGIES[name](self.rng)
        if name == "k_step_adam" and not isinstance(self.optimizer, Adam):
            settings["mode"] = "params"
        return name, settings

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
        if isinstance(message, RelayRequest):
            self.counts[f"{type(message.request).__name__} relayed"] += 1
            self._note_given(message.request)
        self._note_given(message)
        if isinstance(message, MachineGive | MachineOffer):
            together = len(message.leases if isinstance(message, MachineGive) else message.members)
            self.counts[f"{type(message).__name__} of several"] += together > 1
        if isinstance(message, Meet):
            self._met_at.setdefault((message.incarnation, message.number), self.now)
        if self.rng.random() < self.lossy:
            self.counts["lost"] += 1
            return
        self._later(self._delay(), lambda: self._deliver(to, message))
        if self.rng.random() < self.doubling:
            self.counts["doubled"] += 1
            self._later(self._delay(), lambda: self._deliver(to, message))

    def _note_given(self, message: Message) -> None:
        if isinstance(message, Give):
            at = message.incarnation, message.lease
            self._given_examples[at] = message.push.examples
            of_dense = not isinstance(message.push, ReplicaRowsPush)
            self._given_dense[at] = self._given_dense.get(at, False) or of_dense

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
            self._do_what_was_asked(process.role)
            process.role.proceed()
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
                process.role.time_passed(self.now)
                self._do_what_was_asked(process.role)
                process.role.proceed()
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
            self._check_size(process.role)
        out, process.role.out = process.role.out, []
        for to, message in out:
            self._send(to, message)
        if isinstance(process.role, ShardRole) and process.role.shard is not None:
            # The places that gradients wait in are bounded: a step's, and one for each worker.
            most = 2 * self.global_batch + 2 * self.most_workers
            assert len(process.role.shard.waiting) <= most, "gradients pile up"
        if isinstance(process.role, WorkerRole) and process.role.state == "over":
            self._left(at, process)
            return
        if isinstance(process.role, WorkerRole):
            self._set_alarm(at, process, process.role)
        if isinstance(process.role, WorkerRole) and process.role.job is not process.job:
            process.job = process.role.job
            if process.job is not None:
                self._compute(at, process.role, process.job)

    def _set_alarm(self, at: To, process: Process, role: WorkerRole) -> None:
        due = role.replicas.due
        if due is not None and due != process.alarm:
            process.alarm = due
            self._later(max(0.0, due - self.now), lambda: self._wake(at, role))

    def _wake(self, at: To, role: WorkerRole) -> None:
        process = self.processes[at]
        if process.role is role and process.frozen_until > self.now:
            self._later(process.frozen_until - self.now, lambda: self._wake(at, role))
        elif process.role is role:
            role.wake()
            self._after(at)

    def _left(self, at: To, process: Process) -> None:
        """It was sent home; another starts in its place if one is wanted."""
        self.counts["left"] += 1
        process.role = process.job = None
        self._later(self.rng.random() * 5.0, lambda: self._start_if_wanted(at))

    def _start_if_wanted(self, at: To) -> None:
        if at.number < self.workers and self.processes[at].role is None:
            self._start(at)

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
                CoordinatorSettings(
                    self.shards, self.examples, PATIENCE, self.workers, self.cut_every, self.looks_ahead
                ),
                log=self._log,
                all_reduce_groups=AllReduceGroups(self.transport, turn=1),
            )
            process.role.all_reduce_groups.relays = bool(self.machines)
            process.role.now = self.now
        elif at.role == "shard":
            process.role = self._shard(at)
        elif at.role == "relay":
            process.role = RelayRole(at.number, self._boot(), self.shards)
        else:
            process.server = whole_server(self.shards, self.optimizer)
            process.dense_copy = DenseCopy(process.server, self.layout)
            exchanger = Exchanger(at.number, process.server, self.layout, lambda: self.now)
            process.alarm = None
            process.role = WorkerRole(
                at.number,
                self.shards,
                self._boot,
                self._ids,
                exchanger,
                self._ids_ahead,
                lambda: self._relay_of(at),
            )
        self._after(at)

    def _relay_of(self, at: To) -> int | None:
        """Of the machine of this worker; it is known some time after the start."""
        return at.number % self.machines if self.machines and self.now > 5.0 else None

    def _shard(self, at: To) -> ShardRole:
        def load(name: str, done: Callable[[Server], None]) -> None:
            part = self.disk.parts.get((name, at.number))
            server = restored(part, at.number, self.shards, self.optimizer)
            self._later(self._delay() * 3, lambda: self._loaded(at, role, done, server))

        def take_cut(name: str, server: Server) -> None:
            cut, incarnation = CutUnderWay.of(server), role.incarnation
            self._later(self._delay() * 3, lambda: self._write(at, role, incarnation, name, cut))

        def read_ahead(*_: object) -> None:
            self.counts["read ahead"] += 1  # all rows are in memory

        role = ShardRole(at.number, self._boot(), load, take_cut, read_ahead)
        return role

    def _loaded(self, at: To, role: ShardRole, done: Callable[[Server], None], server: Server) -> None:
        if self.processes[at].role is role:
            done(server)
            self._after(at)

    def _write(self, at: To, role: ShardRole, incarnation: int, name: str, cut: CutUnderWay) -> None:
        if self.processes[at].role is role and role.incarnation == incarnation:
            self.disk.parts[name, at.number] = cut.read()
            role.saved(incarnation, name)
            self._after(at)

    def _ids(self, begin: Begin, epoch: int = 0) -> list[WantedRows]:
        return split_ids(self.layout.shards, (ids_of(begin.lease.first, begin.lease.count),))

    def _ids_ahead(self, begin: Begin, epoch: int, coming: ComingRange) -> list[WantedRows]:
        assert coming.count <= self.global_batch and coming.first + coming.count <= self.examples
        return split_ids(self.layout.shards, (ids_of(coming.first, coming.count),))

    def _compute(self, at: To, role: WorkerRole, job: Job) -> None:
        lease, process = job.begin.lease, self.processes[at]
        if job.flat is None:
            process.dense_copy.take(job.answers, process.total)
        self.counts["stepped beside"] += any(
            isinstance(answer.dense, StepOnSum) and answer.dense.group for answer in job.answers
        )
        whole = len({answer.step for answer in job.answers}) == 1  # else it makes no step beside the shards
        for answer, own, ((ids,), _) in zip(
            job.answers, self.layout.dense, self._ids(job.begin), strict=True
        ):
            assert answer.step >= job.begin.version, "a pull saw too little"
            if answer.incarnation != self.disk.incarnation:
                continue  # it works for a past that never was
            flat, rows = self.history.after(answer.step)
            ahead = job.begin.extrapolation.steps > 0
            self.counts["extrapolated"] += ahead and job.flat is None
            if job.flat is None and self._is_servers_alone(role) and not ahead:
                assert self._same(process.server.flat[own], flat[own]), f"dense values at step {answer.step}"
            if job.place.ring and whole and self._unknown != self.disk.incarnation:
                for name, values in self.history.states[answer.step].items():
                    held = process.server.optimizer_state[name]
                    alike = self._same(held[own], values[own]) if values.dim() else torch.equal(held, values)
                    assert alike, f"optimizer at step {answer.step}"
            assert np.array_equal(answer.rows[0], rows[ids]), f"rows pulled at step {answer.step}"
        fails = self.rng.random() < 0.02

        def done() -> None:
            if self.processes[at].role is not role:
                return  # it died over it
            if job.place.ring:
                self._reduce(at, role, job, usable=not fails)
            elif fails and job.place.group:
                role.broke(job, "not finite")
            elif fails:
                role.failed(job, "not finite")
            else:
                role.computed(job, self.layout.split(gradient(lease.first, lease.count)), None)
            self._after(at)

        self._later(self.rng.expovariate(1.0) * (10.0 if self.rng.random() < 0.1 else 1.0), done)

    def _same(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Adam rounds otherwise in a part than in the whole, and relays sum in another order."""
        if self.optimizer is MOMENTUM and not self.machines:
            return torch.equal(one, other)
        return torch.allclose(one, other, rtol=1e-4, atol=1e-6)

    def _alike(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Means are the same bits, unless relays sum in another order."""
        if not self.machines:
            return torch.equal(one, other)
        return torch.allclose(one.double(), other.double(), rtol=1e-5, atol=1e-6)

    def _is_servers_alone(self, worker: WorkerRole) -> bool:
        """Whether dense values are the servers' alone, as far as coordinator and worker know."""
        coordinator = self.processes[COORDINATOR].role
        if not isinstance(coordinator, CoordinatorRole) or coordinator.running is None:
            return False
        if self._unknown == coordinator.incarnation:
            return False
        plans = coordinator.running.meetings.plans
        return plans.plan == worker.replicas.held.plan and not plans.replicated

    def _reduce(self, at: To, role: WorkerRole, job: Job, usable: bool) -> None:
        """One more has come; the last one brings the sum to all, or to some of them."""
        key = job.answers[0].incarnation, job.place.group, job.answers[0].step
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
            push = summed(gradient(lease.first, lease.count), own, job.place.group)
            role.computed(job, self.layout.split(push), None)
        self._after(at)

    def _log(self, event: Event, actions: list[Action]) -> None:
        if isinstance(event, WorkerLost):
            self._lost_at = self.now
        for action in actions:
            if isinstance(action, Begin):
                self._ranges[action.lease.number] = action.lease
                self._ranks.pop(action.lease.number, None)  # of an incarnation before
                assert action.lease.count <= self.global_batch, "a lease is a batch"
            elif isinstance(action, Apply):
                self._decided[action.step] = action
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

    def horizons(self, step: int) -> None:
        return None

    def rate(self, examples: int) -> float:
        """For the coordinator: the step that is ordered now, with the rate that the accounts give it."""
        rate, epoch = self.account.rate(examples), self._coordinator().epoch
        assert epoch is not None
        decided = self._decided[epoch.step + 1]
        parts = [(self._ranges[part.lease], part.weight) for part in decided.parts]
        late = {part.lease: version_of(decided, part) for part in decided.parts if part.unchanged_rows}
        dense = [self._given_dense[self.disk.incarnation, lease.number] for lease, _ in parts]
        assert len(set(dense)) == 1, "a step of gradients, or of a replica"
        ranks = {n: self._ranks[n] for n in (lease.number for lease, _ in parts) if n in self._ranks}
        examples = {
            n: self._given_examples[self.disk.incarnation, n] for n in (lease.number for lease, _ in parts)
        }
        self.history.steps[epoch.step + 1] = Applied(
            parts, decided.over_kept, rate, dense[0], ranks, examples, decided.dense_rate, late
        )
        return rate

    def restore(self, facts: dict[str, Any]) -> None:
        """For the coordinator: everything after a snapshot is done again."""
        self.account.restore(facts)
        name, snapshot = self.disk.snapshots[-1]
        based = snapshot["step"] in self.history.based  # before or after the snapshot was taken
        self.history.rewind(snapshot["step"])
        parts = [part for i in range(self.shards) if (part := self.disk.parts.get((name, i)))]
        if parts and (based or choices_of(make_strategy(snapshot["strategy"], snapshot["settings"]))):
            self._base(snapshot["step"], [part.flat for part in parts], [part.optimizer for part in parts])

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

    # ---- what users ask ----

    def _switch(self) -> None:
        self.counts["switched"] += 1
        self._ask(Asked(switch=self._strategy()))
        self._later(self.rng.expovariate(0.05), self._switch)

    def _resize(self) -> None:
        self.counts["resized"] += 1
        self._ask(Asked(workers=self.rng.randint(1, MOST_WORKERS)))
        if self.now < CALM:
            self._later(self.rng.expovariate(0.04), self._resize)

    def _dismiss(self) -> None:
        """As where a machine will be taken away."""
        process = self.processes[COORDINATOR]
        if isinstance(process.role, CoordinatorRole) and process.frozen_until <= self.now:
            process.role.now = self.now
            self.counts["dismissed"] += 1
            process.role.dismiss(self.rng.randrange(MOST_WORKERS))
            process.role.proceed()
            self._after(COORDINATOR)
        if self.now < CALM:
            self._later(self.rng.expovariate(0.03), self._dismiss)

    def _ask(self, asked: Asked) -> None:
        self._asked.put(asked)
        process = self.processes[COORDINATOR]
        if isinstance(process.role, CoordinatorRole) and process.frozen_until <= self.now:
            process.role.now = self.now
            self._do_what_was_asked(process.role)
            process.role.proceed()
            self._after(COORDINATOR)

    def _do_what_was_asked(self, role: CoordinatorRole) -> None:
        carry_out_requests(
            role, self._asked, self._strategy_after, lambda asked: self._carry_out(role, asked)
        )

    def _strategy_after(self, asked: Asked) -> Strategy:
        return make_strategy(*self._settings_after(asked))

    def _settings_after(self, asked: Asked) -> tuple[str, dict[str, Any]]:
        """A resize cuts the global batch for this many workers."""
        if asked.switch is not None:
            return asked.switch
        name, settings = self.disk.strategy
        return name, {**settings, "batch": -(-self.global_batch // asked.workers)}

    def _carry_out(self, role: CoordinatorRole, asked: Asked) -> None:
        """As the accounts of a run do it."""
        after = self._settings_after(asked)
        if asked.workers:
            self.workers, self.most_workers = asked.workers, max(asked.workers, self.most_workers)
            role.resize(asked.workers)
            for number in range(asked.workers):
                self._later(
                    self.rng.random() * 5.0, lambda at=To("worker", number): self._start_if_wanted(at)
                )
        if after != self.disk.strategy:
            role.running.switch(*after, "why not")
            self.disk.strategy, self.batch = after, after[1]["batch"]

    # ---- replicas ----

    def shown(self) -> None:
        """For the coordinator: replicas are where they can be saved, or taken over."""
        coordinator = self._coordinator()
        self.counts["shown"] += 1
        plans = coordinator.running.meetings.plans
        before = plans.replicated
        if before:
            self._check_shown(coordinator)
        self._do_what_was_asked(coordinator)
        if before and not plans.replicated:
            self._rebase(coordinator)

    def _shards(self, coordinator: CoordinatorRole) -> list[Server] | None:
        """None if one of them is lost, which is not known yet."""
        roles = [self.processes[To("shard", i)].role for i in range(self.shards)]
        found = [r for r in roles if isinstance(r, ShardRole) and r.incarnation == coordinator.incarnation]
        return [r.shard.server for r in found if r.shard] if len(found) == self.shards else None

    def _rebase(self, coordinator: CoordinatorRole) -> None:
        """From here on the servers step the dense values."""
        servers = self._shards(coordinator)
        assert coordinator.epoch is not None
        if servers is None:
            self._unknown = coordinator.incarnation
        else:
            states = [server.optimizer_state for server in servers]
            self._base(coordinator.epoch.step, [server.flat for server in servers], states)

    def _base(self, step: int, flats: list[torch.Tensor], states: list[dict[str, torch.Tensor]]) -> None:
        """Dense values of the shards at this step, from which servers go on."""
        if _counts_differ(states):
            self._unknown = self.disk.incarnation
        self.history.rebase(step, torch.cat(flats), joined(states))

    def _check_shown(self, coordinator: CoordinatorRole) -> None:
        epoch, meeting, servers = (
            coordinator.epoch,
            coordinator.running.meetings.current,
            self._shards(coordinator),
        )
        assert epoch is not None and meeting is not None
        assert epoch.step == epoch.coordinator.work.step, "a step is under way"
        workers = [self.processes[To("worker", i)].role for i in sorted(coordinator.sessions.members)]
        here = [
            w.replicas
            for w in workers
            if isinstance(w, WorkerRole) and w.boot == coordinator.sessions.members[w.number]
        ]
        for one in here:
            assert not one.may_step, "a worker goes on while its replica is looked at"
            assert one.lease not in epoch.coordinator.work.flying, "a step is not accounted for"
        lost = self._lost_at >= self._met_at.get((coordinator.incarnation, meeting.number), self.now)
        replicas = [
            one.held.replica for one in here if one.held.replica is not None and not one.attendance.absent
        ]
        if lost or servers is None or len(here) < len(workers) or not replicas:
            return  # what the shards have is also of one that is gone
        self.counts["shown and compared"] += 1
        choices, flats = replicas[0].choices, [one.flat for one in replicas]
        mean = mean_of(flats)
        state = mean_state([one.state for one in replicas], servers[0].optimizer_state)
        overwritten = choices.merge == "overwrite" and not choices.block_momentum
        for server, own in zip(servers, self.layout.dense, strict=True):
            if overwritten:
                assert all(torch.equal(server.flat, flat[own]) for flat in flats), "replicas differ"
            elif choices.exchange == "mean" and not choices.block_momentum:
                assert self._alike(server.flat, mean[own]), "another mean is shown"
            for name, values in state.items():
                expected = values[own] if values.dim() else values
                assert self._alike(server.optimizer_state[name], expected), f"the mean {name} is another"

    # ---- the laws ----

    def _check_size(self, coordinator: CoordinatorRole) -> None:
        for worker, session in coordinator.sessions.items():
            stays = worker < coordinator.sessions.limit and not session.dismissed
            works = session.answer is not None or coordinator.all_reduce_groups.has(worker)
            assert stays or works, "one that shall leave is kept after its batch"

    def _check(self) -> None:
        coordinator = self.processes[COORDINATOR].role
        assert isinstance(coordinator, CoordinatorRole) and coordinator.epoch is not None
        self.counts["incarnations"] += coordinator.incarnation
        self.counts["steps"] += coordinator.epoch.step
        wanted = Counter(dict.fromkeys(range(self.examples), self.account.passes))
        assert self.account.ends == wanted, "every example is applied or discarded once in every pass"
        flat, rows = self.history.after(coordinator.epoch.step)
        optimizer = self.history.server.optimizer_state
        for i, own in enumerate(self.layout.dense):
            role = self.processes[To("shard", i)].role
            if not isinstance(role, ShardRole) or role.incarnation != coordinator.incarnation:
                continue  # it died just now
            assert role.shard is not None and role.shard.step == coordinator.epoch.step
            unheard = {
                order.what.lease for order in coordinator.running.orders.open if isinstance(order.what, Drop)
            }
            assert role.shard.waiting.keys() <= unheard, "a gradient waits for nothing"
            server = role.shard.server
            unknown = (
                coordinator.running.meetings.plans.replicated or self._unknown == coordinator.incarnation
            )
            for name, values in optimizer.items() if not unknown else ():
                expected = values[own] if values.dim() else values
                assert self._same(server.flat, flat[own]), f"dense values of shard {i}"
                assert self._same(server.optimizer_state[name], expected), f"{name} of shard {i}"
            mine = split_ids(self.layout.shards, (np.arange(IDS, dtype=np.int64),))[i].ids[0]
            assert np.array_equal(server.stores[0].peek(mine), rows[mine]), f"rows of {i}"


def _counts_differ(states: list[dict[str, torch.Tensor]]) -> bool:
    """Of steps, on the shards: a worker was lost in a meeting, and some of them had met with it already."""
    return any(
        len({int(state[name]) for state in states}) > 1 for name, v in states[0].items() if not v.dim()
    )


def joined(states: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The optimizer state of all shards as one."""
    return {
        name: torch.cat([state[name] for state in states]) if values.dim() else values.clone()
        for name, values in states[0].items()
    }


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
