"""Every message of the protocol as frames, and back; a message that its sender may not send is refused.

The receiver and number of each kind follow from the unions `ToCoordinator`, `ToWorker`, `ToShard` and `ToRelay`. The
sender follows from the fields: a `relay`, a `worker`, a `shard`, or none (the coordinator). The decoder knows its own
role and, by key or by connection, the sender. It refuses a message for another role, or in the name of another process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

import msgspec

from gearshift.engine.protocol.messages import (
    COORDINATOR,
    Assignment,
    Message,
    To,
    ToCoordinator,
    ToRelay,
    ToShard,
    ToWorker,
)
from gearshift.engine.wire.frames import FORMAT, HALF, HEAD, MAGIC, Buffer, FrameReader, FrameWriter
from gearshift.engine.wire.limits import Limits, WireError
from gearshift.engine.wire.message_layout import MessageLayout

KNOCK = 0  # a message without content: tells the listener that a peer has connected and can be answered
# the number of the first kind of message, by receiver
FIRST = {"coordinator": 1, "worker": 16, "shard": 32, "relay": 48}
ENCODER = msgspec.msgpack.Encoder()


@dataclass(frozen=True)
class MessageKind:
    number: int
    to: str  # the role of the receiver
    layout: MessageLayout
    decoder: msgspec.msgpack.Decoder[Any]


def _kinds() -> list[MessageKind]:
    kinds = []
    for to, union in (
        ("coordinator", ToCoordinator),
        ("worker", ToWorker),
        ("shard", ToShard),
        ("relay", ToRelay),
    ):
        for number, cls in enumerate(get_args(union), FIRST[to]):
            layout = MessageLayout(cls)
            kinds.append(MessageKind(number, to, layout, msgspec.msgpack.Decoder(layout.head)))
    return kinds


KINDS = _kinds()
BY_NUMBER = {kind.number: kind for kind in KINDS}
BY_TYPE = {kind.layout.cls: kind for kind in KINDS}
assert len(BY_NUMBER) == len(KINDS), "two kinds of message have one number"


@cache
def most_frames(limits: Limits) -> int:
    """The largest number of frames that a message can have."""
    return max(1 + kind.layout.frames(limits) for kind in KINDS)


class Codec:
    """The codec of one process, `me`."""

    def __init__(self, me: To, limits: Limits) -> None:
        self.me, self.limits = me, limits
        self.most_frames = most_frames(limits)

    def encode(self, message: Message, *, half: bool = False) -> list[Buffer]:
        """Without copies: the arrays must not change afterwards. Raises if the limits are too narrow for it."""
        kind = BY_TYPE[type(message)]
        prefix = HEAD.pack(MAGIC, FORMAT, kind.number, HALF if half else 0)
        if kind.layout.is_plain and (head := self._plain_head(kind, message)):
            return [prefix + head]
        writer = FrameWriter(self.limits, half=half, shard=getattr(message, "shard", None))
        head = ENCODER.encode(kind.layout.write(message, writer))
        return [prefix + head, *writer.arrays]

    def _plain_head(self, kind: MessageKind, message: Message) -> bytes:
        """Encodes with msgspec alone; empty if that is impossible, or if a text may have to be truncated."""
        try:
            head = ENCODER.encode(msgspec.convert(message, kind.layout.head, from_attributes=True))
        except (msgspec.ValidationError, UnicodeEncodeError):
            return b""
        return head if len(head) <= self.limits.text else b""

    def knock(self, *, half: bool = False) -> list[Buffer]:
        return [HEAD.pack(MAGIC, FORMAT, KNOCK, HALF if half else 0)]

    def decode(self, frames: Sequence[Buffer], speaker: To) -> tuple[Message | None, bool]:
        """The message (None: a knock), and whether its sender requests `half`. Its arrays are views of the frames."""
        number, half, head = self._opened(frames)
        if number == KNOCK:
            if head or len(frames) > 1:
                raise WireError("more data than the message has")
            return None, half
        kind = BY_NUMBER.get(number)
        if kind is None:
            raise WireError("an unknown kind of message")
        if kind.to != self.me.role:
            raise WireError("a message for another role")
        message = self._message(kind, head, frames[1:], half)
        if said_by(message) != speaker:
            raise WireError("a message in the name of another process")
        return message, half

    def _opened(self, frames: Sequence[Buffer]) -> tuple[int, bool, bytes]:
        """The kind, whether `half` is requested, and the rest of the header. Checks sizes before copying."""
        if not 0 < len(frames) <= self.most_frames:
            raise WireError("too many frames" if frames else "no frames")
        head = memoryview(frames[0])
        if not HEAD.size <= len(head) <= self.limits.head_bytes:
            raise WireError("a header of the wrong size")
        magic, form, number, flags = HEAD.unpack_from(head)
        if magic != MAGIC or form != FORMAT:
            raise WireError(
                "not a message of this protocol" if magic != MAGIC else "another version of the protocol"
            )
        if flags & ~HALF:
            raise WireError("a flag that the message does not have")
        return number, bool(flags), bytes(head[HEAD.size :])

    def _message(self, kind: MessageKind, head: bytes, arrays: Sequence[Buffer], half: bool) -> Message:
        fields = _parsed(kind, head)
        try:
            if kind.layout.is_plain and len(head) <= self.limits.text and not arrays:
                message: Message = msgspec.convert(fields, kind.layout.cls, from_attributes=True)
            else:
                message = self._with_arrays(kind, fields, arrays, half)
        except WireError:
            raise
        except ValueError as error:  # raised by a message with inconsistent fields
            raise WireError(str(error)) from None
        if isinstance(message, Assignment) and message.begin.worker != self.me.number:
            raise WireError("a message for another worker")
        return message

    def _with_arrays(self, kind: MessageKind, fields: Any, arrays: Sequence[Buffer], half: bool) -> Message:
        shard = getattr(fields, "shard", self.me.number)
        if hasattr(fields, "shard") and shard >= self.limits.shards:
            raise WireError("an unknown shard")
        reader = FrameReader(arrays, self.limits, half=half, shard=shard)
        message: Message = kind.layout.read(fields, reader)
        reader.end()
        return message


def _parsed(kind: MessageKind, head: bytes) -> Any:
    """MessagePack can encode a number in several ways; only ours is accepted, so each message has one encoding."""
    try:
        fields = kind.decoder.decode(head)
    except msgspec.ValidationError:
        raise WireError("a field out of range") from None
    except UnicodeDecodeError:
        raise WireError("an invalid text") from None
    except msgspec.DecodeError:
        raise WireError("an unreadable header") from None
    if ENCODER.encode(fields) != head:
        raise WireError("a header in another encoding")
    return fields


def said_by(message: Message) -> To:
    """The sender of a message, according to its fields."""
    if hasattr(message, "relay"):
        return To("relay", message.relay)
    if hasattr(message, "worker"):
        return To("worker", message.worker)
    if hasattr(message, "shard"):
        return To("shard", message.shard)
    return COORDINATOR
