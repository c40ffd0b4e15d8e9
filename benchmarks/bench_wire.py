"""Pull and push of 40,000 rows of width 16 between one worker and one shard process, over each transport.

    python benchmarks/bench_wire.py [trips] [heads] [--rounds 9]        about a minute

A round trip is what a worker does with a shard: it asks for its rows, gets them, gives a gradient for all of them, and
hears that the shard has it; the shard applies it (Adagrad) before it answers. The shard is the real role in the real
loop. Sides take turns, and the median round counts. `in process` are the same calls on the same store, without a
wire; `alone` are sides whose shard has no store: it has the rows at hand and drops the gradient, so that only the way
there and back is measured. If ray can be imported, the same calls on a plain Ray actor are a side too (in the same
run: that is what the ratios are for). The last line is JSON: milliseconds per round trip, rows/s (pulled and
pushed), and the ratios.

`heads` compares the head of small messages, which is derived from their dataclasses and written by msgspec, with one
written by hand with `struct`: what a format of fixed numbers costs without any derivation. CPU time; sides take turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import shutil
import struct
import tempfile
import time
from collections.abc import Callable
from functools import partial
from math import isfinite
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from gearshift.embedding.store import RowAdagrad, RowPart
from gearshift.embedding.table_store import MemoryStore
from gearshift.engine.protocol.all_reduce import GroupRank
from gearshift.engine.protocol.messages import (
    COORDINATOR,
    Assignment,
    Done,
    Give,
    Load,
    Pull,
    Rows,
    Taken,
    To,
    ToShard,
)
from gearshift.engine.protocol.replica_messages import ExchangePlan
from gearshift.engine.protocol.shard import ShardRole
from gearshift.engine.wire.address import ipc_address
from gearshift.engine.wire.codec import Codec
from gearshift.engine.wire.driver import Driver
from gearshift.engine.wire.endpoint import Endpoint
from gearshift.engine.wire.keys import Contact, Keys
from gearshift.engine.wire.limits import Limits
from gearshift.optim.first_order import SGD
from gearshift.parameters.push import NO_PREDICTIONS, Push, RowPush
from gearshift.parameters.server import Server
from gearshift.parameters.shard import ApplyStep, Order
from gearshift.sync.events import Begin, Lease

ROWS, WIDTH, TABLE, DENSE, SETS = 40_000, 16, 1_000_000, 16, 8
LIMITS = Limits((WIDTH,), (DENSE,), ids=ROWS, batch=1)
SHARD, WORKER = To("shard", 0), To("worker", 0)
TRIPS = 20  # of one side before the next has its turn


def a_store() -> MemoryStore:
    """With all rows born."""
    store = MemoryStore([RowPart("embedding", WIDTH, RowAdagrad(), 0.01)], seed=1)
    store.pull(np.arange(TABLE))
    return store


class NoStore:
    """Has the rows at hand, and drops gradients."""

    def __init__(self) -> None:
        self._rows = np.ones((ROWS, WIDTH), np.float32)

    def pull(self, ids_U: Any, **_: Any) -> Any:
        return self._rows

    def push(self, *_: Any, **__: Any) -> None:
        pass


def make_store(alone: bool) -> Any:
    return NoStore() if alone else a_store()


def pushes() -> list[RowPush]:
    rng = np.random.default_rng(1)
    return [
        RowPush(
            rng.choice(TABLE, ROWS, replace=False).astype(np.int64),
            rng.standard_normal((ROWS, WIDTH), np.float32),
            np.ones(ROWS, np.uint32),
        )
        for _ in range(SETS)
    ]


# ---- the shard's process ----


class ObedientRole(ShardRole):
    """Applies each gradient as it comes: the order that a coordinator would give."""

    def handle(self, message: ToShard) -> None:
        super().handle(message)
        if isinstance(message, Give) and self.shard is not None and message.lease in self.shard.waiting:
            step = ApplyStep(self.shard.step + 1, ((message.lease, 1.0),))
            self.shard.receive(Order(self.shard.done + 1, step))


def serve(folder: Path, kind: str, alone: bool, pipe: Connection) -> None:
    torch.set_num_threads(1)
    server = Server(torch.zeros(DENSE), (make_store(alone),), SGD(lr=0.1))
    bind = ipc_address(folder, SHARD, 1) if kind == "ipc" else "tcp://127.0.0.1:*"
    keys = Keys.make() if kind.startswith("curve") else None
    endpoint = Endpoint(SHARD, 1, LIMITS, bind=bind, keys=keys, open_to_host=True)
    pipe.send((endpoint.contact.address, endpoint.contact.key))
    endpoint.learn([Contact(WORKER, 1, key=pipe.recv())])
    role = ObedientRole(0, 1, lambda name: server, lambda name, server: None)
    role.handle(Load(1, 1, "start"))
    role.out.clear()
    driver = Driver(endpoint)
    driver.run(role)


class WireSide:
    def __init__(self, kind: str, alone: bool) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gs-", dir="/dev/shm"))
        self._pipe, theirs = mp.Pipe()
        self._process = mp.get_context("spawn").Process(
            target=serve, args=(self._folder, kind, alone, theirs), daemon=True
        )
        self._process.start()
        self._kind, self._trips = kind, 0

    def connect(self) -> None:
        """Apart from the start, so that the sides start together."""
        address, key = self._pipe.recv()
        keys = Keys.make() if self._kind.startswith("curve") else None
        self._endpoint = Endpoint(WORKER, 1, LIMITS, keys=keys, half=self._kind.endswith("bf16"))
        self._pipe.send(keys.public if keys else "")
        self._endpoint.learn([Contact(SHARD, 1, address, key)])

    def trip(self, push: RowPush) -> None:
        self._trips += 1
        number = self._trips
        rows = self._ask(Pull(1, 0, 1, number, 0, (push.ids_U,), (push.tables_U,)))
        assert rows.pull == number and rows.rows[0].shape == (ROWS, WIDTH)
        whole = Push((push,), torch.ones(DENSE), 1.0, 1.0, NO_PREDICTIONS)
        taken = self._ask(Give(1, 0, number, whole))
        assert taken.lease == number

    def _ask(self, message: Pull | Give) -> Any:
        """Says it again if no answer comes, as a role does: until the connection stands, nothing is sent."""
        while True:
            self._endpoint.connections.mend()
            self._endpoint.send(SHARD, message)
            until = time.monotonic() + (0.05 if self._endpoint.connections.cut_off(SHARD) else 5.0)
            while time.monotonic() < until:
                for found in self._endpoint.receive(until - time.monotonic()):
                    if isinstance(found, Rows if isinstance(message, Pull) else Taken):
                        return found

    def close(self) -> None:
        self._endpoint.close()
        self._process.kill()
        self._process.join()
        shutil.rmtree(self._folder)


class InProcess:
    def __init__(self, alone: bool = False) -> None:
        self._store, self._step = make_store(alone), 0

    def trip(self, push: RowPush) -> None:
        self._step += 1
        self._store.pull(push.ids_U)
        self._store.push(push.ids_U, push.sums_UW, push.counts_U, examples=1.0, step=self._step)

    def close(self) -> None:
        pass


class RayCalls:
    """What plain Ray does with it: arrays as arguments and results of an actor's methods."""

    def __init__(self, ray: Any, alone: bool) -> None:
        self._ray = ray
        if not ray.is_initialized():
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

        class Store:
            def __init__(self) -> None:
                self._side = InProcess(alone)

            def pull(self, ids: Any) -> Any:
                return self._side._store.pull(ids)

            def push(self, ids: Any, sums: Any, counts: Any, step: int) -> None:
                self._side._store.push(ids, sums, counts, examples=1.0, step=step)

        self._actor, self._step = ray.remote(Store).remote(), 0

    def trip(self, push: RowPush) -> None:
        self._step += 1
        rows = self._ray.get(self._actor.pull.remote(push.ids_U))
        assert rows.shape == (ROWS, WIDTH)
        self._ray.get(self._actor.push.remote(push.ids_U, push.sums_UW, push.counts_U, self._step))

    def close(self) -> None:
        self._ray.shutdown()


