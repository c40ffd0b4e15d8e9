"""The layout of a message follows from its dataclass: each type of field, and nothing else to be declared."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from gearshift.data.batch import Floats, Ids
from gearshift.engine.protocol.replica_messages import OfferKind
from gearshift.engine.wire.codec import most_frames
from gearshift.engine.wire.frames import FrameReader, FrameWriter
from gearshift.engine.wire.limits import WireError
from gearshift.engine.wire.message_layout import MessageLayout
from gearshift.parameters.marked_types import OptimizerState, Statistics
from gearshift.parameters.push import NO_PREDICTIONS, GroupRowsPush, Push, ReplicaRowsPush, RowPush
from tests.wire.samples import LIMITS, SHARD, same


@dataclass(frozen=True)
class Inner:
    number: int
    below: int = -1


@dataclass(frozen=True)
class Other:
    name: str


@dataclass(frozen=True)
class Whole:
    count: int
    share: float
    is_last: bool
    name: str
    kind: OfferKind
    inner: Inner
    either: Inner | Other
    maybe: int | None
    one_or_none: Inner | Other | ReplicaRowsPush | None
    pairs: tuple[tuple[int, float], ...]
    ids: tuple[Ids, ...]
    rows: tuple[Floats, ...]
    dense: torch.Tensor
    labels_BT: Floats
    weights_B: Floats | None = None
    statistics: Statistics = field(default_factory=dict)
    state: OptimizerState = field(default_factory=dict)


def row_push(width: int) -> RowPush:
    return RowPush(np.arange(2), np.ones((2, width), np.float32), np.ones(2, np.uint32))


def a_message(**changes: Any) -> Whole:
    values: dict[str, Any] = {
        "count": 3,
        "share": 0.5,
        "is_last": True,
        "name": "ä",
        "kind": OfferKind.MEAN,
        "inner": Inner(1),
        "either": Other("x"),
        "maybe": None,
        "one_or_none": None,
        "pairs": ((1, 0.5), (2, 1.0)),
        "ids": (np.arange(3), np.arange(0)),
        "rows": (np.ones((2, 2), np.float32), np.ones((0, 5), np.float32)),
        "dense": torch.ones(3),
        "labels_BT": np.ones((4, 2), np.float32),
    }
    return Whole(**(values | changes))


def there_and_back(message: Any) -> Any:
    layout = MessageLayout(type(message))
    writer = FrameWriter(LIMITS, half=False, shard=None)
    head = msgspec.msgpack.encode(layout.write(message, writer))
    reader = FrameReader(writer.arrays, LIMITS, half=False, shard=SHARD.number)
    found = layout.read(msgspec.msgpack.decode(head, type=layout.head), reader)
    reader.end()
    assert len(writer.arrays) <= layout.frames(LIMITS)
    return found


def test_a_dataclass_is_all_that_a_message_needs() -> None:
    more = {
        "either": Inner(5, 0),
        "maybe": 7,
        "one_or_none": ReplicaRowsPush((row_push(2), row_push(5)), 2.0, {"norm.mean": torch.ones(3)}),
        "pairs": (),
        "weights_B": np.ones(4, np.float32),
        "statistics": {"norm.mean": torch.ones(3)},
        "state": {"step": torch.tensor(4)},
    }
    for message in (a_message(), a_message(**more), Inner(2, -1)):
        assert same(there_and_back(message), message)


def test_numbers_of_numpy_become_plain_ones() -> None:
    found = there_and_back(a_message(count=np.int64(4), share=np.float32(0.5), inner=Inner(np.int64(2))))
    assert same(found, a_message(count=4, inner=Inner(2)))
    assert same(there_and_back(Inner(np.int64(2), True)), Inner(2, 1))
    assert same(there_and_back(a_message(share=1)), a_message(share=1.0))


@pytest.mark.parametrize(
    "changes", [{"count": -1}, {"count": 2**62}, {"share": float("nan")}, {"inner": Inner(0, -2)}]
)
def test_a_number_out_of_range_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        there_and_back(a_message(**changes))


def test_a_member_of_a_union_has_its_place_before_its_fields() -> None:
    layout, writer = MessageLayout(Whole), FrameWriter(LIMITS, half=False, shard=None)
    head = layout.write(a_message(either=Other("x"), one_or_none=Inner(5)), writer)
    assert head[6:9] == [[1, "x"], None, [0, 5, -1]]
    head[6] = [2, "x"]  # there is no third
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(head), type=layout.head)


def test_a_push_travels_without_its_predictions() -> None:
    rows = row_push(2), row_push(5)
    push = Push(rows, torch.ones(3), 2.0, 1.0, np.ones((2, 1), np.float32))
    assert same(there_and_back(push), replace(push, probabilities_BT=NO_PREDICTIONS))
    with pytest.raises(WireError, match="an array of the wrong size"):
        there_and_back(replace(push, dense=torch.ones(0)))


def test_the_rows_of_a_group_have_its_number() -> None:
    push = GroupRowsPush(1, (row_push(2), row_push(5)), 2.0)
    assert same(there_and_back(push), push)
    with pytest.raises(msgspec.ValidationError):
        there_and_back(replace(push, group=0))


def test_a_letter_of_a_dimension_means_one_size() -> None:
    with pytest.raises(WireError, match="an array of the wrong size"):
        there_and_back(a_message(weights_B=np.ones(3, np.float32)))
    with pytest.raises(WireError, match="an array of the wrong size"):
        there_and_back(a_message(labels_BT=np.ones((1, 3), np.float32)))  # of two tasks


def test_a_type_without_a_form_is_refused_when_the_program_starts() -> None:
    @dataclass(frozen=True)
    class Strange:
        value: set[int]

    with pytest.raises(TypeError, match="value: there is no form on the wire for"):
        MessageLayout(Strange)


def test_the_most_frames_are_those_of_the_largest_message() -> None:
    assert (
        most_frames(LIMITS) == 1 + 2 + 4 * 2 + 1 + 2
    )  # a machine's sum: leases, rows, dense part, statistics
