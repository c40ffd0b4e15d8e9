"""Each kind of message: its number, for whom it is, and how it is written and read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from gearshift.data.batch import Floats, Ids
from gearshift.engine.protocol import messages as m
from gearshift.engine.protocol.all_reduce import GroupRank
from gearshift.engine.protocol.messages import Message, To
from gearshift.engine.protocol.replica_messages import ExchangePlan
from gearshift.engine.wire.frames import FrameReader, FrameWriter
from gearshift.engine.wire.limits import StatePart, WireError
from gearshift.parameters.push import NO_VALUES, Push, RowPush
from gearshift.parameters.shard import (
    NO_PREDICTIONS,
    ApplyStep,
    Assemble,
    Drop,
    HeldDense,
    Order,
    StepOnSum,
    TakeCut,
    Values,
)
from gearshift.sync.messages import Begin, Lease
from gearshift.training.ended import BatchMeasures

CONTENT, WEIGHTS, TIMES = 2, 4, 8  # flags of a report
HELD = 2  # of a pull
MADE, STATE = 2, 4  # of rows


@dataclass(frozen=True)
class MessageType:
    number: int
    type: type[Any]
    to: str
    write: Callable[[FrameWriter, Any], None]
    read: Callable[[FrameReader, To], Message]  # by whom
    flags: int = 0


def plain(number: int, type_: type[Any], to: str) -> MessageType:
    """A message of numbers, with a name at the end or none."""
    names = [field.name for field in fields(type_)]
    timeless = "incarnation" not in names
    numbers = [name for name in names if name not in ("incarnation", "name")]

    def write(w: FrameWriter, message: Any) -> None:
        w.numbers(*(getattr(message, name) for name in numbers))
        if "name" in names:
            w.text(message.name)

    def read(r: FrameReader, me: To) -> Message:
        if timeless and r.incarnation:
            raise WireError("a number out of range")
        values: list[Any] = [] if timeless else [r.incarnation]
        values += r.numbers(len(numbers))
        message: Message = type_(*values, *([r.text()] if "name" in names else []))
        return message

    return MessageType(number, type_, to, write, read)


# ---- report and work ----


def write_report(w: FrameWriter, report: m.Report) -> None:
    lease = 0 if report.lease is None else report.lease + 1
    w.numbers(report.worker, report.boot, report.request, lease, report.version, report.ring)
    w.reals(report.seconds)
    if (content := report.content) is not None:
        w.flag(CONTENT)
        row, most = content.labels_BT.shape[1:], w.limits.batch
        if len(row) != 1 or not 0 < row[0] <= w.limits.tasks:
            raise WireError("labels are not within the limits of the wire")
        w.numbers(*row)
        w.reals(content.loss, content.examples)
        w.array(content.labels_BT, np.float32, most=most, row=row)
        w.array(content.probabilities_BT, np.float32, most=most, row=row)
        if content.weights_B is not None:
            w.flag(WEIGHTS)
            w.array(content.weights_B, np.float32, most=most)
        if content.times_B is not None:
            w.flag(TIMES)
            w.array(content.times_B, np.int64, most=most)
    w.text(report.refused)


def read_report(r: FrameReader, me: To) -> m.Report:
    worker, boot, request, lease, version, ring = r.numbers(6)
    (seconds,) = r.reals(1)
    content = read_content(r) if r.flags & CONTENT else None
    if r.flags & (WEIGHTS | TIMES) and content is None:
        raise WireError("a flag that the message does not have")
    ended = lease - 1 if lease else None
    return m.Report(r.incarnation, worker, boot, request, ended, r.text(), version, seconds, content, ring)


def read_content(r: FrameReader) -> BatchMeasures:
    (tasks,) = r.numbers(1)
    if not 0 < tasks <= r.limits.tasks:
        raise WireError("an array of another size")
    loss, examples = r.reals(2)
    labels_BT = r.array(np.float32, most=r.limits.batch, row=(tasks,))
    batch = len(labels_BT)
    probabilities_BT = r.array(np.float32, most=batch, row=(tasks,), exact=batch)
    weights_B = r.array(np.float32, most=batch, exact=batch) if r.flags & WEIGHTS else None
    times_B = r.array(np.int64, most=batch, exact=batch) if r.flags & TIMES else None
    return BatchMeasures(loss, examples, labels_BT, probabilities_BT, weights_B, times_B)


def write_work(w: FrameWriter, work: m.Assignment) -> None:
    begin, lease = work.begin, work.begin.lease
    w.numbers(work.boot, work.request, begin.worker, begin.token, begin.version)
    w.numbers(lease.number, lease.first, lease.count, lease.attempt, work.epoch)
    w.numbers(work.place.ring, work.place.rank, work.place.size)
    w.reals(work.rate)
    write_plan(w, work.plan)


def read_work(r: FrameReader, me: To) -> m.Assignment:
    boot, request, worker, token, version = r.numbers(5)
    if worker != me.number:
        raise WireError("a message for another worker")
    *lease, epoch = r.numbers(5)
    place = GroupRank(*r.numbers(3))
    (rate,) = r.reals(1)
    begin = Begin(worker, Lease(*lease), token, version)
    return m.Assignment(r.incarnation, boot, request, begin, epoch, read_plan(r), rate, place)


def write_plan(w: FrameWriter, plan: ExchangePlan) -> None:
    """The last of a head."""
    w.numbers(plan.generation, plan.lineage)
    w.text(plan.choices)


def read_plan(r: FrameReader) -> ExchangePlan:
    generation, lineage = r.numbers(2)
    return ExchangePlan(generation, lineage, r.text())


# ---- snapshots ----


def write_saved(w: FrameWriter, saved: m.Saved) -> None:
    name = saved.name.encode()
    w.numbers(saved.shard, saved.boot, len(name))
    w.text(saved.name + saved.error)


def read_saved(r: FrameReader, me: To) -> m.Saved:
    shard, boot, length = r.numbers(3)
    raw = r.text().encode()
    if length > len(raw):
        raise WireError("a text that is none")
    try:
        return m.Saved(r.incarnation, shard, boot, raw[:length].decode(), raw[length:].decode())
    except UnicodeDecodeError:
        raise WireError("a text that is none") from None


# ---- orders ----

STEP, DROP, CUT, ASSEMBLE = range(4)


def write_tell(w: FrameWriter, tell: m.Tell) -> None:
    order = tell.order
    w.numbers(order.number, order.open_from)
    match order.what:
        case ApplyStep(step, parts, lr_scale, over_kept):
            w.numbers(STEP, step, over_kept)
            w.reals(lr_scale)
            w.array(np.array([lease for lease, _ in parts], np.int64), np.int64, most=w.limits.parts)
            w.array(np.array([weight for _, weight in parts], np.float64), np.float64, most=w.limits.parts)
        case Drop(lease):
            w.numbers(DROP, lease)
        case TakeCut(name):
            w.numbers(CUT)
            w.text(name)
        case Assemble(list_number, generation, choices, members):
            w.numbers(ASSEMBLE, list_number, generation)
            pairs = np.array(members, np.int64).reshape(-1, 2)
            w.array(pairs, np.int64, most=w.limits.parts // 2, row=(2,))
            w.text(choices)


def read_tell(r: FrameReader, me: To) -> m.Tell:
    number, open_from, what = r.numbers(3)
    if what == STEP:
        order = Order(number, read_step(r), open_from)
    elif what == DROP:
        order = Order(number, Drop(*r.numbers(1)), open_from)
    elif what == CUT:
        order = Order(number, TakeCut(r.text()), open_from)
    elif what == ASSEMBLE:
        order = Order(number, read_assemble(r), open_from)
    else:
        raise WireError("an order that there is not")
    return m.Tell(r.incarnation, order)


def read_assemble(r: FrameReader) -> Assemble:
    number, generation = r.numbers(2)
    pairs = r.array(np.int64, most=r.limits.parts // 2, row=(2,))
    if (pairs < 0).any():
        raise WireError("a number out of range")
    return Assemble(number, generation, r.text(), tuple((worker, boot) for worker, boot in pairs.tolist()))


def read_step(r: FrameReader) -> ApplyStep:
    step, over_kept = r.numbers(2)
    (lr_scale,) = r.reals(1)
    leases = r.array(np.int64, most=r.limits.parts)
    weights = r.array(np.float64, most=r.limits.parts, exact=len(leases))
    if over_kept > 1 or not np.isfinite(weights).all() or (leases < 0).any():
        raise WireError("a number out of range")
    return ApplyStep(
        step, tuple(zip(leases.tolist(), weights.tolist(), strict=True)), lr_scale, bool(over_kept)
    )


# ---- rows and gradients ----


def read_ids(r: FrameReader) -> Ids:
    ids = r.array(np.int64, most=r.limits.ids)
    if len(ids) and ids.min() < 0:
        raise WireError("an id out of range")
    return ids


def write_pull(w: FrameWriter, pull: m.Pull) -> None:
    w.numbers(pull.worker, pull.boot, pull.pull, pull.version, pull.dense)
    if pull.held is not None:
        w.flag(HELD)
        w.numbers(pull.held.version + 1, pull.held.ring)
    for ids, _ in zip(pull.ids, w.limits.widths, strict=True):
        w.array(ids, np.int64, most=w.limits.ids)


def read_pull(r: FrameReader, me: To) -> m.Pull:
    worker, boot, pull, version, dense = r.numbers(5)
    if dense > 1:
        raise WireError("a number out of range")
    held = None
    if r.flags & HELD:
        after, ring = r.numbers(2)
        held = HeldDense(after - 1, ring)
    ids = tuple(read_ids(r) for _ in r.limits.widths)
    return m.Pull(r.incarnation, worker, boot, pull, version, ids, bool(dense), held)


def write_rows(w: FrameWriter, rows: m.Rows) -> None:
    w.numbers(rows.shard, rows.boot, rows.pull, rows.step)
    if rows.made is not None:
        w.flag(MADE)
        w.numbers(rows.made.ring)
        w.reals(rows.made.lr_scale, rows.made.examples, rows.made.gradients)
    write_values(w, rows)
    if rows.state:
        w.flag(STATE)
        for one in w.limits.state:
            write_state_part(w, one, rows.state[one.name])


def read_rows(r: FrameReader, me: To) -> m.Rows:
    shard, boot, pull, step = r.numbers(4)
    made = None
    if r.flags & MADE:
        (ring,) = r.numbers(1)
        made = StepOnSum(ring, *r.reals(3))
    values = read_values(r, shard, dense=made is None)
    state = read_state(r, shard) if r.flags & STATE else {}
    return m.Rows(r.incarnation, shard, boot, pull, step, *values, made, state)


def read_state(r: FrameReader, shard: int) -> dict[str, Tensor]:
    if not r.limits.state:
        raise WireError("a flag that the message does not have")
    return {one.name: read_state_part(r, one, shard) for one in r.limits.state}


def write_state_part(w: FrameWriter, one: StatePart, values: Tensor) -> None:
    dtype = np.int64 if one.counts else np.float32
    w.array(values.reshape(-1).numpy(), dtype, most=max(1, *w.limits.dense))


def read_state_part(r: FrameReader, one: StatePart, shard: int) -> Tensor:
    count = r.limits.dense[shard] if one.each else 1
    values = r.array(np.int64 if one.counts else np.float32, most=count, exact=count)
    return torch.from_numpy(values).view((count,) if one.each else ())


def write_values(w: FrameWriter, values: m.Rows | m.Seen) -> None:
    for rows_UW, width in zip(values.rows, w.limits.widths, strict=True):
        w.floats(rows_UW, most=w.limits.ids, row=(width,))
    w.array(values.dense.numpy(), np.float32, most=w.limits.dense[values.shard])
    write_statistics(w, values.statistics)


def read_values(r: FrameReader, shard: int, dense: bool = True) -> Values:
    if shard >= r.limits.shards:
        raise WireError("a shard that there is not")
    rows = tuple(r.floats(most=r.limits.ids, row=(width,)) for width in r.limits.widths)
    flat = r.array(np.float32, most=r.limits.dense[shard] if dense else 0)
    refuse_half_a_part(r, flat, shard)
    return rows, torch.from_numpy(flat), read_statistics(r)


def refuse_half_a_part(r: FrameReader, dense: Floats, shard: int) -> None:
    """A shard's dense values are all there; or none, where the worker has its own, or another gives them."""
    if len(dense) not in (0, r.limits.dense[shard]):
        raise WireError("an array of another size")


