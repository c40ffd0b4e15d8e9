"""Creates the ZeroMQ sockets of an endpoint: their options, queue lengths and keys."""

from __future__ import annotations

from collections import Counter

import zmq

from gearshift.engine.protocol.messages import To
from gearshift.engine.wire.frames import Buffer
from gearshift.engine.wire.keys import Contact, Keys
from gearshift.engine.wire.limits import Limits
from gearshift.engine.wire.refused_connections import WATCHED

SMALL, BULK = 1000, 16  # messages that may wait at a connection: with the coordinator, with a shard
ROOM = 256  # bytes that CURVE adds to a frame
OPTIONS = {  # in milliseconds
    zmq.LINGER: 1000,
    zmq.HANDSHAKE_IVL: 10_000,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 2000,
    zmq.HEARTBEAT_IVL: 2000,
    zmq.HEARTBEAT_TIMEOUT: 10_000,
    zmq.HEARTBEAT_TTL: 10_000,
}
Socket = zmq.Socket[bytes]


class SocketFactory:
    def __init__(self, context: zmq.Context[Socket], keys: Keys | None, limits: Limits) -> None:
        self._context, self._keys, self._limits = context, keys, limits

    def router(self, me: To, address: str) -> Socket:
        """To listen at this address."""
        secure = self._keys is not None and not is_local(address)
        router = self._socket(zmq.ROUTER, me, secure=secure)
        router.setsockopt(zmq.IPV6, "[" in address)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # raises if there is no route
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        if secure:
            router.setsockopt(zmq.CURVE_SERVER, 1)
            router.setsockopt(zmq.ZAP_DOMAIN, b"gearshift")
        return router

    def dealer(self, contact: Contact, name: str) -> Socket:
        """To connect to this contact, under this name."""
        secure = self._keys is not None and not is_local(contact.address)
        dealer = self._socket(zmq.DEALER, contact.who, secure=secure)
        dealer.setsockopt(zmq.IPV6, "[" in contact.address)
        dealer.setsockopt(zmq.ROUTING_ID, name.encode())
        dealer.setsockopt(zmq.IMMEDIATE, 1)  # no queueing for a peer that is not connected
        if secure:
            dealer.setsockopt_string(zmq.CURVE_SERVERKEY, contact.key)
        return dealer

    def _socket(self, kind: int, listener: To, *, secure: bool) -> Socket:
        socket: Socket = self._context.socket(kind)
        if secure and self._keys:
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
        for option, value in OPTIONS.items():
            socket.setsockopt(option, value)
        queue = SMALL if listener.role == "coordinator" else BULK
        socket.setsockopt(zmq.SNDHWM, queue)
        socket.setsockopt(zmq.RCVHWM, queue)
        socket.setsockopt(zmq.MAXMSGSIZE, self._limits.frame_bytes + ROOM)
        return socket


def is_local(address: str) -> bool:
    """Whether only processes of our user on this host can reach it; there are no keys then."""
    return address.startswith("ipc://")


def monitor_of(socket: Socket, poller: zmq.Poller) -> Socket:
    """A monitor socket that reports events of this socket's connections."""
    monitor = socket.get_monitor_socket(WATCHED)
    poller.register(monitor, zmq.POLLIN)
    return monitor


def send_frames(socket: Socket, frames: list[Buffer], unsent: Counter[str]) -> bool:
    """Returns whether the frames were queued; if not, the reason is counted."""
    try:
        socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        return True
    except zmq.Again:
        unsent["the queue was full"] += 1
    except zmq.ZMQError as error:
        if error.errno != zmq.EHOSTUNREACH:
            raise
        unsent["the peer is gone"] += 1
    return False
