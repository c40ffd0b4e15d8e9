"""Frames through shared memory: they come as they were, or the message counts as lost; no place is believed."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from gearshift.engine.protocol.messages import To
from gearshift.engine.wire.limits import Limits, WireError
from gearshift.engine.wire.shared_memory import LARGE, MAGIC, START, LocalPeers, PeerBuffer, RingBuffer

LIMITS = Limits((4,), (3,), ids=20_000, batch=8)
SIZE = 5 * LARGE


def pair(folder: Path) -> tuple[RingBuffer, PeerBuffer]:
    ring = RingBuffer(folder / "ring", SIZE)
    return ring, PeerBuffer(ring.file)


def frame(number: int, length: int = LARGE) -> bytes:
    return bytes([number]) * length


def test_frames_come_in_their_order_whatever_their_size(tmp_path: Path) -> None:
    ring, peer = pair(tmp_path)
    assert ring.file.stat().st_mode & 0o777 == 0o600
    for i in range(20):
        sent = [b"head", frame(i), b"", frame(i + 1, LARGE + i), b"small"]
        found = ring.share(sent)
        assert len(found) == 4 and found[0][:4] == MAGIC
        assert [bytes(one) for one in peer.gather([bytes(one) for one in found], LIMITS)] == sent


def test_small_frames_and_those_that_fill_the_ring_go_by_the_socket(tmp_path: Path) -> None:
    ring, _ = pair(tmp_path)
    assert ring.share([b"head", b"small"]) == [b"head", b"small"]
    assert ring.share([frame(1, SIZE)]) == [frame(1, SIZE)]


def test_a_slow_reader_loses_the_message_and_never_reads_another(tmp_path: Path) -> None:
    ring, peer = pair(tmp_path)
    first = ring.share([frame(1)])
    for i in range(2, 6):
        ring.share([frame(i)])
        assert bytes(peer.gather(first, LIMITS)[0]) == frame(1)
    ring.share([frame(6)])
    with pytest.raises(WireError, match="overwritten"):
        peer.gather(first, LIMITS)


def test_no_place_is_believed(tmp_path: Path) -> None:
    ring, peer = pair(tmp_path)
    ring.share([frame(1)])
    for bad in ((0, 2**63, 8), (0, 0, 2**62), (0, LARGE, 8), (9, 0, 8), (0, SIZE - 4, 8)):
        with pytest.raises(WireError, match="an invalid position in shared memory"):
            peer.gather([MAGIC + struct.pack("<3Q", *bad)], LIMITS)
    for bad_head in (MAGIC, MAGIC + b"x", MAGIC + bytes(24 * 100)):
        with pytest.raises(WireError, match="an invalid position in shared memory"):
            peer.gather([bad_head], LIMITS)
    rng = random.Random(1)
    for _ in range(2000):
        with suppress(WireError):
            peer.gather([MAGIC + rng.randbytes(rng.choice([24, 48, 25])), b"rest"], LIMITS)


def test_a_ring_that_is_not_there(tmp_path: Path) -> None:
    for content in (b"", bytes(START)):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(WireError, match="missing"):
            PeerBuffer(tmp_path / "other")
    with pytest.raises(WireError, match="missing"):
        PeerBuffer(tmp_path / "nothing")


def test_what_is_read_is_the_readers_own(tmp_path: Path) -> None:
    ring, peer = pair(tmp_path)
    found = np.asarray(peer.gather(ring.share([frame(1)]), LIMITS)[0])
    for i in range(2, 9):
        ring.share([frame(i)])
    assert found.flags.writeable and (found == 1).all()


def test_what_killed_starts_left_behind_is_removed(tmp_path: Path) -> None:
    left = [tmp_path / name for name in ("shard-1-5", "shard-1-5.ring", "shard-1-17.ring")]
    others = [
        tmp_path / name for name in ("shard-0-5.ring", "shard-1-40", "shard-11-5.ring", "worker-1-5.ring")
    ]
    for file in left + others:
        file.touch()
    neighbours = LocalPeers(To("shard", 1), 40, LIMITS)
    neighbours.meet(f"ipc://{tmp_path}/shard-1-40")
    assert sorted(tmp_path.iterdir()) == sorted([*others, tmp_path / "shard-1-40.ring"])
    neighbours.close()
    assert sorted(tmp_path.iterdir()) == sorted(others)
