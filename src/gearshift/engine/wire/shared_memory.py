"""Large frames inside a host: the sender copies them into memory that it shares, the receiver copies them out.

Each process has a ring buffer, a file next to the sockets that only its user can open; the message contains the
position of its large frames in the buffer. No process waits for another: a buffer holds the newest bytes, and the
number at its start is the total number of bytes written. This number tells a slow receiver that its frames were
overwritten; the message then counts as lost.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gearshift.engine.protocol.messages import To
from gearshift.engine.wire.codec import most_frames
from gearshift.engine.wire.frames import Buffer
from gearshift.engine.wire.limits import Broken, Limits, WireError

MAGIC = b"GSSM"
LARGE = 32 * 1024  # minimum frame size for which shared memory is worthwhile
START = 64  # where the ring buffer begins in its file; the number is before it
MESSAGES = 6  # number of messages that fit into a ring buffer


def ring_size(limits: Limits) -> int:
    rows = sum(limits.ids * (8 + 4 * width + 4 + 2) for width in limits.widths)
    dense = 4 * max(limits.dense) * (2 if limits.spread else 1)
    return MESSAGES * max(rows + dense, limits.frame_bytes)


class RingBuffer:
    def __init__(self, file: Path, size: int) -> None:
        self.file = file
        handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.ftruncate(handle, START + size)
            self._memory = np.frombuffer(mmap.mmap(handle, START + size), np.uint8)
        finally:
            os.close(handle)
        self._written = self._memory[:8].view(np.uint64)  # total bytes written so far
        self._ring = self._memory[START:]

    def share(self, frames: Sequence[Buffer]) -> list[Buffer]:
        """The message with its large frames in the ring buffer."""
        large = [(i, frame) for i, frame in enumerate(frames) if len(frame) >= LARGE]
        if not large or 2 * sum(len(frame) for _, frame in large) > len(self._ring):
            return list(frames)
        places = [number for i, frame in large for number in (i, self._put(frame), len(frame))]
        where = MAGIC + struct.pack(f"<{len(places)}Q", *places)
        return [where, *(frame for frame in frames if len(frame) < LARGE)]

    def _put(self, frame: Buffer) -> int:
        size, at = len(self._ring), int(self._written[0])
        if at % size + len(frame) > size:
            at += size - at % size  # the rest of the ring is too short
        self._written[0] = at + len(frame)  # written first, to warn receivers that still read the old bytes
        self._ring[at % size : at % size + len(frame)] = np.frombuffer(frame, np.uint8)
        return at

    def close(self) -> None:
        self.file.unlink(missing_ok=True)


class PeerBuffer:
    """The ring buffer of another process, for reading."""

    def __init__(self, file: Path) -> None:
        try:
            with file.open("rb") as opened:
                memory = np.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        except (OSError, ValueError):
            raise Broken("missing shared memory") from None
        if len(memory) <= START:
            raise Broken("missing shared memory")
        self._written, self._ring = memory[:8].view(np.uint64), memory[START:]

    def gather(self, frames: Sequence[Buffer], limits: Limits) -> list[Buffer]:
        """The original message."""
        where, most = bytes(frames[0])[len(MAGIC) :], most_frames(limits)
        if not 0 < len(where) <= 24 * most or len(where) % 24:
            raise WireError("an invalid position in shared memory")
        whole: list[Buffer] = list(frames[1:])
        for index, at, length in struct.iter_unpack("<3Q", where):
            if index > len(whole) or len(whole) > most:
                raise WireError("an invalid position in shared memory")
            whole.insert(index, self._get(at, length, limits))
        return whole

    def _get(self, at: int, length: int, limits: Limits) -> Buffer:
        size = len(self._ring)
        if length > limits.frame_bytes or at % size + length > size or at + length > int(self._written[0]):
            raise WireError("an invalid position in shared memory")
        data = self._ring[at % size : at % size + length].copy()
        if int(self._written[0]) > at + size:
            raise Broken("overwritten shared memory")
        return data


class LocalPeers:
    """The processes of this host that share memory with us."""

    def __init__(self, me: To, boot: int, limits: Limits) -> None:
        self._me, self._boot, self._limits = me, boot, limits
        self._ring: RingBuffer | None = None
        self._folder: Path | None = None
        self._peers: dict[To, tuple[int, PeerBuffer]] = {}  # by boot

    def meet(self, address: str) -> None:
        """Sets up sharing for a peer whose socket is in a folder; other addresses are ignored."""
        if not address.startswith("ipc://"):
            return
        folder = Path(address.removeprefix("ipc://")).parent
        if self._ring is None or folder != self._folder:
            self.close()  # a relay that restarts has another folder
            self._peers.clear()
            self._folder = folder
            self._remove_earlier()
            self._ring = RingBuffer(self._file(self._me, self._boot), ring_size(self._limits))

    def share(self, frames: list[Buffer]) -> list[Buffer]:
        """Puts large frames into shared memory; only for peers of this host."""
        return frames if self._ring is None else self._ring.share(frames)

    def gather(self, frames: list[Buffer], who: To, boot: int) -> list[Buffer]:
        if self._ring is None or bytes(frames[0][: len(MAGIC)]) != MAGIC:
            return frames
        known = self._peers.get(who)
        if known is None or known[0] != boot:
            known = self._peers[who] = boot, PeerBuffer(self._file(who, boot))
        return known[1].gather(frames, self._limits)

    def close(self) -> None:
        if self._ring is not None:
            self._ring.close()

    def _remove_earlier(self) -> None:
        """Removes ring buffers and sockets of earlier, killed starts of this process."""
        assert self._folder is not None
        for file in self._folder.glob(f"{self._me.role}-{self._me.number}-*"):
            boot = file.name.rpartition("-")[2].removesuffix(".ring")
            if boot.isdigit() and int(boot) < self._boot:
                file.unlink(missing_ok=True)

    def _file(self, who: To, boot: int) -> Path:
        assert self._folder is not None, "it has met nobody"
        return self._folder / f"{who.role}-{who.number}-{boot}.ring"
