"""The connections of an endpoint to listening peers: opened, watched, and reopened after a refusal."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

import zmq
from zmq.utils.monitor import recv_monitor_message

from gearshift.engine.protocol.messages import To
from gearshift.engine.wire.endpoint_counts import EndpointCounts
from gearshift.engine.wire.frames import Buffer
from gearshift.engine.wire.keys import Contact
from gearshift.engine.wire.refused_connections import BROKE_OFF, FAILURES
from gearshift.engine.wire.sockets import Socket, SocketFactory, monitor_of, send_frames


@dataclass
class PeerConnection:
    """A connection to a listening peer."""

    contact: Contact
    socket: Socket
    monitor: Socket
    down_since: float | None = field(default_factory=time.monotonic)  # None: it is connected
    refused: bool = False  # libzmq does not retry after a failed handshake
    knocked: bool = False  # a first message was sent: the peer can answer only after it has received one


class Connections:
    def __init__(
        self,
        name: str,
        sockets: SocketFactory,
        poller: zmq.Poller,
        counts: EndpointCounts,
        knock: list[Buffer],
    ) -> None:
        """`name` is role/number/boot; each connection adds a random part. `knock` is sent first."""
        self._name, self._sockets, self._poller = name, sockets, poller
        self._counts, self._knock_frames = counts, knock
        self._lines: dict[To, PeerConnection] = {}
        self.monitors: dict[Socket, PeerConnection] = {}

    def get(self, who: To) -> PeerConnection | None:
        return self._lines.get(who)

    def by_socket(self, socket: Socket) -> PeerConnection:
        return next(line for line in self._lines.values() if line.socket is socket)

    def connect(self, contact: Contact) -> None:
        if (old := self._lines.get(contact.who)) is not None:
            self._disconnect(old)
        dealer = self._sockets.dealer(contact, f"{self._name}/{secrets.token_hex(8)}")
        monitor = monitor_of(dealer, self._poller)
        self._lines[contact.who] = self.monitors[monitor] = PeerConnection(contact, dealer, monitor)
        dealer.connect(contact.address)
        self._poller.register(dealer, zmq.POLLIN)

    def mend(self) -> None:
        """Reopens connections that were rejected because the peer did not know our key yet."""
        for line in list(self._lines.values()):
            if line.refused:
                self.connect(line.contact)
            elif line.down_since is None and not line.knocked:
                self._knock(line)

    def cut_off(self, who: To) -> float:
        """The seconds since there was last a connection to this peer."""
        line = self._lines.get(who)
        return 0.0 if line is None or line.down_since is None else time.monotonic() - line.down_since

    def watch(self, monitor: Socket) -> None:
        """Handles an event of a connection's monitor."""
        line, event = self.monitors[monitor], zmq.Event(recv_monitor_message(monitor)["event"])
        if event in FAILURES:
            self._counts.count_failure(event, died=event == BROKE_OFF)
        if event == zmq.Event.HANDSHAKE_SUCCEEDED:
            line.down_since = None
            self._knock(line)
        else:
            line.refused |= event in FAILURES
            line.down_since = line.down_since or time.monotonic()

    def close(self) -> None:
        for line in list(self._lines.values()):
            self._disconnect(line)

    def _knock(self, line: PeerConnection) -> None:
        line.knocked = send_frames(line.socket, self._knock_frames, self._counts.unsent)

    def _disconnect(self, line: PeerConnection) -> None:
        self._poller.unregister(line.socket)
        self._poller.unregister(line.monitor)
        del self.monitors[line.monitor], self._lines[line.contact.who]
        line.socket.disable_monitor()
        line.socket.close(linger=1000)
