"""The sockets of one process: sends messages to their recipients, and returns the valid messages that arrive.

Coordinator and shards listen (ROUTER); workers connect to both, shards to the coordinator (DEALER); the relay of a
machine listens to its workers, inside the host, and connects to the shards. Inside a host they meet in a folder that
only their user may enter, and share memory for large frames; between hosts, and wherever a port is open, they know each
other by CURVE keys. Queues are bounded: a message that does not fit, or has no route, is dropped and counted, and the
roles resend it. Refusals are counted by reason; a connection that broke because the peer died is counted as broken and
not reported. Used by one thread, except `wake`.

A name on the wire is role/number/boot/random: ZeroMQ ignores a peer whose name it considers connected, so no two
connections share a name. Names cannot be guessed, so a reconnecting peer may safely take over its own name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from math import ceil

import zmq

from gearshift.engine.protocol.messages import Message, To
from gearshift.engine.wire.address import check_bind
from gearshift.engine.wire.codec import Codec
from gearshift.engine.wire.connections import Connections
from gearshift.engine.wire.endpoint_counts import EndpointCounts
from gearshift.engine.wire.frames import Buffer
from gearshift.engine.wire.keys import Contact, ContactRegister, Keys, PeerAuthenticator
from gearshift.engine.wire.limits import Broken, Limits, WireError
from gearshift.engine.wire.listener import Listener
from gearshift.engine.wire.shared_memory import LocalPeers
from gearshift.engine.wire.sockets import Socket, SocketFactory, is_local, send_frames

CONNECTS = {
    "coordinator": (),
    "shard": ("coordinator",),
    "worker": ("coordinator", "shard", "relay"),
    "relay": ("shard",),
}
ROUND = 64  # messages taken from one socket before the others get their turn


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
        """`bind` is the address to listen on; `half` requests bfloat16 rows from peers, and sends such gradients.

        `open_to_host` allows a loopback port without keys, which every user of the host could reach.
        """
        self.me, self.keys, self.half = me, keys, half
        self.codec, self.limits = Codec(me, limits), limits
        self.counts = EndpointCounts(me)
        self._context: zmq.Context[Socket] = zmq.Context()
        self._poller = zmq.Poller()
        self._register = ContactRegister()
        self._local_peers = LocalPeers(me, boot, limits)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._poller.register(self._wake, zmq.POLLIN)
        self._authenticator = PeerAuthenticator(self._context, self._register) if keys else None
        if self._authenticator:
            self._poller.register(self._authenticator.socket, zmq.POLLIN)
        sockets, name = SocketFactory(self._context, keys, limits), f"{me.role}/{me.number}/{boot}"
        knock = self.codec.knock(half=half)
        self.connections = Connections(name, sockets, self._poller, self.counts, knock)
        self.listener: Listener | None = None  # None if it does not listen
        if bind:
            check_bind(bind, keys=keys is not None, open_to_host=open_to_host)
            self._local_peers.meet(bind)
            whose = self._register.whose if keys and not is_local(bind) else None
            router = sockets.router(me, bind)
            self.listener = Listener(router, bind, self._poller, self.counts, limits.shards, whose)
        address = self.listener.address if self.listener else ""
        self.contact = Contact(me, boot, address, keys.public if keys else "")

    def learn(self, contacts: Iterable[Contact]) -> None:
        """Adds contacts of processes that started or restarted; known ones are ignored."""
        for contact in contacts:
            if contact.who != self.me and self._register.learn(contact):
                if bool(contact.key) != bool(self.keys):
                    raise ValueError(f"{contact.who} and {self.me} must both have keys, or neither")
                if contact.who.role in CONNECTS[self.me.role]:
                    self._local_peers.meet(contact.address)
                    self.connections.connect(contact)

    def send(self, to: To, message: Message) -> None:
        if (line := self.connections.get(to)) is not None:
            frames = self.codec.encode(message, half=self.half)
            packed = self._packed(frames, line.contact.address)
            sent = send_frames(line.socket, packed, self.counts.unsent)
        elif self.listener is not None and (route := self.listener.routes.get(to)) is not None:
            frames = self.codec.encode(message, half=route.half)
            packed = [route.name, *self._packed(frames, self.contact.address)]
            sent = send_frames(self.listener.router, packed, self.counts.unsent)
        else:
            self.counts.unsent["no peer yet"] += 1
            return
        if sent:
            self.counts.sent.count(frames)

    def receive(self, seconds: float) -> list[Message]:
        """The messages that have arrived; waits at most this long for the first."""
        messages: list[Message] = []
        for socket, _ in self._poller.poll(ceil(max(0.0, seconds) * 1000)):
            if socket == self._wake:
                os.eventfd_read(self._wake)
            elif self._authenticator and socket is self._authenticator.socket:
                self._authenticator.answer()
            elif socket in self.connections.monitors:
                self.connections.watch(socket)
            elif self.listener is not None and socket is self.listener.monitor:
                self.listener.watch()
            else:
                messages += self._take_from(socket)
        return messages

    def wake(self) -> None:
        """Wakes a thread that waits in `receive`. May be called from any thread."""
        os.eventfd_write(self._wake, 1)

    def close(self, linger: float = 1.0) -> None:
        """Waits at most this long for pending messages to be sent."""
        self.connections.close()
        if self.listener is not None:
            self.listener.router.disable_monitor()
        self._context.destroy(linger=round(linger * 1000))
        os.close(self._wake)
        self._local_peers.close()

    # ---- inside ----

    def _take_from(self, socket: Socket) -> list[Message]:
        messages = []
        for _ in range(ROUND):
            try:
                frames = self._frames(socket)
            except zmq.Again:
                break
            try:
                message = self._decoded(socket, frames)
            except Broken as error:
                self.counts.broken[error.reason] += 1
            except WireError as error:
                self.counts.refused[error.reason] += 1
            else:
                messages += [message] if message is not None else []
        return messages

    def _frames(self, socket: Socket) -> list[zmq.Frame]:
        """The frames of one message. Frames beyond the limit are not kept."""
        frames = [socket.recv(zmq.NOBLOCK, copy=False)]
        while frames[-1].more:
            if len(frames) > self.codec.most_frames + 1:
                frames.pop()
            frames.append(socket.recv(copy=False))
        return frames

    def _decoded(self, socket: Socket, frames: list[zmq.Frame]) -> Message | None:
        if self.listener is None or socket is not self.listener.router:
            contact = self.connections.by_socket(socket).contact
            return self.codec.decode(self._unpacked(frames, contact.who, contact.boot), contact.who)[0]
        name, *body = frames
        who, boot = self.listener.speaker(name.bytes, body)
        message, half = self.codec.decode(self._unpacked(body, who, boot), who)
        self.listener.note_route(who, boot, name.bytes, half=half)
        return message

    def _packed(self, frames: list[Buffer], address: str) -> list[Buffer]:
        """The frames as they are sent to this address."""
        return self._local_peers.share(frames) if address.startswith("ipc://") else frames

    def _unpacked(self, frames: list[zmq.Frame], who: To, boot: int) -> list[Buffer]:
        body = self._local_peers.gather([frame.buffer for frame in frames], who, boot)
        self.counts.received.count(body)
        return body
