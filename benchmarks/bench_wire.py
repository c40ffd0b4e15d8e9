"""Pull and push of 40,000 rows of width 16 between one worker and one shard process, over each transport.

    python benchmarks/bench_wire.py [--rounds 9]        about a minute

A round trip is what a worker does with a shard: it asks for its rows, gets them, gives a gradient for all of them, and
hears that the shard has it; the shard applies it (Adagrad) before it answers. The shard is the real role in the real
loop. Sides take turns, and the median round counts. `in process` are the same calls on the same store, without a
wire; `alone` are sides whose shard has no store: it has the rows at hand and drops the gradient, so that only the way
there and back is measured. If ray can be imported, the same calls on a plain Ray actor are a side too (in the same
run: that is what the ratios are for). The last line is JSON: milliseconds per round trip, rows/s (pulled and
pushed), and the ratios.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from gearshift.embedding.memory import MemoryStore
from gearshift.embedding.store import RowAdagrad, RowPart
from gearshift.engine.protocol.messages import Give, Load, Pull, Rows, Taken, To, ToShard
from gearshift.engine.protocol.shard import ShardRole
from gearshift.engine.wire.address import ipc_address
from gearshift.engine.wire.driver import Driver
from gearshift.engine.wire.endpoint import Endpoint
from gearshift.engine.wire.keys import Contact, Keys
from gearshift.engine.wire.limits import Limits
from gearshift.optim.first_order import SGD
from gearshift.parameters.push import Push, RowPush
from gearshift.parameters.server import Server
from gearshift.parameters.shard import NO_PREDICTIONS, ApplyStep, Order

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
            self.shard.tell(Order(self.shard.done + 1, step))


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
        rows = self._ask(Pull(1, 0, 1, number, 0, (push.ids_U,)))
        assert rows.pull == number and rows.rows[0].shape == (ROWS, WIDTH)
        whole = Push((push,), torch.ones(DENSE), 1.0, 1.0, NO_PREDICTIONS)
        taken = self._ask(Give(1, 0, number, whole))
        assert taken.lease == number

    def _ask(self, message: Pull | Give) -> Any:
        """Says it again if no answer comes, as a role does: until the connection stands, nothing is sent."""
        while True:
            self._endpoint.mend()
            self._endpoint.send(SHARD, message)
            until = time.monotonic() + (0.05 if self._endpoint.cut_off(SHARD) else 5.0)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    torch.set_num_threads(1)
    found = measure(parser.parse_args().rounds)
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
    print(json.dumps(result))


if __name__ == "__main__":
    main()
