"""Every message of `roles.messages` as frames, and back; a message that its sender may not send is refused.

A gradient travels to a shard without its probabilities, which the coordinator gets in the report. Whoever decodes
knows who it is and, by key or by connection, who speaks: a message for another role, or in another's name, is none.
"""

from __future__ import annotations

from collections.abc import Sequence

from gearshift.engine.protocol import messages as m
from gearshift.engine.protocol.messages import COORDINATOR, Message, To
from gearshift.engine.protocol.replica_messages import Met, Offer, Target
from gearshift.engine.wire.frames import HALF, Buffer, FrameReader, FrameWriter
from gearshift.engine.wire.limits import Limits, WireError
from gearshift.engine.wire.message_types import KINDS
from gearshift.engine.wire.replica_message_types import REPLICA_KINDS

KNOCK = 0  # the kind of what has no content: one that connected is there, and can be spoken to
BY_NUMBER = {kind.number: kind for kind in (*KINDS, *REPLICA_KINDS)}
BY_TYPE = {kind.type: kind for kind in BY_NUMBER.values()}


class Codec:
    """Of one process: `me` is who reads."""

    def __init__(self, me: To, limits: Limits) -> None:
        self.me, self.limits = me, limits

    def encode(self, message: Message, *, half: bool = False) -> list[Buffer]:
        """Without copies: the arrays must not change afterwards. Raises if the limits are too narrow for it."""
        kind = BY_TYPE[type(message)]
        incarnation = getattr(message, "incarnation", 0)
        writer = FrameWriter(kind.number, incarnation, self.limits, HALF if half else 0)
        kind.write(writer, message)
        return writer.frames()

    def knock(self, *, half: bool = False) -> list[Buffer]:
        return FrameWriter(KNOCK, 0, self.limits, HALF if half else 0).frames()

    def decode(self, frames: Sequence[Buffer], speaker: To) -> tuple[Message | None, bool]:
        """The message (None: a knock), and whether its sender wants `half`. Its arrays lie in the frames."""
        reader = FrameReader(frames, self.limits)
        if reader.kind == KNOCK:
            if reader.flags & ~HALF or reader.incarnation:
                raise WireError("a flag that the message does not have")
            reader.end()
            return None, reader.half
        kind = BY_NUMBER.get(reader.kind)
        if kind is None:
            raise WireError("a kind of message that there is not")
        if kind.to != self.me.role:
            raise WireError("a message for another role")
        if reader.flags & ~(HALF | kind.flags):
            raise WireError("a flag that the message does not have")
        message = kind.read(reader, self.me)
        reader.end()
        if said_by(message) != speaker:
            raise WireError("a message in the name of another")
        return message, reader.half


def said_by(message: Message) -> To:
    """Whose message it is, by what it says."""
    match message:
        case m.Hello() | m.Report() | m.Alive() | m.Pull() | m.Give() | Met() | Offer():
            return To("worker", message.worker)
        case m.ShardHello() | m.Loaded() | m.Done() | m.Saved() | m.Seen() | m.Rows() | m.Taken() | Target():
            return To("shard", message.shard)
        case _:
            return COORDINATOR
