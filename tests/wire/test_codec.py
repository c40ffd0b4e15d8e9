"""Messages as frames: nothing is lost, nothing is believed, and what is refused is refused with a reason."""

from __future__ import annotations

import os
import typing
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gearshift.engine.protocol import messages as m
from gearshift.engine.protocol.messages import Message, To
from gearshift.engine.protocol.relay_messages import MachineGive
from gearshift.engine.wire.codec import BY_TYPE, Codec, said_by
from gearshift.engine.wire.frames import FORMAT, HEAD
from gearshift.engine.wire.limits import WireError
from gearshift.parameters.push import NO_PREDICTIONS, GroupSumPush, Push, RowPush
from gearshift.parameters.shard import Drop, Order
from tests.wire.fuzz import fuzz, most_memory
from tests.wire.samples import BY_READER, COORDINATOR, LIMITS, SHARD, WORKER, same

INPUTS = int(os.environ.get("GEARSHIFT_FUZZ", "10000"))


def there_and_back(reader: To, message: Message, *, half: bool = False) -> Message:
    codec = Codec(reader, LIMITS)
    frames = [bytearray(frame) for frame in codec.encode(message, half=half)]
    decoded, wants_half = codec.decode(frames, said_by(message))
    assert wants_half == half and decoded is not None
    return decoded


@given(st.sampled_from(list(BY_READER)).flatmap(lambda to: st.tuples(st.just(to), BY_READER[to])))
def test_every_message_comes_back_as_it_was(sent: tuple[To, Message]) -> None:
    assert same(there_and_back(*sent), sent[1])


def test_every_message_has_a_kind_and_a_sample() -> None:
    assert BY_TYPE.keys() == set(typing.get_args(Message))


@given(BY_READER[SHARD] | BY_READER[WORKER])
def test_half_keeps_eight_bits_of_rows_and_gradients(message: Message) -> None:
    reader = SHARD if isinstance(message, m.ToShard) else WORKER
    found = there_and_back(reader, message, half=True)
    if isinstance(message, m.RelayAnswer) and isinstance(found, m.RelayAnswer):
        message, found = message.answer, found.answer
    if isinstance(message, m.Rows) and isinstance(found, m.Rows):
        assert same(found.dense, message.dense), "parameters stay whole"
        for own, sent in zip(found.rows, message.rows, strict=True):
            np.testing.assert_allclose(own, sent, rtol=2**-8, atol=1e-38)
    elif isinstance(message, m.Give | MachineGive) and isinstance(found, m.Give | MachineGive):
        for row, given_ in zip(found.push.rows, message.push.rows, strict=True):
            assert same(row.ids_U, given_.ids_U) and same(row.counts_U, given_.counts_U)
            np.testing.assert_allclose(row.sums_UW, given_.sums_UW, rtol=2**-8, atol=1e-38)
    else:
        assert same(found, message)


def test_arrays_are_not_copied_on_either_side() -> None:
    rows = np.ones((4, 2), np.float32)
    message = m.Rows(
        1, SHARD.number, 1, 1, 0, (rows, np.ones((0, 5), np.float32)), m.DenseValues(torch.ones(3))
    )
    codec = Codec(WORKER, LIMITS)
    frames = codec.encode(message)
    assert np.shares_memory(frames[1], rows) and np.shares_memory(frames[3], message.dense.flat.numpy())
    received = [bytearray(frame) for frame in frames]
    found = codec.decode(received, SHARD)[0]
    assert isinstance(found, m.Rows)
    assert np.shares_memory(found.rows[0], np.frombuffer(received[1], np.uint8))
    assert np.shares_memory(found.dense.flat.numpy(), np.frombuffer(received[3], np.uint8))


def a_give(sums: np.ndarray | None = None, ids: tuple[int, ...] = (1, 2), table: int = 1) -> m.Give:
    def row_push(width: int) -> RowPush:
        values = np.ones((len(ids), width), np.float32) if sums is None else sums[:, :width]
        counts_U, tables_U = np.ones(len(ids), np.uint32), np.full(len(ids), table, np.uint16)
        return RowPush(np.array(ids), np.ascontiguousarray(values), counts_U, tables_U=tables_U)

    return m.Give(1, 7, 3, Push((row_push(2), row_push(5)), torch.zeros(3), 2.0, 1.0, NO_PREDICTIONS))


def refusal(reader: To, frames: list[bytes], speaker: To) -> str:
    with pytest.raises(WireError) as error:
        Codec(reader, LIMITS).decode(frames, speaker)
    return error.value.reason


def frames_of(message: Message) -> list[bytes]:
    return [bytes(frame) for frame in Codec(SHARD, replace(LIMITS, ids=100, text=1000)).encode(message)]


def test_a_message_is_heard_from_its_own_sender_by_its_own_reader_only() -> None:
    give = frames_of(a_give())
    Codec(SHARD, LIMITS).decode(give, WORKER)
    assert refusal(SHARD, give, To("worker", 8)) == "a message in the name of another process"
    assert refusal(SHARD, give, COORDINATOR) == "a message in the name of another process"
    assert refusal(COORDINATOR, give, WORKER) == "a message for another role"
    order = frames_of(m.Tell(1, Order(1, Drop(4))))
    assert refusal(SHARD, order, WORKER) == "a message in the name of another process"