def write_peek(w: FrameWriter, peek: m.Peek) -> None:
    w.numbers(peek.number)
    for ids, _ in zip(peek.ids, w.limits.widths, strict=True):
        w.array(ids, np.int64, most=w.limits.ids)


def read_peek(r: FrameReader, me: To) -> m.Peek:
    (number,) = r.numbers(1)
    return m.Peek(r.incarnation, number, tuple(read_ids(r) for _ in r.limits.widths))


def write_seen(w: FrameWriter, seen: m.Seen) -> None:
    w.numbers(seen.shard, seen.boot, seen.number)
    write_values(w, seen)


def read_seen(r: FrameReader, me: To) -> m.Seen:
    shard, boot, number = r.numbers(3)
    return m.Seen(r.incarnation, shard, boot, number, *read_values(r, shard))


def write_give(w: FrameWriter, give: m.Give) -> None:
    push = give.push
    w.numbers(give.worker, give.lease, push.ring)
    w.reals(push.examples, push.loss)
    for own, width in zip(push.rows, w.limits.widths, strict=True):
        w.array(own.ids_U, np.int64, most=w.limits.ids)
        w.floats(own.sums_UW, most=w.limits.ids, row=(width,))
        w.array(own.counts_U, np.uint32, most=w.limits.ids)
    w.floats(push.dense.numpy(), most=max(w.limits.dense))
    if w.limits.spread and push.ring and len(push.dense):
        w.floats(push.variance.numpy(), most=max(w.limits.dense))
    write_statistics(w, push.buffer_changes)