def sides() -> dict[str, Callable[[], Any]]:
    made: dict[str, Callable[[], Any]] = {"in process": InProcess}
    for kind in ("ipc", "tcp", "curve", "curve bf16"):
        for alone in (False, True):
            made[f"{kind} alone" if alone else kind] = partial(WireSide, kind, alone)
    try:
        import ray
    except ImportError:
        print("ray cannot be imported: its side is left out")
    else:
        made |= {"ray calls": partial(RayCalls, ray, False), "ray calls alone": partial(RayCalls, ray, True)}
    return made


def measure(rounds: int) -> dict[str, float]:
    """Milliseconds per trip: the median of rounds."""
    data, times = pushes(), dict[str, list[float]]()
    running = {name: make() for name, make in sides().items()}
    for side in running.values():
        if isinstance(side, WireSide):
            side.connect()
    try:
        for _ in range(rounds + 1):
            for name, side in running.items():
                began = time.perf_counter()
                for i in range(TRIPS):
                    side.trip(data[i % SETS])
                times.setdefault(name, []).append((time.perf_counter() - began) / TRIPS * 1000)
    finally:
        for side in running.values():
            side.close()
    for name, found in times.items():
        own = sorted(found[1:])  # the first is for warming up
        rate = 2 * ROWS / median(own) * 1000 / 1e6
        print(f"{name:18}{median(own):8.2f} ms  [{own[0]:.2f}, {own[-1]:.2f}]  {rate:6.2f} M rows/s")
    return {name: median(found[1:]) for name, found in times.items()}


# ---- heads ----

HAND_HEAD = struct.Struct("<4sBBHq")
MOST = 2**62


def pack(kind: int, incarnation: int, numbers: tuple[int, ...], reals: tuple[float, ...], text: str) -> bytes:
    head = HAND_HEAD.pack(b"GSFT", 1, kind, 0, incarnation)
    return head + struct.pack(f"<{len(numbers)}q{len(reals)}d", *numbers, *reals) + text.encode()


