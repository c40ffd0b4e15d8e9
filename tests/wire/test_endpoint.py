"""Sockets: who speaks is known, strangers stay outside and are counted, and nothing that they do stops anybody."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import zmq

from gearshift.engine.protocol import messages as m
from gearshift.engine.protocol.messages import Message, To
from gearshift.engine.wire.address import check_bind, ipc_address
from gearshift.engine.wire.codec import Codec
from gearshift.engine.wire.endpoint import Endpoint
from gearshift.engine.wire.keys import Contact, ContactRegister, Keys
from gearshift.engine.wire.limits import Limits
from gearshift.errors import UserError
from gearshift.parameters.push import NO_PREDICTIONS, Push, RowPush
from gearshift.parameters.shard import Drop, Order
from tests.shard_ids import wanted

LIMITS = Limits((4,), (3, 2), ids=20_000, batch=8)
COORDINATOR, SHARD = To("coordinator"), To("shard", 1)
LOOPBACK = "tcp://127.0.0.1:*"


class Company:
    """Endpoints of this process, each with a context of its own, that know each other."""

    def __init__(self) -> None:
        self.members: list[Endpoint] = []

    def __call__(self, who: To, boot: int = 1, **how: object) -> Endpoint:
        member = Endpoint(who, boot, LIMITS, **how)  # type: ignore[arg-type]
        for other in self.members:
            other.learn([member.contact])
            member.learn([other.contact])
        self.members.append(member)
        return member

    def hear(self, at: Endpoint, say: Callable[[], None] = lambda: None) -> Message:
        """The next message that comes here; `say` is said until it does."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            say()
            for member in self.members:
                heard = member.receive(0.01)
                member.connections.mend()
                if member is at and heard:
                    return heard[0]
        raise AssertionError("nothing came")

    def until(self, true: Callable[[], object]) -> None:
        until = time.monotonic() + 20
        while not true():
            assert time.monotonic() < until, "it never came to that"
            for member in self.members:
                member.receive(0.01)


@pytest.fixture
def company() -> Iterator[Company]:
    company = Company()
    yield company
    for member in company.members:
        member.close(linger=0.0)


def hello(member: Endpoint, boot: int = 1) -> Callable[[], None]:
    return lambda: member.send(COORDINATOR, m.Hello(member.me.number, boot))


def listener(company: Company, who: To = COORDINATOR) -> Endpoint:
    return company(who, bind=LOOPBACK, keys=Keys.make())


def a_worker(company: Company, number: int = 0, **how: object) -> Endpoint:
    return company(To("worker", number), keys=Keys.make(), **how)


def test_workers_and_shards_talk_over_a_folder(company: Company) -> None:
    folder = Path(tempfile.gettempdir(), f"gs-{os.getpid()}")
    try:
        shard = company(SHARD, bind=ipc_address(folder, SHARD, 1))
        worker = company(To("worker", 3))
        check_pull_and_push(company, shard, worker)
        assert len(list(folder.glob("*.ring"))) == 2, "large frames went through shared memory"
        check_traffic(shard, worker)
    finally:
        for left in folder.iterdir():
            left.unlink()
        folder.rmdir()


@pytest.mark.parametrize("half", [False, True])
def test_workers_and_shards_talk_by_keys(company: Company, half: bool) -> None:
    shard, worker = listener(company, SHARD), a_worker(company, 3, half=half)
    check_pull_and_push(company, shard, worker, half)
    check_traffic(shard, worker)


def check_pull_and_push(company: Company, shard: Endpoint, worker: Endpoint, half: bool = False) -> None:
    ids = np.arange(20_000)
    pull = company.hear(shard, lambda: worker.send(SHARD, m.Pull(1, 3, 1, 1, 0, *wanted((ids,)))))
    assert isinstance(pull, m.Pull) and np.array_equal(pull.ids[0], ids)
    rows = np.random.default_rng(1).random((20_000, 4), np.float32)
    answer = m.Rows(1, 1, 1, 1, 0, (rows,), m.DenseValues(torch.arange(2.0)))
    found = company.hear(worker, lambda: shard.send(worker.me, answer))
    assert isinstance(found, m.Rows) and torch.equal(found.dense.flat, answer.dense.flat)
    np.testing.assert_allclose(found.rows[0], rows, rtol=2**-8 if half else 0)
    push = Push((RowPush(ids, rows, np.ones(20_000, np.uint32)),), torch.ones(2), 1.0, 1.0, NO_PREDICTIONS)
    give = company.hear(shard, lambda: worker.send(SHARD, m.Give(1, 3, 5, push)))
    while isinstance(give, m.Pull):
        give = company.hear(shard)
    assert isinstance(give, m.Give) and give.lease == 5
    np.testing.assert_allclose(give.push.rows[0].sums_UW, rows, rtol=2**-8 if half else 0)
    assert not shard.counts.refused and not worker.counts.refused


