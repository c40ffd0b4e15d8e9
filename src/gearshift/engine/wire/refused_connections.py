"""Refused connections to a listening socket, as reported by libzmq, counted by reason.

Where strangers can connect (a port), each connection counts as a stranger until it has shown a key. Where they cannot
(a folder that only this user may enter, or a connection that we opened), a broken handshake means that a process died.
"""

from __future__ import annotations

from collections import Counter

import zmq

BROKE_OFF = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
FAILURES = {
    BROKE_OFF: "an interrupted handshake",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "a handshake without the right keys",
    zmq.Event.HANDSHAKE_FAILED_AUTH: "a handshake with an unknown key",
}
WATCHED = zmq.Event.ACCEPTED | zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED
for _failure in FAILURES:
    WATCHED |= _failure


class HandshakeMonitor:
    """Counts connections that end without a handshake, which libzmq does not report.

    libzmq does not report which handshake succeeded: the newest connection is assumed. If it was another one, that one
    is counted when it closes.
    """

    def __init__(self, refused: Counter[str]) -> None:
        self.left = 0  # connections that ended, including those that libzmq closed for too large a frame
        self._refused = refused
        self._outside: dict[int, None] = {}  # connections without a handshake so far

    def saw(self, event: zmq.Event, connection: int) -> None:
        if event == zmq.Event.ACCEPTED:
            self._outside[connection] = None
        elif event == zmq.Event.DISCONNECTED:
            self.left += 1
            if self._outside.pop(connection, 0) is None:
                self._refused["a connection without a handshake"] += 1
        elif self._outside:
            self._outside.popitem()