def unpack(head: bytes, numbers: int, reals: int) -> tuple[int, tuple[Any, ...], tuple[float, ...], str]:
    """Checked as far as msgspec does: the prefix, the length, ranges, text."""
    magic, form, _, flags, incarnation = HAND_HEAD.unpack_from(head)
    if magic != b"GSFT" or form != 1 or flags or len(head) < HAND_HEAD.size + 8 * (numbers + reals):
        raise ValueError("not of this protocol")
    found = struct.unpack_from(f"<{numbers}q{reals}d", head, HAND_HEAD.size)
    if not all(0 <= value < MOST for value in (incarnation, *found[:numbers])):
        raise ValueError("a number out of range")
    if not all(map(isfinite, found[numbers:])):
        raise ValueError("a number that is not finite")
    text = head[HAND_HEAD.size + 8 * (numbers + reals) :]
    return incarnation, found[:numbers], found[numbers:], text.decode()


def done_by_hand(done: Done) -> bytes:
    return pack(6, done.incarnation, (done.shard, done.boot, done.number), (), "")


def done_from(head: bytes) -> Done:
    incarnation, numbers, _, _ = unpack(head, 3, 0)
    return Done(incarnation, *numbers)


def assignment_by_hand(a: Assignment) -> bytes:
    begin, lease, plan, place = a.begin, a.begin.lease, a.plan, a.place
    numbers = (
        *(a.boot, a.request, begin.worker, begin.token, begin.version),
        *(lease.number, lease.first, lease.count, lease.attempt, a.epoch),
        *(place.group, place.rank, place.size, plan.generation, plan.lineage),
    )
    return pack(17, a.incarnation, numbers, (a.rate,), plan.choices)


def assignment_from(head: bytes) -> Assignment:
    incarnation, n, (rate,), choices = unpack(head, 15, 1)
    begin = Begin(n[2], Lease(*n[5:9]), n[3], n[4])
    plan = ExchangePlan(n[13], n[14], choices)
    return Assignment(incarnation, n[0], n[1], begin, n[9], plan, rate, GroupRank(*n[10:13]))


def heads(rounds: int) -> dict[str, float]:
    """Microseconds per message."""
    done = Done(1, 0, 2, 77)
    assignment = Assignment(1, 5, 6, Begin(0, Lease(9, 100, 20), 4, 4), 1)
    coordinator, worker = Codec(COORDINATOR, LIMITS), Codec(WORKER, LIMITS)
    done_frames, assignment_frames = coordinator.encode(done), worker.encode(assignment)
    done_head, assignment_head = done_by_hand(done), assignment_by_hand(assignment)
    assert coordinator.decode(done_frames, SHARD)[0] == done_from(done_head) == done
    assert worker.decode(assignment_frames, COORDINATOR)[0] == assignment_from(assignment_head) == assignment
    sides: dict[str, Callable[[], object]] = {
        "done write derived": lambda: coordinator.encode(done),
        "done write by hand": lambda: done_by_hand(done),
        "done read derived": lambda: coordinator.decode(done_frames, SHARD),
        "done read by hand": lambda: done_from(done_head),
        "assignment write derived": lambda: worker.encode(assignment),
        "assignment write by hand": lambda: assignment_by_hand(assignment),
        "assignment read derived": lambda: worker.decode(assignment_frames, COORDINATOR),
        "assignment read by hand": lambda: assignment_from(assignment_head),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(5 * rounds):
        for name, side in sides.items():
            began = time.process_time()
            for _ in range(1000):
                side()
            times[name].append((time.process_time() - began) * 1000)
    for name, own in times.items():
        print(f"{name:26}{median(own):6.2f} us  [{min(own):.2f}, {max(own):.2f}]")
    found = {f"{name.replace(' ', '_')}_us": round(median(own), 3) for name, own in times.items()}
    sizes = {"done": (done_frames, done_head), "assignment": (assignment_frames, assignment_head)}
    for name, (derived, by_hand) in sizes.items():
        found |= {f"{name}_bytes_derived": len(derived[0]), f"{name}_bytes_by_hand": len(by_hand)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["trips", "heads"])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, float | None] = {}
    if "trips" in options.parts:
        result |= trips(options.rounds)
    if "heads" in options.parts:
        result |= heads(options.rounds)
    print(json.dumps(result))


def trips(rounds: int) -> dict[str, float | None]:
    found = measure(rounds)
    result: dict[str, float | None] = {}
    for name, ms in found.items():
        result[f"{name.replace(' ', '_')}_ms"] = round(ms, 3)
        result[f"{name.replace(' ', '_')}_rows_per_second"] = round(2 * ROWS / ms * 1000)
    result["ipc_vs_in_process"] = round(found["ipc"] / found["in process"], 3)
    for key, kind in {"wire": "ipc", "curve": "curve"}.items():
        for more in ("", " alone"):
            ray = found.get(f"ray calls{more}")
            name = f"{key}_vs_ray_calls{more.replace(' ', '_')}"
            result[name] = round(found[kind + more] / ray, 3) if ray else None
    return result


if __name__ == "__main__":
    main()
