"""The listening socket of an endpoint: the peers that connected, the routes to answer them, and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import recv_monitor_message

from gearshift.engine.protocol.messages import To
from gearshift.engine.wire.endpoint_counts import EndpointCounts
from gearshift.engine.wire.limits import WireError
from gearshift.engine.wire.refused_connections import BROKE_OFF, FAILURES, HandshakeMonitor
from gearshift.engine.wire.sockets import Socket, monitor_of

NAME = re.compile(rb"(worker|shard|relay)/([0-9]{1,9})/([0-9]{1,19})/[0-9a-f]{16}")


@dataclass
class Route:
    """The route by which a connected peer is answered."""

    boot: int
    name: bytes
    half: bool


class Listener:
    def __init__(
        self,
        router: Socket,
        address: str,
        poller: zmq.Poller,
        counts: EndpointCounts,
        shards: int,
        key_owner: Callable[[str], To | None] | None,
    ) -> None:
        """`key_owner` returns the owner of a public key; None: there are no keys."""
        self.router, self._counts, self._shards, self._key_owner = router, counts, shards, key_owner
        self._only_ours = address.startswith("ipc://")  # a file that only our user can reach
        self.handshakes = HandshakeMonitor(counts.broken if self._only_ours else counts.refused)
        self.routes: dict[To, Route] = {}
        self.monitor = monitor_of(router, poller)
        router.bind(address)
        poller.register(router, zmq.POLLIN)
        self.address = router.getsockopt_string(zmq.LAST_ENDPOINT)

    def watch(self) -> None:
        """Handles an event of the socket's monitor."""
        message = recv_monitor_message(self.monitor)
        event = zmq.Event(message["event"])
        if event in FAILURES:  # a broken handshake can come from a stranger only where strangers can connect
            self._counts.count_failure(event, died=event == BROKE_OFF and self._only_ours)
        self.handshakes.saw(event, int(message["value"]))

    def speaker(self, name: bytes, body: list[zmq.Frame]) -> tuple[To, int]:
        """The sender with this name, and the boot of its process."""
        match = NAME.fullmatch(name)
        if not match or not body:
            raise WireError("a connection without a name")
        who = To(match[1].decode(), int(match[2]))
        if who.role == "shard" and who.number >= self._shards:
            raise WireError("an unknown shard")
        if self._key_owner is not None and self._key_owner(str(body[0].get("User-Id"))) != who:
            raise WireError("a name that does not belong to the key")
        return who, int(match[3])

    def note_route(self, who: To, boot: int, name: bytes, *, half: bool) -> None:
        known = self.routes.get(who)
        if known is None or boot >= known.boot:
            self.routes[who] = Route(boot, name, half)
