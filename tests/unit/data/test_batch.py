"""Slices, selections and concatenations keep every array of a batch together."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from gearshift.data.batch import Batch, Ragged

LENGTHS = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def make(lengths: list[int], first: int = 5) -> Batch:
    count = len(lengths)
    numbers = np.arange(count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Batch(
        first,
        (numbers % 2).astype(np.float32)[:, None],
        numbers.astype(np.float32)[:, None] * 10,
        np.stack([numbers, -numbers], 1).astype(np.int64),
        (Ragged(np.arange(offsets[-1]), offsets),),
        numbers.astype(np.float32) / 2,
        numbers.astype(np.int64) + 100,
        numbers.astype(np.int64) * 7,
        pa.table({"name": [f"e{i}" for i in range(count)]}),
    )


def examples(batch: Batch) -> list[tuple[object, ...]]:
    assert batch.weights_B is not None
    assert batch.times_B is not None
    assert batch.groups_B is not None
    assert batch.kept is not None
    ragged = batch.ragged[0]
    assert ragged.offsets[0] == 0
    assert ragged.offsets[-1] == len(ragged.ids)
    return [
        (
            *batch.labels_BT[i].tolist(),
            *batch.numeric_BN[i].tolist(),
            *batch.ids_BF[i].tolist(),
            tuple(ragged.ids[ragged.offsets[i] : ragged.offsets[i + 1]].tolist()),
            float(batch.weights_B[i]),
            int(batch.times_B[i]),
            int(batch.groups_B[i]),
            batch.kept.column("name")[i].as_py(),
        )
        for i in range(len(batch))
    ]


@settings(deadline=None)
@given(LENGTHS, st.data())
def test_slice_take_and_concat(lengths: list[int], data: st.DataObject) -> None:
    batch = make(lengths)
    whole = examples(batch)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    part = batch.slice(start, stop)
    assert examples(part) == whole[start:stop]
    assert part.first == 5 + start
    order = data.draw(st.permutations(range(len(whole))))
    assert examples(batch.take(np.array(order, np.int64))) == [whole[i] for i in order]
    joined = Batch.concat([batch.slice(0, start), batch.slice(start, len(whole))])
    assert examples(joined) == whole
    assert joined.first == 5


def test_moving_and_measuring() -> None:
    batch = make([1, 2])
    assert batch.moved(5) is batch
    assert batch.moved(9).first == 9
    assert batch.memory_bytes() > 100
