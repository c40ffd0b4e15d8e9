"""What an endpoint has sent, received, refused and dropped since its start, and the messages about refusals."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

import zmq

from gearshift.engine.protocol.messages import To
from gearshift.engine.wire.frames import Buffer
from gearshift.engine.wire.refused_connections import FAILURES

NEWS_SECONDS = 60.0  # minimum time between two messages about the same reason


@dataclass
class Traffic:
    """Complete messages, with the bytes of their frames, including those sent through shared memory."""

    messages: int = 0
    bytes: int = 0

    def count(self, frames: list[Buffer]) -> None:
        self.messages += 1
        self.bytes += sum(memoryview(frame).nbytes for frame in frames)


class EndpointCounts:
    def __init__(self, me: To) -> None:
        self._me = me
        self.refused: Counter[str] = Counter()  # by reason
        self.broken: Counter[str] = Counter()  # by reason: failures because a process of ours died
        self.unsent: Counter[str] = Counter()
        self.sent, self.received = Traffic(), Traffic()
        self._reported: Counter[str] = Counter()
        self._reported_at: dict[str, float] = {}

    def count_failure(self, event: zmq.Event, *, died: bool) -> None:
        """Counts a failed handshake. `died`: the peer was one of our processes that died, not a stranger."""
        (self.broken if died else self.refused)[FAILURES[event]] += 1

    def figures(self) -> dict[str, float]:
        """Metrics since the start. May be called from any thread."""
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
        """Messages about refusals since the last call; at most one a minute for each reason."""
        now, fresh = time.monotonic(), Counter[str]()
        for reason, count in (self.refused - self._reported).items():
            if now - self._reported_at.get(reason, -NEWS_SECONDS) >= NEWS_SECONDS:
                fresh[reason], self._reported_at[reason] = count, now
        self._reported += fresh
        role = self._me.role if self._me.role == "coordinator" else f"{self._me.role} {self._me.number}"
        return [f"{role} refused {reason} ({count} times)" for reason, count in fresh.items()]
