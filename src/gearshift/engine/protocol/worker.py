"""A worker on the network: asks for work, pulls from all shards, computes, pushes to each shard, and reports.

It reports a gradient only when every shard has acknowledged its part. If anything goes wrong it must rejoin, and
then starts from scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from gearshift.engine.protocol.all_reduce import NO_GROUP, GroupRank
from gearshift.engine.protocol.messages import (
    COORDINATOR,
    Alive,
    Assignment,
    ComingRange,
    Give,
    GroupBroken,
    Hello,
    LeaseDone,
    LeaseRefused,
    Message,
    Out,
    Outcome,
    Over,
    Prefetch,
    Pull,
    Rejoin,
    RelayAnswer,
    Report,
    Rows,
    Taken,
    To,
    ToWorker,
    WantedRows,
    Welcome,
)
from gearshift.engine.protocol.relay_link import RelayLink
from gearshift.engine.protocol.relay_messages import Attend, RelayHere
from gearshift.engine.protocol.replica_exchange import Exchanger
from gearshift.engine.protocol.replica_messages import Go, Meet, Offer, OfferKind, Target
from gearshift.engine.protocol.resend import ResendBackoff
from gearshift.parameters.push import ShardPush, group_of
from gearshift.parameters.shard import HeldDense
from gearshift.sync.events import Begin
from gearshift.training.ended import BatchMeasures

State = Literal["joining", "asking", "pulling", "computing", "held", "giving", "over"]


@dataclass(frozen=True)
class Job:
    """A lease to compute, with the answers of all shards."""

    begin: Begin
    answers: tuple[Rows, ...]  # by shard
    epoch: int = 0
    flat: Tensor | None = None  # the weights of the worker's replica, if it has one
    place: GroupRank = NO_GROUP


@dataclass(frozen=True)
class ComputedGradient:
    """The gradient of a job, kept until its step may be made."""

    job: Job
    parts: Sequence[ShardPush]  # by shard
    content: BatchMeasures | None
    seconds: float

    def done(self) -> LeaseDone:
        """The outcome to report."""
        lease, version = self.job.begin.lease.number, min(answer.step for answer in self.job.answers)
        group = self.job.place.group if self.job.place.relayed else group_of(self.parts[0])
        return LeaseDone(lease, version, self.seconds, self.content, group)


class WorkerRole:
    def __init__(
        self,
        number: int,
        shards: int,
        new_boot: Callable[[], int],
        ids_of: Callable[[Begin, int], Sequence[WantedRows]],
        replicas: Exchanger,
        ids_ahead: Callable[[Begin, int, ComingRange], Sequence[WantedRows]] = lambda *_: (),
        relay_of: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`new_boot` returns increasing numbers; `ids_of` the rows that a lease needs, by shard.

        `ids_ahead` returns the same for a coming range, given the current lease; nothing if reading it costs too much.
        `relay_of` returns the number of the relay on this machine, if there is one.
        """
        self._relay = RelayLink(relay_of)
        self.number, self.shards, self._new_boot, self._ids_of = number, shards, new_boot, ids_of
        self._ids_ahead = ids_ahead
        self.replicas = replicas
        self.out: Out = []
        self.job: Job | None = (
            None  # set when there is something to compute; the caller computes it and calls `computed`
        )
        self._pull = 0
        self._start()

    def _start(self) -> None:
        self.state: State = "joining"
        self.boot, self.incarnation, self.request = self._new_boot(), 0, 0
        self.job = None
        self._work: Assignment | None = None
        self._place = NO_GROUP  # the place in the assignment, unless replicas took over
        self._wanted: Sequence[WantedRows] = ()  # by shard
        self._held = HeldDense()
        self._unanswered: dict[int, Pull | Give] = {}  # by shard
        self._answers: dict[int, Rows] = {}  # answers to the newest pull, by shard
        self._result: ComputedGradient | None = None
        self._outcome: Outcome | None = None  # the outcome of the last lease, to be reported
        self.replicas.restart(self.boot)
        self._send_first()

    def handle(self, message: ToWorker) -> None:
        match message:
            case Welcome(incarnation, boot) if self.state == "joining" and boot == self.boot:
                self.incarnation = self.replicas.incarnation = incarnation
                self._ask(None)
            case Assignment() if (message.boot, message.request) == (self.boot, self.request):
                if self.state == "asking":
                    self._begin_work(message)
            case Rows(boot=boot, pull=pull) if (boot, pull) == (self.boot, self._pull):
                if self.state == "pulling":
                    self._answers[message.shard] = message
                    self._unanswered.pop(message.shard, None)
            case Taken(incarnation, shard, lease) if incarnation == self.incarnation:
                give = self._unanswered.get(shard)
                if isinstance(give, Give) and give.lease == lease:
                    self._taken(shard, spoiled=message.spoiled)
            case RelayAnswer(relay, _, answer):
                self._relay.heard(relay)
                self.handle(answer)
                return
            case RelayHere(relay):
                self._relay.heard(relay)
            case Target() | Meet() | Go() if message.boot == self.boot:
                if message.incarnation == self.incarnation:
                    self._handle_of_replicas(message)
            case Rejoin(boot) if boot == self.boot:
                self._start()
            case Over(boot) if boot == self.boot:
                self.state = "over"
            case _:
                pass  # late, or sent to an earlier boot of this worker
        self._continue()

    def _taken(self, shard: int, *, spoiled: bool) -> None:
        if spoiled:
            self._ask(GroupBroken(self._place.group, "a shard has another sum of gradients"))
        else:
            del self._unanswered[shard]

    def _handle_of_replicas(self, message: Target | Meet | Go) -> None:
        plan = self.replicas.held.plan
        self.replicas.handle(message)
        if plan is not self.replicas.held.plan and self.state == "pulling":
            self._start_pull()  # the values already pulled no longer apply

    # ---- results of the computation ----

    def computed(
        self, job: Job, parts: Sequence[ShardPush], content: BatchMeasures | None, seconds: float = 0.0
    ) -> None:
        """The gradient of this job, by shard."""
        if job is not self.job:
            return  # the worker had to rejoin in the meantime
        self._result = ComputedGradient(job, parts, content, seconds)
        self.state, self.job = "held", None
        self._continue()

    def failed(self, job: Job, reason: str) -> None:
        """The job has no usable gradient."""
        if job is self.job:
            self.job = None
            self._ask(LeaseRefused(job.begin.lease.number, reason))

    def broke(self, job: Job, reason: str) -> None:
        """The all-reduce group has no sum; the lease must be reissued."""
        if job is self.job:
            self.job = None
            self._ask(GroupBroken(job.place.group, reason))

    # ---- time ----

    def tick(self) -> None:
        """Time has passed: unanswered messages are resent."""
        before, relay = self._relay.to, self._relay.tick()
        if before is not None and self._relay.to is None:  # it is gone: everything goes to the shards
            self._backoff.restart()
            self.replicas.resend_soon()
        if relay is not None and self.state not in ("joining", "over"):
            self.out.append((relay, Attend(self.number, self.boot)))
        self.replicas.tick(asking=self.state == "asking")
        self._send(large=self._backoff.due())
        self._continue()

    def wake(self) -> None:
        """Called when the replica is due to exchange."""
        self.replicas.wake()
        self._continue()

    # ---- state transitions ----

    def _continue(self) -> None:
        """Proceeds as far as rows, replica and shards allow."""
        if self.state == "pulling" and not self._unanswered and self.replicas.held.ready:
            self._start_job()
        if self.state == "held" and self.replicas.may_step:
            self._give()
        if self.state == "giving" and not self._unanswered and not self.replicas.in_the_way:
            self._ask(self._outcome)
        self.out += [self._routed(to, message) for to, message in self.replicas.take_out()]

    def _ask(self, outcome: Outcome | None) -> None:
        """Reports the outcome of the last lease, if there was one, and asks for the next."""
        self.request += 1
        self._outcome, self.state = outcome, "asking"
        self._send_first()

    def _begin_work(self, work: Assignment) -> None:
        self.state, self._work, self._place = "pulling", work, work.place
        self._wanted = self._ids_of(work.begin, work.epoch)
        self.replicas.busy(work.plan)
        self._start_pull()

    def _start_pull(self) -> None:
        assert self._work is not None
        replicated = self.replicas.held.replicated
        if replicated:
            self._place = NO_GROUP  # the group is from before the switch
        self._pull += 1
        self._answers = {}
        head = self.incarnation, self.number, self.boot, self._pull, self._work.begin.version
        held = self._held if self._place.ring else None
        self._unanswered = {
            s: Pull(*head, *self._wanted[s], not replicated, held, self._work.begin.extrapolation)
            for s in range(self.shards)
        }
        self._send_first()

    def _start_job(self) -> None:
        assert self._work is not None
        answers = tuple(self._answers[shard] for shard in range(self.shards))
        steps = {answer.step for answer in answers}
        whole = self._place.ring and len(steps) == 1  # else the parts belong to different steps
        self._held = HeldDense(steps.pop()) if whole else HeldDense()
        replica = self.replicas.held.replica
        flat = None if replica is None else replica.flat
        self.state = "computing"
        self.job = Job(self._work.begin, answers, self._work.epoch, flat, self._place)
        if (
            self._work.ahead is not None
        ):  # while the worker computes, the shards read the rows of its next lease
            coming = self._ids_ahead(self._work.begin, self._work.epoch, self._work.ahead)
            for shard, wanted in enumerate(coming):
                self.out.append((To("shard", shard), Prefetch(self.incarnation, self.number, wanted.ids)))

    def _give(self) -> None:
        """Makes the step: the dense part here if there is a replica; the rest is sent to the shards."""
        result, self._result = self._result, None
        assert result is not None and self._work is not None
        done, parts = result.done(), result.parts
        if self.replicas.held.replicated:
            if done.group:
                self._ask(GroupBroken(done.group, "replicas took over"))
                return
            parts = self.replicas.step(parts, self._work.rate)
        self._held = replace(self._held, group=group_of(parts[0]))
        self._outcome, self.replicas.lease, self.state = done, done.lease, "giving"
        head = self.incarnation, self.number, done.lease
        self._unanswered = {shard: Give(*head, part) for shard, part in enumerate(parts)}
        self._send_first()

    # ---- sending ----

    def _send_first(self) -> None:
        self._backoff = ResendBackoff()
        self._send(large=True)

    def _send(self, *, large: bool) -> None:
        """Sends a heartbeat and resends what has no answer yet; `large` messages only if they are due."""
        match self.state:
            case "joining":
                self.out.append((COORDINATOR, Hello(self.number, self.boot)))
            case "asking" if large or not _reports_content(self._outcome):
                head = self.incarnation, self.number, self.boot, self.request
                self.out.append((COORDINATOR, Report(*head, self._outcome)))
                return
            case "pulling" | "giving" if large:
                for shard, message in self._unanswered.items():
                    self.out.append(self._routed(To("shard", shard), message))
        if self.state not in ("joining", "over"):
            self.out.append((COORDINATOR, Alive(self.incarnation, self.number, self.boot)))

    def _routed(self, to: To, message: Message) -> tuple[To, Message]:
        """By way of the relay, if there is one and it can combine this message with those of other workers."""
        match message:
            case Pull() | Give() if self._place.relayed:
                return self._relay.routed(self.number, to, message)
            case Offer(kind=kind) if kind is not OfferKind.FORK:
                return self._relay.routed(self.number, to, message, self.replicas.held.plan.choices)
        return to, message


def _reports_content(outcome: Outcome | None) -> bool:
    return isinstance(outcome, LeaseDone) and outcome.content is not None
