"""Random bytes, and valid messages with bits flipped, cut, doubled and mixed, into the parser.

    python -m tests.wire.fuzz [--inputs 1000000] [--seed 0]

Every input is a message that is written again as the same bytes, or a `WireError`; anything else is a finding. Memory
is watched: what the parser takes for one input stays within a few times the input's own size. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import time
import tracemalloc
from collections import Counter
from contextlib import suppress
from functools import cache

from hypothesis import HealthCheck, Phase, given, seed, settings

from gearshift.engine.protocol.messages import Message, To
from gearshift.engine.wire.codec import BY_NUMBER, KNOCK, Codec, said_by
from gearshift.engine.wire.frames import FORMAT, HALF, HEAD, MAGIC
from gearshift.engine.wire.limits import WireError
from tests.wire.samples import BY_READER, LIMITS, RELAY, SHARD, WORKER

Frames = list[bytes]
SPEAKERS = (To("coordinator"), WORKER, SHARD, RELAY)


@cache
def valid() -> list[tuple[To, To, Frames]]:
    """Reader, speaker and frames of some hundred messages, of all kinds."""
    found: list[tuple[To, To, Frames]] = []

    def collect(reader: To) -> None:
        @seed(1)
        @settings(
            max_examples=250,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(BY_READER[reader])
        def take(message: Message) -> None:
            for half in (False, True):
                frames = Codec(reader, LIMITS).encode(message, half=half)
                found.append((reader, said_by(message), [bytes(frame) for frame in frames]))

        take()

    for reader in BY_READER:
        collect(reader)
    assert {frames[0][5] for _, _, frames in found} == set(BY_NUMBER)
    return found


def flip(rng: random.Random, frames: Frames) -> None:
    at = rng.randrange(len(frames))
    if frames[at]:
        changed = bytearray(frames[at])
        for _ in range(rng.choice([1, 1, 2, 8])):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        frames[at] = bytes(changed)


def cut(rng: random.Random, frames: Frames) -> None:
    at = rng.randrange(len(frames))
    frames[at] = frames[at][: rng.randint(0, len(frames[at]))]


def lengthen(rng: random.Random, frames: Frames) -> None:
    at = rng.randrange(len(frames))
    frames[at] += rng.randbytes(rng.choice([1, 4, 8, 64, 1000]))


def drop(rng: random.Random, frames: Frames) -> None:
    del frames[rng.randrange(len(frames))]


def double(rng: random.Random, frames: Frames) -> None:
    frames.insert(rng.randrange(len(frames) + 1), rng.choice(frames))


def mix(rng: random.Random, frames: Frames) -> None:
    frames[rng.randrange(len(frames))] = rng.choice(rng.choice(valid())[2])


def other_number(rng: random.Random, frames: Frames) -> None:
    """A number of the head becomes one that could hurt."""
    if len(frames[0]) >= HEAD.size + 8:
        at = HEAD.size + 8 * rng.randrange((len(frames[0]) - HEAD.size) // 8)
        value = rng.choice([-1, 0, 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63), LIMITS.ids + 1])
        changed = bytearray(frames[0])
        struct.pack_into("<q", changed, at, value)
        frames[0] = bytes(changed)


def noise(rng: random.Random, frames: Frames) -> None:
    frames[:] = [rng.randbytes(rng.choice([0, 1, 8, 16, 40, 200])) for _ in range(rng.randint(0, 12))]


def noise_with_a_head(rng: random.Random, frames: Frames) -> None:
    kind = rng.choice([KNOCK, *BY_NUMBER, rng.randrange(256)])
    noise(rng, frames)
    head = HEAD.pack(MAGIC, FORMAT, kind, rng.choice([0, 0, 1, 2, 7, 15, 255]))
    frames[:1] = [head + rng.randbytes(8 * rng.randint(0, 12))]


CHANGES = (flip, flip, cut, lengthen, drop, double, mix, other_number, other_number, noise, noise_with_a_head)


def an_input(rng: random.Random) -> tuple[To, To, Frames]:
    reader, speaker, frames = rng.choice(valid())
    frames = list(frames)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if not frames:
            break
        rng.choice(CHANGES)(rng, frames)
    if rng.random() < 0.05:
        reader, speaker = rng.choice(list(BY_READER)), rng.choice(SPEAKERS)
    return reader, speaker, frames


def outcome(reader: To, speaker: To, frames: Frames) -> str:
    """Why it was refused, empty if it is a message. Whatever else is raised is a finding."""
    codec = Codec(reader, LIMITS)
    try:
        message, half = codec.decode(frames, speaker)
    except WireError as error:
        return error.reason
    again = [
        bytes(frame) for frame in (codec.encode(message, half=half) if message else codec.knock(half=half))
    ]
    if half:  # a bfloat16 that is not a number has many forms
        assert len(again) == len(frames) and again[0] == frames[0]
    else:
        assert again == frames, "two forms of one message"
    assert frames[0][6] & HALF == half
    return ""


def fuzz(inputs: int, first: int = 0) -> Counter[str]:
    rng, counts = random.Random(first), Counter[str]()
    for _ in range(inputs):
        counts[outcome(*an_input(rng)) or "accepted"] += 1
    return counts


def most_memory(inputs: int, first: int = 0) -> float:
    """The most bytes that one input took, as a multiple of its own (and 4 kB for what any message takes)."""
    rng, worst = random.Random(first), 0.0
    tracemalloc.start()
    try:
        for _ in range(inputs):
            reader, speaker, frames = an_input(rng)
            codec, before = Codec(reader, LIMITS), tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            with suppress(WireError):
                codec.decode(frames, speaker)
            taken = tracemalloc.get_traced_memory()[1] - before
            worst = max(worst, taken / (4096 + sum(map(len, frames))))
    finally:
        tracemalloc.stop()
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    counts = fuzz(options.inputs, options.seed)
    for reason, count in counts.most_common():
        print(f"{count:10,}  {reason}")
    worst = most_memory(min(options.inputs, 20_000), options.seed)
    seconds = time.perf_counter() - began
    print(
        json.dumps(
            {
                "inputs": options.inputs,
                "findings": 0,
                "accepted": counts["accepted"],
                "reasons": len(counts) - 1,
                "most_memory": round(worst, 2),
                "seconds": round(seconds, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