def check_traffic(shard: Endpoint, worker: Endpoint) -> None:
    """At least one pull, its answer and one gradient went; what the shard has heard, the worker has sent."""
    said, heard = worker.counts.figures(), shard.counts.figures()
    assert 2 <= heard["received_messages"] <= said["sent_messages"] + 1, (
        "the knock is counted where it is heard"
    )
    assert 20_000 * 8 < heard["received_bytes"] <= said["sent_bytes"] + 100
    width = 2 if worker.half else 4
    assert 20_000 * 4 * width < said["received_bytes"] <= heard["sent_bytes"]
    assert said["refused"] == heard["refused"] == 0
    before = said["sent_messages"]
    shard.send(To("worker", 77), m.Taken(1, 1, 5))
    assert shard.counts.figures()["unsent"] == heard["unsent"] + 1
    assert worker.counts.figures()["sent_messages"] == before


def test_a_worker_that_starts_anew_is_answered_under_its_new_name_and_key(company: Company) -> None:
    coordinator = listener(company)
    old = a_worker(company)
    company.hear(coordinator, hello(old))
    new = company(To("worker", 0), boot=2, keys=Keys.make())
    company.hear(coordinator, hello(new, 2))
    welcome = m.Welcome(1, 2)
    assert company.hear(new, lambda: coordinator.send(new.me, welcome)) == welcome
    hello(old)()
    company.until(lambda: coordinator.counts.refused["a name that does not belong to the key"])


def test_a_listener_that_starts_anew_is_found_again(company: Company) -> None:
    coordinator, worker = listener(company), a_worker(company)
    company.hear(coordinator, hello(worker))
    company.members.remove(coordinator)
    coordinator.close(linger=0.0)
    again = company(COORDINATOR, boot=2, bind=LOOPBACK, keys=Keys.make())
    assert company.hear(again, hello(worker)) == m.Hello(0, 1)
    assert worker.connections.cut_off(COORDINATOR) == 0.0


def test_one_that_connected_can_be_spoken_to_before_it_has_said_a_word(company: Company) -> None:
    coordinator = listener(company)
    shard = company(SHARD, bind=LOOPBACK, keys=Keys.make())
    load = m.Load(1, 1, "start")
    assert company.hear(shard, lambda: coordinator.send(SHARD, load)) == load


def test_a_key_that_becomes_known_later_is_let_in_then(company: Company) -> None:
    coordinator = listener(company)
    worker = Endpoint(To("worker", 0), 1, LIMITS, keys=Keys.make())
    worker.learn([coordinator.contact])
    company.members.append(worker)
    company.until(lambda: coordinator.counts.refused["a handshake with an unknown key"])
    assert worker.connections.cut_off(COORDINATOR) > 0.0
    coordinator.learn([worker.contact])
    assert company.hear(coordinator, hello(worker)) == m.Hello(0, 1)


def test_a_process_that_dies_is_no_stranger(company: Company) -> None:
    """Inside a host nobody else can connect: a handshake that breaks off, or never begins, is one of ours that died."""
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        coordinator = company(COORDINATOR, bind=ipc_address(Path(folder), COORDINATOR, 1))
        path = coordinator.contact.address.removeprefix("ipc://")
        for said in (b"", b"\xff" + bytes(8) + b"\x7f\x03"):  # before its greeting, and in the middle of it
            before = coordinator.counts.broken.total()
            with socket.socket(socket.AF_UNIX) as dead:
                dead.connect(path)
                dead.sendall(said)
            company.until(lambda before=before: coordinator.counts.broken.total() > before)
        assert not coordinator.counts.refused and coordinator.counts.news() == []
        assert coordinator.counts.figures()["broken"] >= 2 and coordinator.counts.figures()["refused"] == 0


# ---- strangers ----