def read_give(r: FrameReader, me: To) -> m.Give:
    worker, lease, ring = r.numbers(3)
    examples, loss = r.reals(2)
    rows = tuple(read_row_push(r, width) for width in r.limits.widths)
    dense = finite(r.floats(most=r.limits.dense[me.number]))
    refuse_half_a_part(r, dense, me.number)
    variance = read_variance(r, len(dense)) if r.limits.spread and ring and len(dense) else NO_VALUES
    changes = read_statistics(r)
    push = Push(
        rows,
        torch.from_numpy(dense),
        examples,
        loss,
        NO_PREDICTIONS,
        changes,
        ring=ring,
        variance=variance,
    )
    return m.Give(r.incarnation, worker, lease, push)


def read_variance(r: FrameReader, size: int) -> Tensor:
    """Of the gradients in the sum of a ring: a step would be made of nothing without it."""
    variance = finite(r.floats(most=size, exact=size))
    if variance.min() < 0:
        raise WireError("a number out of range")
    return torch.from_numpy(variance)


def read_row_push(r: FrameReader, width: int) -> RowPush:
    ids_U = read_ids(r)
    sums_UW = finite(r.floats(most=len(ids_U), row=(width,), exact=len(ids_U)))
    return RowPush(ids_U, sums_UW, r.array(np.uint32, most=len(ids_U), exact=len(ids_U)))


