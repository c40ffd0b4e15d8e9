"""Who came to a socket that listens, and did not get in: what libzmq tells of connections, counted by reason.

Where strangers can come (a port), each of these is one, until it has shown a key. Where they cannot (a folder that only
this user may enter, or a connection that we opened ourselves), a handshake that breaks off is a process that died.
"""

from __future__ import annotations

from collections import Counter

import zmq

BROKE_OFF = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
FAILURES = {
    BROKE_OFF: "a handshake that broke off",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "a handshake without the right keys",
    zmq.Event.HANDSHAKE_FAILED_AUTH: "a handshake with an unknown key",
}
WATCHED = zmq.Event.ACCEPTED | zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED
for _failure in FAILURES:
    WATCHED |= _failure


class HandshakeMonitor:
    """libzmq is silent about those who do not even begin a handshake: they come and are gone.

    Nor does it say whose handshake succeeded: the newest is taken, and if it was another's, that one is counted when
    it leaves.
    """

    def __init__(self, refused: Counter[str]) -> None:
        self.left = 0  # connections that ended, also those that libzmq cut for a frame too large
        self._refused = refused
        self._outside: dict[int, None] = {}  # have not shaken hands

    def saw(self, event: zmq.Event, connection: int) -> None:
        if event == zmq.Event.ACCEPTED:
            self._outside[connection] = None
        elif event == zmq.Event.DISCONNECTED:
            self.left += 1
            if self._outside.pop(connection, 0) is None:
                self._refused["a connection without a handshake"] += 1
        elif self._outside:
            self._outside.popitem()