@contextmanager
def client(address: str, name: bytes = b"", **options: object) -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.SNDTIMEO, 20_000)  # of one that is refused for good nobody takes anything
    dealer.setsockopt(zmq.ROUTING_ID, name or b"worker/0/1/0123456789abcdef")
    for option, value in options.items():
        setattr(dealer, option, value)
    dealer.connect(address)
    try:
        yield dealer
    finally:
        context.destroy(linger=0)


def raw(address: str, data: bytes) -> socket.socket:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(data)
    return connection


def the_run_goes_on(company: Company, coordinator: Endpoint, worker: Endpoint) -> None:
    assert company.hear(coordinator, hello(worker)) == m.Hello(worker.me.number, 1)


def head(worker: int = 0) -> bytes:
    return bytes(Codec(COORDINATOR, LIMITS).encode(m.Hello(worker, 1))[0])


def test_a_client_without_keys_or_with_others_is_refused_and_counted(company: Company) -> None:
    coordinator, worker = listener(company), a_worker(company)
    the_run_goes_on(company, coordinator, worker)
    address, server = coordinator.contact.address, coordinator.contact.key.encode()
    with client(address) as stranger:
        stranger.send(head())
        company.until(lambda: coordinator.counts.refused.total())  # either side may be the first to break off
    public, secret = zmq.curve_keypair()
    keys = {"curve_publickey": public, "curve_secretkey": secret}
    with client(address, curve_serverkey=server, **keys) as stranger:
        stranger.send(head())
        company.until(lambda: coordinator.counts.refused["a handshake with an unknown key"])
    known = coordinator.counts.refused.total()
    with client(address, curve_serverkey=public, **keys) as stranger:  # takes another for the coordinator
        stranger.send(head())
        company.until(lambda: coordinator.counts.refused.total() > known)
    the_run_goes_on(company, coordinator, worker)
    assert any("unknown key" in sentence for sentence in coordinator.counts.news())
    assert coordinator.counts.news() == []


def test_noise_and_sizes_out_of_a_dream_are_cut_off(company: Company) -> None:
    coordinator, worker = listener(company), a_worker(company)
    the_run_goes_on(company, coordinator, worker)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31)
    huge = b"\x06" + (2**62).to_bytes(8, "big")  # a command frame of that length
    noise = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20, os.urandom(500), greeting + huge + b"x" * 100]
    connections = [raw(coordinator.contact.address, data) for data in noise]
    for connection in connections:
        company.until(lambda c=connection: closed(c))
    company.until(lambda: coordinator.counts.refused["a connection without a handshake"] == 3)
    the_run_goes_on(company, coordinator, worker)