def write_statistics(w: FrameWriter, values: dict[str, torch.Tensor]) -> None:
    """Of the model, or by how much they changed; those that are there."""
    known = w.limits.statistics
    w.array(np.array([one.name in values for one in known], np.uint8), np.uint8, most=len(known))
    for one in known:
        if one.name in values:
            flat = values[one.name].reshape(-1).numpy()
            w.array(flat, np.int64 if one.counts else np.float32, most=one.size)


def read_statistics(r: FrameReader) -> dict[str, torch.Tensor]:
    statistics = r.limits.statistics
    present = r.array(np.uint8, most=len(statistics), exact=len(statistics))
    if (present > 1).any():
        raise WireError("a number out of range")
    changes = {}
    for one, there in zip(statistics, present, strict=True):
        if there:
            dtype = np.int64 if one.counts else np.float32
            values = r.array(dtype, most=one.size, exact=one.size)
            changes[one.name] = torch.from_numpy(values if one.counts else finite(values)).view(one.shape)
    return changes


def finite(values: Floats) -> Floats:
    """A store refuses what is not, and a shard must not come to that in the middle of a step."""
    flat = values.reshape(-1)
    # The dot product is three times as fast, and finite unless something is wrong or very large.
    with np.errstate(all="ignore"):
        if not np.isfinite(flat.dot(flat)) and not np.isfinite(flat).all():
            raise WireError("a gradient that is not finite")
    return values


KINDS: Final = (
    plain(1, m.Hello, "coordinator"),
    MessageType(2, m.Report, "coordinator", write_report, read_report, CONTENT | WEIGHTS | TIMES),
    plain(3, m.Alive, "coordinator"),
    plain(4, m.ShardHello, "coordinator"),
    plain(5, m.Loaded, "coordinator"),
    plain(6, m.Done, "coordinator"),
    MessageType(7, m.Saved, "coordinator", write_saved, read_saved),
    MessageType(8, m.Seen, "coordinator", write_seen, read_seen),
    plain(16, m.Welcome, "worker"),
    MessageType(17, m.Assignment, "worker", write_work, read_work),
    plain(18, m.Rejoin, "worker"),
    plain(19, m.Over, "worker"),
    MessageType(20, m.Rows, "worker", write_rows, read_rows, MADE | STATE),
    plain(21, m.Taken, "worker"),
    plain(32, m.Load, "shard"),
    MessageType(33, m.Tell, "shard", write_tell, read_tell),
    plain(36, m.IsSaved, "shard"),
    MessageType(37, m.Peek, "shard", write_peek, read_peek),
    MessageType(34, m.Pull, "shard", write_pull, read_pull, HELD),
    MessageType(35, m.Give, "shard", write_give, read_give),
)
