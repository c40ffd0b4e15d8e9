"""The kinds of messages that replicas need: plans, meetings, and values that are offered and answered.

Weights and optimizer states travel whole, also where rows and gradients are halved: what is lost would not come back.
They may be anything, also not finite: a replica that went astray must not make others wait for it for ever.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from gearshift.engine.protocol.messages import To
from gearshift.engine.protocol.replica_messages import Go, Meet, Met, Offer, OfferKind, Target
from gearshift.engine.wire import message_types
from gearshift.engine.wire.frames import FrameReader, FrameWriter
from gearshift.engine.wire.limits import WireError
from gearshift.parameters.replicas.figures import Counts


def write_state(w: FrameWriter, state: dict[str, Tensor]) -> None:
    """Of an optimizer; the parts of it that are there."""
    known = w.limits.state
    w.array(np.array([one.name in state for one in known], np.uint8), np.uint8, most=len(known))
    for one in known:
        if one.name in state:
            message_types.write_state_part(w, one, state[one.name])


def read_state(r: FrameReader, shard: int) -> dict[str, Tensor]:
    known = r.limits.state
    present = r.array(np.uint8, most=len(known), exact=len(known))
    if (present > 1).any():
        raise WireError("a number out of range")
    there = (one for one, is_there in zip(known, present, strict=True) if is_there)
    return {one.name: message_types.read_state_part(r, one, shard) for one in there}


def read_flat(r: FrameReader, shard: int) -> Tensor:
    flat = r.array(np.float32, most=r.limits.dense[shard])
    message_types.refuse_half_a_part(r, flat, shard)
    return torch.from_numpy(flat)


def write_offer(w: FrameWriter, offer: Offer) -> None:
    w.numbers(offer.worker, offer.boot, offer.number, offer.generation)
    w.numbers(offer.meeting, offer.assembly, offer.kind, offer.present)
    w.reals(offer.weight)
    w.array(offer.flat.numpy(), np.float32, most=max(w.limits.dense))
    write_state(w, offer.state)


def read_offer(r: FrameReader, me: To) -> Offer:
    worker, boot, number, generation, meeting, assembly, kind, present = r.numbers(8)
    (weight,) = r.reals(1)
    if kind not in set(OfferKind) or present > 1:
        raise WireError("a number out of range")
    return Offer(
        r.incarnation,
        worker,
        boot,
        number,
        generation,
        meeting,
        assembly,
        OfferKind(kind),
        bool(present),
        weight,
        read_flat(r, me.number),
        read_state(r, me.number),
    )


def write_target(w: FrameWriter, target: Target) -> None:
    w.numbers(target.shard, target.boot, target.number)
    w.array(target.flat.numpy(), np.float32, most=max(w.limits.dense))
    write_state(w, target.state)


def read_target(r: FrameReader, me: To) -> Target:
    shard, boot, number = r.numbers(3)
    if shard >= r.limits.shards:
        raise WireError("a shard that there is not")
    return Target(r.incarnation, shard, boot, number, read_flat(r, shard), read_state(r, shard))


def write_meet(w: FrameWriter, meet: Meet) -> None:
    w.numbers(meet.boot, meet.number, meet.assembly, meet.show)
    message_types.write_plan(w, meet.plan)


def read_meet(r: FrameReader, me: To) -> Meet:
    boot, number, assembly, show = r.numbers(4)
    if show > 1:
        raise WireError("a number out of range")
    return Meet(r.incarnation, boot, number, assembly, bool(show), message_types.read_plan(r))


def write_go(w: FrameWriter, go: Go) -> None:
    w.numbers(go.boot, go.number)
    message_types.write_plan(w, go.plan)


def read_go(r: FrameReader, me: To) -> Go:
    boot, number = r.numbers(2)
    return Go(r.incarnation, boot, number, message_types.read_plan(r))


def write_met(w: FrameWriter, met: Met) -> None:
    counts = met.counts
    w.numbers(met.worker, met.boot, met.number, 0 if met.lease is None else met.lease + 1)
    w.numbers(counts.batches, counts.in_flight, counts.exchanges)
    w.reals(counts.bytes)


def read_met(r: FrameReader, me: To) -> Met:
    worker, boot, number, lease = r.numbers(4)
    counts = Counts(*r.numbers(3), *r.reals(1))
    return Met(r.incarnation, worker, boot, number, lease - 1 if lease else None, counts)


REPLICA_KINDS: Final = (
    message_types.MessageType(9, Met, "coordinator", write_met, read_met),
    message_types.MessageType(22, Target, "worker", write_target, read_target),
    message_types.MessageType(23, Meet, "worker", write_meet, read_meet),
    message_types.MessageType(24, Go, "worker", write_go, read_go),
    message_types.MessageType(38, Offer, "shard", write_offer, read_offer),
)
