"""Any message that the roles could send, within these limits; and whether two are the same."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gearshift.embedding.horizons import Horizons
from gearshift.engine.protocol import messages as m
from gearshift.engine.protocol import relay_messages as relayed
from gearshift.engine.protocol import replica_messages as r
from gearshift.engine.protocol.all_reduce import GroupRank
from gearshift.engine.protocol.messages import Message, To
from gearshift.engine.wire.limits import Limits, StatePart, Statistic
from gearshift.parameters.push import (
    NO_PREDICTIONS,
    GroupRowsPush,
    GroupSumPush,
    Push,
    ReplicaRowsPush,
    RowPush,
)
from gearshift.parameters.replicas.figures import Counts
from gearshift.parameters.shard import (
    ApplyStep,
    Assemble,
    Drop,
    HeldDense,
    Order,
    StepOnSum,
    TakeCut,
)
from gearshift.sync.events import Begin, Extrapolation, Lease

STATISTICS = (Statistic("norm.mean", (3,)), Statistic("norm.batches", (), counts=True))
STATE = (StatePart("mean"), StatePart("step", each=False, counts=True))
LIMITS = Limits(
    (2, 5),
    (4, 0, 3),
    ids=6,
    batch=4,
    tasks=2,
    parts=5,
    text=60,
    statistics=STATISTICS,
    state=STATE,
    spread=True,
)
COORDINATOR, WORKER, SHARD = To("coordinator"), To("worker", 7), To("shard", 2)
RELAY = To("relay", 4)

DENSE = LIMITS.dense[SHARD.number]
numbers = st.integers(0, 2**62 - 1)
reals = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(max_size=15)
floats = st.floats(-(2.0**90), 2.0**90, width=32)


def array(dtype: Any, *shape: int, elements: Any = None) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(dtype, shape, elements=elements)


def floats_of(*shape: int) -> st.SearchStrategy[np.ndarray]:
    return array(np.float32, *shape, elements=floats)


ids = st.integers(0, LIMITS.ids).flatmap(
    lambda count: array(np.int64, count, elements=st.integers(0, 2**63 - 1))
)
extrapolations = st.builds(Extrapolation, numbers, reals)
plans = st.builds(r.ExchangePlan, numbers, numbers, names)
works = st.builds(
    m.Assignment,
    numbers,
    numbers,
    numbers,
    st.builds(
        Begin, st.just(WORKER.number), st.builds(Lease, *[numbers] * 4), numbers, numbers, extrapolations
    ),
    numbers,
    plans,
    reals,
    st.builds(GroupRank, numbers, numbers, numbers, st.booleans()),
    st.none() | st.builds(m.ComingRange, numbers, numbers),
)
parts = st.lists(st.tuples(numbers, reals), max_size=LIMITS.parts).map(tuple)
late = st.lists(st.tuples(numbers, numbers), max_size=LIMITS.parts).map(tuple)
horizons = st.builds(
    Horizons, numbers, st.lists(st.tuples(numbers, numbers), max_size=LIMITS.parts).map(tuple)
)
orders = (
    st.builds(ApplyStep, numbers, parts, reals, st.booleans(), st.none() | horizons, reals, late)
    | st.builds(Drop, numbers)
    | st.builds(TakeCut, names)
    | st.builds(
        Assemble, numbers, numbers, names, st.lists(st.tuples(numbers, numbers), max_size=2).map(tuple)
    )
)
tells = st.builds(m.Tell, numbers, st.builds(Order, numbers, orders, numbers))
held = st.none() | st.builds(HeldDense, st.integers(-1, 2**61), numbers)
wanted = st.tuples(ids, ids).map(
    lambda by_store: m.WantedRows(by_store, tuple((own % 1024).astype(np.uint16) for own in by_store))
)
pulls = st.builds(
    lambda *values: m.Pull(*values[:5], *values[5], *values[6:]),
    numbers,
    st.just(WORKER.number),
    numbers,
    numbers,
    numbers,
    wanted,
    st.booleans(),
    held,
    extrapolations,
)


@st.composite
def measured(draw: st.DrawFn) -> m.BatchMeasures:
    batch, tasks = draw(st.integers(0, LIMITS.batch)), draw(st.integers(1, LIMITS.tasks))
    labels, probabilities = draw(floats_of(batch, tasks)), draw(floats_of(batch, tasks))
    weights = draw(st.none() | floats_of(batch))
    times = draw(st.none() | array(np.int64, batch))
    return m.BatchMeasures(draw(reals), draw(reals), labels, probabilities, weights, times)


@st.composite
def row_push(draw: st.DrawFn, width: int) -> RowPush:
    own = draw(ids)
    return RowPush(
        own,
        draw(floats_of(len(own), width)),
        draw(array(np.uint32, len(own))),
        tables_U=(own % 1024).astype(np.uint16),
    )


@st.composite
def dense_part(draw: st.DrawFn) -> torch.Tensor:
    """All of it, or none: where a worker has its own."""
    return torch.from_numpy(draw(floats_of(draw(st.sampled_from([0, LIMITS.dense[SHARD.number]])))))


@st.composite
def optimizer_state(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    found = {}
    if draw(st.booleans()):
        found["mean"] = torch.from_numpy(draw(floats_of(LIMITS.dense[SHARD.number])))
    if draw(st.booleans()):
        found["step"] = torch.tensor(draw(st.integers(0, 100)))
    return found


@st.composite
def gives(draw: st.DrawFn) -> m.Give:
    rows = tuple(draw(row_push(width)) for width in LIMITS.widths)
    examples, changes, group = draw(reals), draw(statistics()), draw(st.integers(1, 2**62 - 1))
    dense = torch.from_numpy(draw(floats_of(DENSE)))
    variance = torch.from_numpy(np.abs(draw(floats_of(DENSE))))
    push = draw(
        st.sampled_from(
            [
                Push(rows, dense, examples, draw(reals), NO_PREDICTIONS, changes),
                GroupSumPush(group, rows, dense, variance, examples, changes),
                GroupRowsPush(group, rows, examples, changes),
                ReplicaRowsPush(rows, examples, changes),
            ]
        )
    )
    return m.Give(draw(numbers), WORKER.number, draw(numbers), push)


@st.composite
def statistics(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    found = {}
    if draw(st.booleans()):
        found["norm.mean"] = torch.from_numpy(draw(floats_of(3)))
    if draw(st.booleans()):
        found["norm.batches"] = torch.tensor(draw(st.integers(0, 100)))
    return found


@st.composite
def values(draw: st.DrawFn, kind: type[m.Rows] | type[m.Seen]) -> m.Rows | m.Seen:
    found = tuple(draw(floats_of(draw(st.integers(0, LIMITS.ids)), width)) for width in LIMITS.widths)
    flats = floats_of(DENSE).map(torch.from_numpy)
    made = st.none() | st.builds(StepOnSum, numbers, reals, reals, reals)
    dense = draw(made | st.builds(m.DenseValues, flats, states()) if kind is m.Rows else flats)
    head = [draw(numbers) for _ in range(3 if kind is m.Rows else 2)]
    return kind(draw(numbers), SHARD.number, *head, found, dense, draw(statistics()))


@st.composite
def states(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    if not draw(st.booleans()):
        return {}
    mean = torch.from_numpy(draw(floats_of(DENSE)))
    return {"step": torch.tensor(draw(st.integers(0, 100))), "mean": mean}


worker, shard = st.just(WORKER.number), st.just(SHARD.number)
short = names.map(lambda name: name[:2])  # two of them are one text
reports = st.builds(
    m.Report,
    numbers,
    worker,
    numbers,
    numbers,
    st.none()
    | st.builds(m.LeaseDone, numbers, numbers, reals, st.none() | measured(), numbers)
    | st.builds(m.LeaseRefused, numbers, names)
    | st.builds(m.GroupBroken, numbers, names),
)
members = st.lists(st.tuples(numbers, numbers, numbers), max_size=3).map(tuple)
offered = st.none() | st.builds(r.OfferedValues, reals, dense_part(), optimizer_state(), numbers)
occasions = st.builds(r.Occasion, numbers, numbers, numbers)
offers = st.builds(
    r.Offer, numbers, worker, numbers, numbers, st.sampled_from(r.OfferKind), occasions, offered
)
taken = st.builds(m.Taken, numbers, shard, numbers, st.booleans())
targets = st.builds(r.Target, numbers, shard, numbers, numbers, dense_part(), optimizer_state())
relay = st.just(RELAY.number)
of_machine = (
    st.builds(
        lambda *of: relayed.MachinePull(*of[:5], *of[5], of[6]),
        *[numbers, relay, *[numbers] * 3],
        wanted,
        st.booleans(),
    ),
    st.builds(
        relayed.MachineGive,
        *[numbers, relay, numbers, numbers],
        st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple),
        gives().map(lambda give: give.push).filter(lambda push: isinstance(push, Push)),
    ),
    st.builds(
        relayed.MachineOffer,
        *[numbers, relay, numbers, numbers],
        st.sampled_from(r.OfferKind),
        occasions,
        members,
        offered,
    ),
)
BY_READER: dict[To, st.SearchStrategy[Message]] = {
    COORDINATOR: st.one_of(
        reports,
        st.builds(m.Hello, worker, numbers),
        st.builds(m.Alive, numbers, worker, numbers),
        st.builds(m.ShardHello, shard, numbers),
        st.builds(m.Loaded, numbers, shard, numbers),
        st.builds(m.Done, numbers, shard, numbers, numbers),
        st.builds(m.Saved, numbers, shard, numbers, short, short),
        values(m.Seen),
        st.builds(
            r.Met,
            numbers,
            worker,
            numbers,
            numbers,
            st.none() | st.integers(0, 2**61),
            st.builds(Counts, numbers, numbers, numbers, reals),
        ),
    ),
    WORKER: st.one_of(
        works,
        values(m.Rows),
        st.builds(m.Welcome, numbers, numbers),
        st.builds(m.Rejoin, numbers),
        st.builds(m.Over, numbers),
        taken,
        targets,
        st.builds(m.RelayAnswer, relay, shard, taken | targets | values(m.Rows)),
        st.builds(relayed.RelayHere, relay),
        st.builds(r.Meet, numbers, numbers, numbers, numbers, st.booleans(), plans),
        st.builds(r.Go, numbers, numbers, numbers, plans),
    ),
    SHARD: st.one_of(
        tells,
        pulls,
        gives(),
        st.builds(m.Load, numbers, numbers, names),
        st.builds(m.IsSaved, numbers, names),
        st.builds(m.Peek, numbers, numbers, st.tuples(ids, ids)),
        st.builds(m.Prefetch, numbers, worker, st.tuples(ids, ids)),
        offers,
        *of_machine,
    ),
    RELAY: st.one_of(
        st.builds(m.RelayRequest, worker, shard, names, pulls | gives() | offers),
        st.builds(relayed.Attend, worker, numbers),
        st.builds(m.MachineRows, shard, values(m.Rows)),
        st.builds(relayed.MachineTaken, numbers, shard, numbers, numbers, st.booleans()),
        st.builds(
            relayed.MachineTarget,
            *[numbers, shard, numbers, numbers],
            st.booleans(),
            st.booleans(),
            dense_part(),
            optimizer_state(),
        ),
    ),
}


def same(one: Any, other: Any) -> bool:
    """Field by field, type by type, bit by bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and same(one.numpy(), other.numpy())
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return bool(one == other)