def test_a_gradient_of_another_shape_or_value_is_refused() -> None:
    assert refusal(SHARD, frames_of(a_give(ids=tuple(range(7)))), WORKER) == "an array of the wrong size"
    assert refusal(SHARD, frames_of(a_give(ids=(-1, 2))), WORKER) == "an id out of range"
    for bad in (np.nan, np.inf, -np.inf):
        sums = np.ones((2, 5), np.float32)
        sums[1, 1] = bad
        assert refusal(SHARD, frames_of(a_give(sums)), WORKER) == "a gradient that is not finite"
    assert refusal(SHARD, frames_of(a_give(table=1024)), WORKER) == "a table out of range"


def test_a_pull_with_another_number_of_tables_than_ids_is_refused() -> None:
    ids = np.arange(3)
    pull = m.Pull(1, WORKER.number, 1, 1, 0, (ids, ids), (np.ones(3, np.uint16), np.ones(2, np.uint16)))
    assert refusal(SHARD, frames_of(pull), WORKER) == "an array of the wrong size"
    give = frames_of(a_give())
    assert refusal(To("shard", 0), give, WORKER) == "an array of the wrong size"  # its dense part is larger
    short = [*give[:3], give[3][:-4], *give[4:]]
    assert refusal(SHARD, short, WORKER) == "an array of the wrong size"
    assert refusal(SHARD, give[:-1], WORKER) == "less data than the message has"
    assert refusal(SHARD, [*give, b""], WORKER) == "more data than the message has"
    assert refusal(SHARD, [*give, *[b""] * 100], WORKER) == "too many frames"


def test_the_sum_of_a_group_has_a_variance_where_the_optimizer_wants_it_and_nowhere_else() -> None:
    give = a_give()
    push = give.push
    summed = replace(give, push=GroupSumPush(2, push.rows, push.dense, torch.ones(3), push.examples))
    frames = frames_of(summed)
    found = Codec(SHARD, LIMITS).decode(frames, WORKER)[0]
    assert isinstance(found, m.Give) and same(found.push.variance, torch.ones(3))
    assert len(frames) == len(frames_of(give)) + 1  # a gradient of one worker has none
    for bad, reason in (
        (torch.ones(0), "an array of the wrong size"),
        (torch.ones(4), "an array of the wrong size"),
        (torch.tensor([1.0, -1.0, 1.0]), "a number out of range"),
        (torch.tensor([1.0, torch.nan, 1.0]), "a gradient that is not finite"),
    ):
        changed = frames_of(replace(summed, push=replace(summed.push, variance=bad)))
        assert refusal(SHARD, changed, WORKER) == reason
    assert refusal(SHARD, frames[:10] + frames[11:], WORKER) == "less data than the message has"
    with pytest.raises(WireError, match="more data than the message has"):
        Codec(SHARD, replace(LIMITS, spread=False)).decode(frames, WORKER)


def test_what_is_not_of_this_protocol_is_refused() -> None:
    load = m.Load(1, 1, "x")
    (head,) = frames_of(load)
    assert refusal(SHARD, [], COORDINATOR) == "no frames"
    assert refusal(SHARD, [b"GET / HTTP/1.1\r\n\r\n"], COORDINATOR) == "not a message of this protocol"
    assert refusal(SHARD, [head[: HEAD.size - 1]], COORDINATOR) == "a header of the wrong size"
    assert (
        refusal(SHARD, [head[:4] + bytes([FORMAT + 1]) + head[5:]], COORDINATOR)
        == "another version of the protocol"
    )
    assert refusal(SHARD, [head[:5] + b"\xff" + head[6:]], COORDINATOR) == "an unknown kind of message"
    assert (
        refusal(SHARD, [head[:6] + b"\x80" + head[7:]], COORDINATOR)
        == "a flag that the message does not have"
    )
    assert refusal(SHARD, frames_of(m.Load(1, 1, "y" * 100)), COORDINATOR) == "a text that is too long"
    assert refusal(SHARD, [head[:-1] + b"\xff"], COORDINATOR) == "an invalid text"
    assert refusal(SHARD, [head + b"y"], COORDINATOR) == "an unreadable header"
    assert refusal(SHARD, [head[: HEAD.size + 1]], COORDINATOR) == "an unreadable header"


def test_a_sender_hears_at_once_that_the_limits_are_too_narrow() -> None:
    with pytest.raises(WireError, match=r"int64\[7\] is not within the limits"):
        Codec(WORKER, LIMITS).encode(a_give(ids=tuple(range(7))))


def test_a_long_reason_is_cut() -> None:
    report = m.Report(1, 7, 1, 1, m.LeaseRefused(3, "ä" * 100))
    found = there_and_back(COORDINATOR, report)
    assert found == replace(report, outcome=m.LeaseRefused(3, "ä" * 30))


def test_the_parser_refuses_whatever_is_no_message() -> None:
    counts = fuzz(INPUTS)
    assert counts["accepted"] > INPUTS / 100, "some changes leave a message"
    assert len(counts) > 15, "every reason is met"


def test_no_input_takes_more_memory_than_it_has_bytes() -> None:
    assert most_memory(2000) < 4


@pytest.mark.slow
def test_a_million_inputs() -> None:
    assert sum(fuzz(1_000_000, first=1).values()) == 1_000_000