def closed(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        while connection.recv(1000):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    connection.close()
    return True


class Recorder:
    """Stands between a client and a listener, and keeps what the client said."""

    def __init__(self, address: str) -> None:
        self.said = bytearray()
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._target = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        one, _ = self._listening.accept()
        other = socket.create_connection(self._target)
        threading.Thread(target=self._copy, args=(other, one, bytearray()), daemon=True).start()
        self._copy(one, other, self.said)

    def _copy(self, source: socket.socket, target: socket.socket, record: bytearray) -> None:
        try:
            while data := source.recv(65536):
                record += data
                target.sendall(data)
        except OSError:
            pass

    def close(self) -> None:
        self._listening.close()


def test_what_was_recorded_cannot_be_played_again(company: Company) -> None:
    coordinator = listener(company)
    recorder = Recorder(coordinator.contact.address)
    worker = Endpoint(To("worker", 0), 1, LIMITS, keys=Keys.make())
    company.members.append(worker)
    coordinator.learn([worker.contact])
    worker.learn([Contact(COORDINATOR, 1, recorder.address, coordinator.contact.key)])
    the_run_goes_on(company, coordinator, worker)
    company.until(lambda: not coordinator.receive(0.1))
    recorded = bytes(recorder.said)
    assert len(recorded) > 400 and b"GSFT" not in recorded, (
        "the whole talk was recorded, and it is not readable"
    )
    before = coordinator.counts.refused.total()
    connection = raw(coordinator.contact.address, recorded)
    company.until(lambda: coordinator.counts.refused.total() > before)
    connection.close()
    assert coordinator.receive(0.1) == []
    the_run_goes_on(company, coordinator, worker)
    recorder.close()


# ---- those who have a key, and lie ----


@contextmanager
def insider(company: Company, listener: Endpoint, keys: Keys, name: bytes) -> Iterator[zmq.Socket[bytes]]:
    with client(
        listener.contact.address,
        name,
        curve_serverkey=listener.contact.key.encode(),
        curve_publickey=keys.public.encode(),
        curve_secretkey=keys.secret,
    ) as dealer:
        yield dealer


def test_a_key_speaks_for_its_own_role_and_number_only(company: Company) -> None:
    shard, honest, keys = listener(company, SHARD), a_worker(company), Keys.make()
    shard.learn([Contact(To("worker", 5), 1, key=keys.public)])
    order = [bytes(f) for f in shard.codec.encode(m.Tell(1, Order(1, Drop(0))))]
    pull = [bytes(f) for f in shard.codec.encode(m.Pull(1, 0, 1, 1, 0, *wanted((np.arange(3),))))]
    with insider(company, shard, keys, b"worker/5/1/0123456789abcdef") as liar:
        liar.send_multipart(order)
        liar.send_multipart(pull)
        company.until(lambda: shard.counts.refused["a message in the name of another process"] == 2)
        liar.send_multipart([b"x" * (LIMITS.text + 1000)])
        liar.send_multipart([b"GSFT"] * 500)
        company.until(
            lambda: (
                shard.counts.refused["too many frames"] and shard.counts.refused["a header of the wrong size"]
            )
        )
        left = shard.listener.handshakes.left
        liar.send(bytes(LIMITS.frame_bytes + 10_000))
        company.until(lambda: shard.listener.handshakes.left > left)
    for name in (b"worker/0/9/0123456789abcdef", b"shard/0/1/0123456789abcdef"):
        before = shard.counts.refused["a name that does not belong to the key"]
        with insider(company, shard, keys, name) as liar:
            liar.send_multipart(pull)
            company.until(lambda b=before: shard.counts.refused["a name that does not belong to the key"] > b)
    with insider(company, shard, keys, b"anybody") as liar:
        liar.send_multipart(pull)
        company.until(lambda: shard.counts.refused["a connection without a name"])
    ask = m.Pull(1, 0, 1, 1, 0, *wanted((np.arange(3),)))
    assert isinstance(company.hear(shard, lambda: honest.send(SHARD, ask)), m.Pull)


def test_a_queue_that_is_full_drops_and_counts(company: Company) -> None:
    shard, worker = listener(company, SHARD), a_worker(company)
    pull = m.Pull(1, 0, 1, 1, 0, *wanted((np.arange(20_000),)))
    company.hear(shard, lambda: worker.send(SHARD, pull))
    for _ in range(2000):
        worker.send(SHARD, pull)
    assert worker.counts.unsent["the queue was full"] > 1000
    worker.send(To("shard", 0), pull)
    assert worker.counts.unsent["no peer yet"] == 1
    company.members.remove(worker)
    worker.close(linger=0.0)
    taken = m.Taken(1, 1, 1)
    company.until(lambda: shard.send(worker.me, taken) or shard.counts.unsent["the peer is gone"])


# ---- addresses and keys ----


@pytest.mark.parametrize(
    ("address", "fix"),
    [
        ("tcp://*:5000", "name the IP address"),
        ("tcp://0.0.0.0:*", "all networks of this host"),
        ("tcp://127.0.0.1:*", "opened with keys only"),
        ("inproc://here", "ipc:// or tcp://"),
        (f"ipc://{tempfile.gettempdir()}/anywhere", "other users can enter"),
        (f"ipc://{tempfile.gettempdir()}/" + "long" * 30, "choose a shorter folder"),
    ],
)
def test_where_nobody_should_listen(address: str, fix: str) -> None:
    with pytest.raises(UserError, match=fix):
        check_bind(address, keys=False)


def test_addresses_that_are_all_right() -> None:
    check_bind("tcp://10.0.0.7:*", keys=True)
    check_bind("tcp://[::1]:*", keys=True)
    check_bind("tcp://127.0.0.1:*", keys=False, open_to_host=True)


def test_a_secret_is_never_shown() -> None:
    keys = Keys.make()
    assert keys.secret.decode() not in repr(keys) and keys.public in repr(keys)


def test_a_register_knows_the_newest_key_of_each() -> None:
    register, who = ContactRegister(), To("shard", 0)
    assert register.learn(Contact(who, 1, key="a")) and not register.learn(Contact(who, 1, key="b"))
    assert register.learn(Contact(who, 2, key="c"))
    assert (register.whose("a"), register.whose("b"), register.whose("c")) == (None, None, who)
    with pytest.raises(ValueError, match="the key of another process"):
        register.learn(Contact(To("worker", 0), 1, key="c"))
