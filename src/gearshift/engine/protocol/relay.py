"""The relay of a machine: it looks like a shard to the machine's workers, and like a single worker to the shards.

    workers of one machine            relay                     each shard, elsewhere
      | RelayRequest(Pull) ------------>| MachinePull(new ids) ------->|
      |<---------- RelayAnswer(Rows) ---|<---------------- MachineRows |
      | RelayRequest(Give) ------------>| MachineGive(sum) ----------->|
      |<--------- RelayAnswer(Taken) ---|<--------------- MachineTaken |
      | RelayRequest(Offer) ----------->| MachineOffer(sum) ---------->|
      |<-------- RelayAnswer(Target) ---|<-------------- MachineTarget |

It holds nothing that cannot be asked for again. Workers send it a heartbeat at every tick and get one back; a worker
that misses it talks to the shards itself, and so does one that has not heard of a relay yet. A relay that restarts
knows nothing of its past, and need not: shards accept each gradient or offer once, whether it comes alone or in a sum.
It decides nothing, and has no clock and no socket.
"""

from __future__ import annotations

from gearshift.engine.protocol.messages import (
    Give,
    MachineRows,
    Out,
    Pull,
    RelayRequest,
    To,
    ToRelay,
)
from gearshift.engine.protocol.relay_gives import RelayGives
from gearshift.engine.protocol.relay_link import MISSED
from gearshift.engine.protocol.relay_messages import Attend, MachineTaken, MachineTarget, RelayHere
from gearshift.engine.protocol.relay_offers import RelayOffers
from gearshift.engine.protocol.relay_pulls import RelayPulls
from gearshift.engine.protocol.replica_messages import Offer


class RelayRole:
    def __init__(self, number: int, boot: int, shards: int) -> None:
        self.number, self.boot, self._shards = number, boot, shards
        self.out: Out = []
        self.incarnation = 0
        self._silent: dict[int, int] = {}  # ticks since a worker was heard, by worker
        self._had_workers = False
        self._asked = self._sent = 0  # ids, in earlier incarnations
        self._begin()

    def _begin(self) -> None:
        shards = range(self._shards)
        self._pulls = [RelayPulls(self.number, self.boot, shard) for shard in shards]
        self._gives = [RelayGives(self.number, self.boot, shard) for shard in shards]
        self._offers = [RelayOffers(self.number, self.boot, shard) for shard in shards]

    @property
    def deserted(self) -> bool:
        """Whether it had workers and all of them are gone."""
        return self._had_workers and not self._silent

    def handle(self, message: ToRelay) -> None:
        match message:
            case Attend(worker):
                self._had_workers = True
                self._silent[worker] = 0
                self.out.append((To("worker", worker), RelayHere(self.number)))
            case RelayRequest():
                self._silent[message.worker] = 0
                self._take_request(message)
            case MachineRows(shard, answer) if self._is_ours(answer.incarnation, answer.boot):
                self._pulls[shard].take(answer)
            case MachineTaken(incarnation, shard, boot) if self._is_ours(incarnation, boot):
                self._gives[shard].taken(message)
            case MachineTarget(incarnation, shard, boot) if self._is_ours(incarnation, boot):
                self._offers[shard].answered(message)
            case _:
                pass  # late
        self._collect()

    def tick(self) -> None:
        """Time has passed: unanswered messages are resent, and workers that are gone are no longer waited for."""
        self._silent = {worker: ticks + 1 for worker, ticks in self._silent.items() if ticks < MISSED}
        for shard in range(self._shards):
            self._pulls[shard].tick()
            self._gives[shard].tick(self._silent)
            self._offers[shard].tick(self._silent)
        self._collect()

    def figures(self) -> dict[str, float]:
        """May be called from any thread. `asked_ids` by workers in rounds of sync; `sent_ids` to shards for them."""
        pulls = list(self._pulls)
        return {
            "attending": len(self._silent),
            "asked_ids": self._asked + sum(one.asked_ids for one in pulls),
            "sent_ids": self._sent + sum(one.sent_ids for one in pulls),
        }

    def _take_request(self, message: RelayRequest) -> None:
        request, shard = message.request, message.shard
        if request.incarnation > self.incarnation:
            self._asked += sum(one.asked_ids for one in self._pulls)
            self._sent += sum(one.sent_ids for one in self._pulls)
            self.incarnation = request.incarnation
            self._begin()
        if request.incarnation < self.incarnation:
            return
        match request:
            case Pull():
                self._pulls[shard].ask(request)
            case Give():
                self._gives[shard].take(request, self._silent)
            case Offer():
                self._offers[shard].take(request, message.choices, self._silent)

    def _is_ours(self, incarnation: int, boot: int) -> bool:
        return incarnation == self.incarnation and boot == self.boot

    def _collect(self) -> None:
        parts: list[RelayPulls | RelayGives | RelayOffers] = [*self._pulls, *self._gives, *self._offers]
        for part in parts:
            self.out += part.out
            part.out = []
