"""Code of ours beside the library that could replace it: metrics text, probes of processes, authentication of peers.

    python benchmarks/bench_libraries.py [--rounds 15]        some seconds; needs prometheus_client and psutil

docs/adr/0020 has the decisions. The heads of messages are in bench_wire.py, event-log lines in bench_event_log.py.
Sides take turns; medians of CPU time (of all threads) count. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import prometheus_client
import psutil
import zmq
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from zmq.auth.thread import ThreadAuthenticator

from gearshift.engine.protocol.messages import To
from gearshift.engine.ray import end_session
from gearshift.engine.wire.keys import Contact, ContactRegister, Keys, PeerAuthenticator
from gearshift.run import process_identity, prometheus

Sides = dict[str, Callable[[], object]]

# ---- the text of metrics, of a run with 32 workers ----

STATUS = SimpleNamespace(**dict.fromkeys(prometheus.OF_THE_RUN, 812.5))
PROCESSES = {f"worker-{i}": dict.fromkeys(prometheus.COUNTERS, 1.5 * i) for i in range(32)}


class Collector:
    def collect(self) -> Iterator[Metric]:
        for key, (name, help_) in prometheus.OF_THE_RUN.items():
            gauge = GaugeMetricFamily(f"gearshift_{name}", help_, labels=["run"])
            gauge.add_metric(["shop"], getattr(STATUS, key))
            yield gauge
        for key, help_ in prometheus.COUNTERS.items():
            counter = CounterMetricFamily(f"gearshift_{key}", help_, labels=["run", "role", "number"])
            for who, own in PROCESSES.items():
                role, _, number = who.rpartition("-")
                counter.add_metric(["shop", role, number], own[key])
            yield counter


def metrics_text() -> Sides:
    registry = prometheus_client.CollectorRegistry()
    registry.register(Collector())
    return {
        "metrics text, ours": lambda: prometheus.text("shop", STATUS, PROCESSES),
        "metrics text, prometheus_client": lambda: prometheus_client.generate_latest(registry),
    }


# ---- probes of processes ----


def by_environment() -> list[str]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("RAY_AUTH_TOKEN_PATH") == "/nowhere/token":
                found.append(" ".join(process.cmdline()))
    return found


def process_probes() -> Sides:
    me = os.getpid()
    return {
        "start of a process, ours": lambda: process_identity.process_start(me),
        "start of a process, psutil": lambda: psutil.Process(me).create_time(),
        "state of a process, ours": lambda: process_identity.is_stopped(me),
        "state of a process, psutil": lambda: psutil.Process(me).status(),
        "processes by environment, ours": lambda: end_session.processes_of(Path("/nowhere")),
        "processes by environment, psutil": by_environment,
    }


# ---- a handshake with keys, from the sockets to the first message ----


class KnownKeys:
    def __init__(self, register: ContactRegister) -> None:
        self._register = register

    def callback(self, domain: str, key: bytes) -> bool:
        return self._register.whose(key.decode()) is not None


def handshake(by_thread: bool) -> None:
    context: zmq.Context[Any] = zmq.Context()
    register, server, client = ContactRegister(), Keys.make(), Keys.make()
    register.learn(Contact(To("worker", 0), 1, key=client.public))
    poller = zmq.Poller()
    if by_thread:
        thread = ThreadAuthenticator(context)
        thread.start()
        thread.configure_curve_callback(domain="*", credentials_provider=KnownKeys(register))
    else:
        ours = PeerAuthenticator(context, register)
        poller.register(ours.socket, zmq.POLLIN)
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    for socket, keys in ((router, server), (dealer, client)):
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
    router.setsockopt(zmq.CURVE_SERVER, 1)
    router.setsockopt(zmq.ZAP_DOMAIN, b"*")
    dealer.setsockopt(zmq.CURVE_SERVERKEY, server.public.encode())
    poller.register(router, zmq.POLLIN)
    dealer.connect(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
    dealer.send(b"hello")
    while router not in (ready := dict(poller.poll())):
        if not by_thread and ours.socket in ready:
            ours.answer()
    if by_thread:
        thread.stop()
    context.destroy(linger=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    sides: Sides = {
        **metrics_text(),
        **process_probes(),
        "handshake, ours": lambda: handshake(by_thread=False),
        "handshake, zmq.auth": lambda: handshake(by_thread=True),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            began = time.process_time()
            for _ in range(10):
                side()
            times[name].append((time.process_time() - began) / 10 * 1000)
    for name, own in times.items():
        print(f"{name:36}{median(own):8.3f} ms  [{min(own):.3f}, {max(own):.3f}]")
    print(json.dumps({name: round(median(own), 4) for name, own in times.items()}))


if __name__ == "__main__":
    main()
