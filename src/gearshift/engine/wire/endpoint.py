"""The sockets of one process: it sends messages to whom they are for, and gives out those that came and hold.

Coordinator and shards listen (ROUTER); workers connect to both, shards to the coordinator (DEALER). Inside a host they
meet in a folder that only their user may enter, and share memory for large frames; between hosts, and wherever a port
is open, they know each other by CURVE keys. Queues are bounded: what does not fit, or has no way to go, is dropped
and counted, and the roles say it again. What is refused is counted by its reason; a connection that broke because the
process at its other end died is counted as broken, and is no news. Of one thread, but for `wake`.

A name on the wire is role/number/boot/chance: ZeroMQ ignores whoever comes under a name that it believes connected, so
no two connections share one; and nobody can guess another's, so a connection that comes back may take over its own.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from gearshift.engine.protocol.messages import Message, To
from gearshift.engine.wire.address import check_bind
from gearshift.engine.wire.codec import Codec
from gearshift.engine.wire.frames import Buffer
from gearshift.engine.wire.keys import Contact, ContactRegister, Keys, PeerAuthenticator
from gearshift.engine.wire.limits import Broken, Limits, WireError
from gearshift.engine.wire.refused_connections import BROKE_OFF, FAILURES, WATCHED, HandshakeMonitor
from gearshift.engine.wire.shared_memory import LocalPeers

CONNECTS = {"coordinator": (), "shard": ("coordinator",), "worker": ("coordinator", "shard")}
NAME = re.compile(rb"(worker|shard)/([0-9]{1,9})/([0-9]{1,19})/[0-9a-f]{16}")
SMALL, BULK = 1000, 16  # messages that may wait at a connection: with the coordinator, with a shard
ROOM = 256  # for what CURVE adds to a frame
OPTIONS = {  # in milliseconds
    zmq.LINGER: 1000,
    zmq.HANDSHAKE_IVL: 10_000,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 2000,
    zmq.HEARTBEAT_IVL: 2000,
    zmq.HEARTBEAT_TIMEOUT: 10_000,
    zmq.HEARTBEAT_TTL: 10_000,
}
TELL_SECONDS = 60.0  # between two sentences about the same
ROUND = 64  # messages that are taken from one socket before the others have their turn
Socket = zmq.Socket[bytes]


@dataclass
class PeerConnection:
    """A connection to one that listens."""

    contact: Contact
    socket: Socket
    monitor: Socket
    down_since: float | None = field(default_factory=time.monotonic)  # None: it is up
    refused: bool = False  # libzmq does not try again after that
    knocked: bool = False  # the other can answer only those it has heard of


@dataclass
class Traffic:
    """Whole messages, with the bytes of their frames, also of those that went through shared memory."""

    messages: int = 0
    bytes: int = 0

    def count(self, frames: list[Buffer]) -> None:
        self.messages += 1
        self.bytes += sum(memoryview(frame).nbytes for frame in frames)


@dataclass
class Route:
    """How one that connected is answered."""

    boot: int
    name: bytes
    half: bool


class Endpoint:
    def __init__(
        self,
        me: To,
        boot: int,
        limits: Limits,
        *,
        bind: str = "",
        keys: Keys | None = None,
        half: bool = False,
        open_to_host: bool = False,
    ) -> None:
        """`bind` is where it listens; `half` asks those it connects to for bfloat16 rows, and sends such gradients.

        `open_to_host` allows a loopback port without keys, which every user of the host could reach.
        """
        self.me, self.boot, self.keys, self.half = me, boot, keys, half
        self.codec, self.limits = Codec(me, limits), limits
        self.refused: Counter[str] = Counter()  # by reason
        self.broken: Counter[str] = Counter()  # the same: a process of ours that died
        self.unsent: Counter[str] = Counter()
        self.sent, self.received = Traffic(), Traffic()
        self._only_ours = bind.startswith("ipc://")  # a file that nobody but our user can reach
        self.handshakes = HandshakeMonitor(self.broken if self._only_ours else self.refused)
        self._told: Counter[str] = Counter()
        self._told_at: dict[str, float] = {}
        self._context: zmq.Context[Socket] = zmq.Context()
        self._poller = zmq.Poller()
        self._register = ContactRegister()
        self._lines: dict[To, PeerConnection] = {}
        self._routes: dict[To, Route] = {}
        self._monitors: dict[Any, PeerConnection | None] = {}  # None: of the socket that listens
        self._local_peers = LocalPeers(me, boot, limits)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._poller.register(self._wake, zmq.POLLIN)
        self._authenticator = PeerAuthenticator(self._context, self._register) if keys else None
        if self._authenticator:
            self._poller.register(self._authenticator.socket, zmq.POLLIN)
        self._router = self._listen(bind, open_to_host) if bind else None
        address = self._router.getsockopt_string(zmq.LAST_ENDPOINT) if self._router else ""
        self.contact = Contact(me, boot, address, keys.public if keys else "")

    # ---- the others ----

    def learn(self, contacts: Iterable[Contact]) -> None:
        """These are there, or started anew; who is known already is no news."""
        for contact in contacts:
            if contact.who != self.me and self._register.learn(contact):
                if bool(contact.key) != bool(self.keys):
                    raise ValueError(f"{contact.who} and {self.me} must both have keys, or neither")
                if contact.who.role in CONNECTS[self.me.role]:
                    self._connect(contact)

    def mend(self) -> None:
        """Connections that were refused (this key was not known there yet) are tried again."""
        for line in list(self._lines.values()):
            if line.refused:
                self._connect(line.contact)
            elif line.down_since is None and not line.knocked:
                self._knock(line)

    def cut_off(self, who: To) -> float:
        """For how many seconds there has been no connection to this one."""
        line = self._lines.get(who)
        return 0.0 if line is None or line.down_since is None else time.monotonic() - line.down_since

    # ---- messages ----

    def send(self, to: To, message: Message) -> None:
        if (line := self._lines.get(to)) is not None:
            frames = self.codec.encode(message, half=self.half)
            gone = self._send(line.socket, self._packed(frames, line.contact.address))
        elif self._router is not None and (route := self._routes.get(to)) is not None:
            frames = self.codec.encode(message, half=route.half)
            gone = self._send(self._router, [route.name, *self._packed(frames, self.contact.address)])
        else:
            self.unsent["nobody there yet"] += 1
            return
        if gone:
            self.sent.count(frames)

    def receive(self, seconds: float) -> list[Message]:
        """What has come; waits this long for something."""
        found: list[Message] = []
        for socket, _ in self._poller.poll(ceil(max(0.0, seconds) * 1000)):
            if socket == self._wake:
                os.eventfd_read(self._wake)
            elif self._authenticator and socket is self._authenticator.socket:
                self._authenticator.answer()
            elif socket in self._monitors:
                self._watch(socket)
            else:
                found += self._take_from(socket)
        return found

    def wake(self) -> None:
        """From any thread: whoever waits in `receive` waits no longer."""
        os.eventfd_write(self._wake, 1)

    def figures(self) -> dict[str, float]:
        """Since its start. From any thread."""
        return {
            "sent_messages": self.sent.messages,
            "sent_bytes": self.sent.bytes,
            "received_messages": self.received.messages,
            "received_bytes": self.received.bytes,
            "refused": sum(dict(self.refused).values()),
            "broken": sum(dict(self.broken).values()),
            "unsent": sum(dict(self.unsent).values()),
        }

    def news(self) -> list[str]:
        """What was refused since it was told last, in sentences; of one reason not more than one a minute."""
        now, fresh = time.monotonic(), Counter[str]()
        for reason, count in (self.refused - self._told).items():
            if now - self._told_at.get(reason, -TELL_SECONDS) >= TELL_SECONDS:
                fresh[reason], self._told_at[reason] = count, now
        self._told += fresh
        role = self.me.role if self.me.role == "coordinator" else f"{self.me.role} {self.me.number}"
        return [f"{role} refused {reason} ({count} times)" for reason, count in fresh.items()]

    def close(self, linger: float = 1.0) -> None:
        """Waits this long at most for what is still to be sent."""
        for line in list(self._lines.values()):
            self._disconnect(line)
        if self._router is not None:
            self._router.disable_monitor()
        self._context.destroy(linger=round(linger * 1000))
        os.close(self._wake)
        self._local_peers.close()

    # ---- inside ----

    def _take_from(self, socket: Socket) -> list[Message]:
        found = []
        for _ in range(ROUND):
            try:
                frames = self._frames(socket)
            except zmq.Again:
                break
            try:
                message = self._heard(socket, frames)
            except Broken as error:
                self.broken[error.reason] += 1
            except WireError as error:
                self.refused[error.reason] += 1
            else:
                found += [message] if message is not None else []
        return found

    def _frames(self, socket: Socket) -> list[zmq.Frame]:
        """Of one message. Beyond the most that any has, none is kept."""
        frames = [socket.recv(zmq.NOBLOCK, copy=False)]
        while frames[-1].more:
            if len(frames) > self.limits.frames + 1:
                frames.pop()
            frames.append(socket.recv(copy=False))
        return frames

    def _heard(self, socket: Socket, frames: list[zmq.Frame]) -> Message | None:
        if socket is not self._router:
            line = next(line for line in self._lines.values() if line.socket is socket)
            who, boot = line.contact.who, line.contact.boot
            return self.codec.decode(self._unpacked(frames, who, boot), who)[0]
        name, *body = frames
        who, boot = self._speaker(name.bytes, body)
        message, half = self.codec.decode(self._unpacked(body, who, boot), who)
        known = self._routes.get(who)
        if known is None or boot >= known.boot:
            self._routes[who] = Route(boot, name.bytes, half)
        return message

    def _packed(self, frames: list[Buffer], address: str) -> list[Buffer]:
        """As they travel to this address, or back from it."""
        return self._local_peers.share(frames) if address.startswith("ipc://") else frames

    def _unpacked(self, frames: list[zmq.Frame], who: To, boot: int) -> list[Buffer]:
        found = self._local_peers.gather([frame.buffer for frame in frames], who, boot)
        self.received.count(found)
        return found

    def _speaker(self, name: bytes, body: list[zmq.Frame]) -> tuple[To, int]:
        found = NAME.fullmatch(name)
        if not found or not body:
            raise WireError("a connection without a name")
        who = To(found[1].decode(), int(found[2]))
        if who.role == "shard" and who.number >= self.limits.shards:
            raise WireError("a shard that there is not")
        if self.keys and self._register.whose(str(body[0].get("User-Id"))) != who:
            raise WireError("a name that does not belong to the key")
        return who, int(found[3])

    def _knock(self, line: PeerConnection) -> None:
        line.knocked = self._send(line.socket, self.codec.knock(half=self.half))

    def _send(self, socket: Socket, frames: list[Buffer]) -> bool:
        try:
            socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
            return True
        except zmq.Again:
            self.unsent["the queue was full"] += 1
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self.unsent["the other is gone"] += 1
        return False

    def _watch(self, monitor: Socket) -> None:
        line, said = self._monitors[monitor], recv_monitor_message(monitor)
        event = zmq.Event(said["event"])
        if event in FAILURES:
            self._count_failure(event, line)
        if line is None:
            self.handshakes.saw(event, int(said["value"]))
        elif event == zmq.Event.HANDSHAKE_SUCCEEDED:
            line.down_since = None
            self._knock(line)
        else:
            line.refused |= event in FAILURES
            line.down_since = line.down_since or time.monotonic()

    def _count_failure(self, event: zmq.Event, line: PeerConnection | None) -> None:
        """Of a handshake. One that breaks off is a stranger only where strangers can come."""
        died = event == BROKE_OFF and (line is not None or self._only_ours)
        (self.broken if died else self.refused)[FAILURES[event]] += 1

    def _listen(self, address: str, open_to_host: bool) -> Socket:
        check_bind(address, keys=self.keys is not None, open_to_host=open_to_host)
        router = self._socket(zmq.ROUTER, SMALL if self.me.role == "coordinator" else BULK)
        router.setsockopt(zmq.IPV6, "[" in address)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # says when there is no way
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        if self.keys:
            router.setsockopt(zmq.CURVE_SERVER, 1)
            router.setsockopt(zmq.ZAP_DOMAIN, b"gearshift")
        self._local_peers.meet(address)
        self._monitors[self._monitor(router)] = None
        router.bind(address)
        self._poller.register(router, zmq.POLLIN)
        return router

    def _connect(self, contact: Contact) -> None:
        if (old := self._lines.get(contact.who)) is not None:
            self._disconnect(old)
        self._local_peers.meet(contact.address)
        dealer = self._socket(zmq.DEALER, SMALL if contact.who.role == "coordinator" else BULK)
        name = f"{self.me.role}/{self.me.number}/{self.boot}/{secrets.token_hex(8)}"
        dealer.setsockopt(zmq.IPV6, "[" in contact.address)
        dealer.setsockopt(zmq.ROUTING_ID, name.encode())
        dealer.setsockopt(zmq.IMMEDIATE, 1)  # nothing waits for one that is not there
        if self.keys:
            dealer.setsockopt_string(zmq.CURVE_SERVERKEY, contact.key)
        monitor = self._monitor(dealer)
        self._lines[contact.who] = self._monitors[monitor] = PeerConnection(contact, dealer, monitor)
        dealer.connect(contact.address)
        self._poller.register(dealer, zmq.POLLIN)

    def _disconnect(self, line: PeerConnection) -> None:
        self._poller.unregister(line.socket)
        self._poller.unregister(line.monitor)
        del self._monitors[line.monitor], self._lines[line.contact.who]
        line.socket.disable_monitor()
        line.socket.close(linger=1000)

    def _monitor(self, socket: Socket) -> Socket:
        monitor = socket.get_monitor_socket(WATCHED)
        self._poller.register(monitor, zmq.POLLIN)
        return monitor

    def _socket(self, kind: int, queue: int) -> Socket:
        socket: Socket = self._context.socket(kind)
        if self.keys:
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self.keys.public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, self.keys.secret)
        for option, value in OPTIONS.items():
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.SNDHWM, queue)
        socket.setsockopt(zmq.RCVHWM, queue)
        socket.setsockopt(zmq.MAXMSGSIZE, self.limits.frame_bytes + ROOM)
        return socket
