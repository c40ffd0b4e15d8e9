"""A relay's gradients for one shard: in a round of sync the gradients of a machine's workers cross the link as one sum.

All leases of such a round count together or not at all (`all_reduce.py`), so it makes no difference which of them are
summed. The relay waits for the gradients of all its workers, but not long: what has arrived by then is sent as one sum,
and the rest as another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gearshift.engine.protocol.messages import Give, Out, RelayAnswer, Taken, To
from gearshift.engine.protocol.relay_messages import MachineGive, MachineTaken
from gearshift.engine.protocol.resend import ResendBackoff
from gearshift.parameters.merged_rows import merge_rows
from gearshift.parameters.push import Push, RowPush

HOLD = 8  # ticks for which the first gradient waits for the others
KEPT = 256  # leases whose fate the relay remembers, to answer again


@dataclass
class SumInFlight:
    message: MachineGive
    backoff: ResendBackoff = field(default_factory=ResendBackoff)


class RelayGives:
    def __init__(self, relay: int, boot: int, shard: int) -> None:
        self._relay, self._boot, self._shard = relay, boot, shard
        self.out: Out = []
        self._number = 0  # of the last sum
        self._held: dict[int, Give] = {}  # by lease
        self._ticks = 0  # since the first of them came
        self._in_flight: dict[int, SumInFlight] = {}  # by number
        self._ended: dict[int, bool] = {}  # by lease, the newest: whether it was spoiled

    def take(self, give: Give, workers: Collection[int]) -> None:
        """`workers` are those of the machine that are alive."""
        if give.lease in self._ended:
            self._answer(give.incarnation, give.lease, give.worker)
            return
        if any((give.lease, give.worker) in sent.message.leases for sent in self._in_flight.values()):
            return
        # A worker has one lease at a time: an older one has ended without its gradient.
        self._held = {lease: held for lease, held in self._held.items() if held.worker != give.worker}
        self._held[give.lease] = give
        if {held.worker for held in self._held.values()} >= set(workers):
            self._send()

    def tick(self, workers: Collection[int]) -> None:
        for sent in self._in_flight.values():
            if sent.backoff.due():
                self.out.append((To("shard", self._shard), sent.message))
        self._ticks = self._ticks + 1 if self._held else 0
        missing = set(workers) - {held.worker for held in self._held.values()}
        if self._held and (self._ticks >= HOLD or not missing):
            self._send()

    def taken(self, message: MachineTaken) -> None:
        sent = self._in_flight.pop(message.number, None)
        if sent is None:
            return
        for lease, worker in sent.message.leases:
            self._ended[lease] = message.spoiled
            self._answer(sent.message.incarnation, lease, worker)
        while len(self._ended) > KEPT:
            del self._ended[next(iter(self._ended))]

    def _send(self) -> None:
        self._number, self._ticks = self._number + 1, 0
        gives = [self._held[lease] for lease in sorted(self._held)]
        self._held = {}
        leases = tuple((give.lease, give.worker) for give in gives)
        push = sum_of([give.push for give in gives if isinstance(give.push, Push)])
        head = gives[0].incarnation, self._relay, self._boot, self._number
        sent = self._in_flight[self._number] = SumInFlight(MachineGive(*head, leases, push))
        self.out.append((To("shard", self._shard), sent.message))

    def _answer(self, incarnation: int, lease: int, worker: int) -> None:
        taken = Taken(incarnation, self._shard, lease, spoiled=self._ended[lease])
        self.out.append((To("worker", worker), RelayAnswer(self._relay, self._shard, taken)))


def sum_of(pushes: Sequence[Push]) -> Push:
    """Their sum, in this order. A push without examples, whose gradient was not finite, adds nothing."""
    counted = [push for push in pushes if push.examples > 0]
    if len(counted) < 2:
        return counted[0] if counted else pushes[0]
    rows = tuple(
        _rows_of([(push.rows[i], 1.0, push.examples) for push in counted])
        for i in range(len(counted[0].rows))
    )
    dense = counted[0].dense.clone()
    for push in counted[1:]:
        dense.add_(push.dense)
    return replace(
        counted[0],
        rows=rows,
        dense=dense,
        examples=sum(push.examples for push in counted),
        loss=sum(push.loss for push in counted),
        buffer_changes={
            name: _change([push.buffer_changes[name] for push in counted])
            for name in counted[0].buffer_changes
        },
        gradients=len(counted),
    )


def _rows_of(parts: list[tuple[RowPush, float, float]]) -> RowPush:
    merged = merge_rows(parts, 1)
    return RowPush(merged.ids_U, merged.sums_UW, merged.counts_U, tables_U=merged.tables_U)


def _change(changes: list[Tensor]) -> Tensor:
    stacked = torch.stack(changes)
    return stacked.sum(0) if changes[0].is_floating_point() else stacked.amax(0)
