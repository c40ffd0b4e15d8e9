"""A worker on the network: asks, pulls from all shards, computes, gives each shard its part, reports, and asks again.

It reports a gradient only when every shard has said that it has its part. Whatever goes wrong, it is told to
start anew, and then it knows nothing of what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from gearshift.data.batch import Ids
from gearshift.engine.protocol.all_reduce import NO_GROUP, GroupRank
from gearshift.engine.protocol.messages import (
    COORDINATOR,
    Alive,
    Assignment,
    Give,
    Hello,
    Out,
    Over,
    Pull,
    Rejoin,
    Report,
    Rows,
    Taken,
    To,
    ToWorker,
    Welcome,
)
from gearshift.engine.protocol.replica_exchange import Exchanger
from gearshift.engine.protocol.replica_messages import Go, Meet, Target
from gearshift.engine.protocol.resend import ResendBackoff
from gearshift.parameters.push import Push
from gearshift.parameters.shard import HeldDense
from gearshift.sync.messages import Begin
from gearshift.training.ended import BatchMeasures

State = Literal["joining", "asking", "pulling", "computing", "held", "giving", "over"]


@dataclass(frozen=True)
class Job:
    """What is to be computed, with what every shard sent."""

    begin: Begin
    answers: tuple[Rows, ...]  # by shard
    epoch: int = 0
    flat: Tensor | None = None  # the worker's own dense weights, where the shards' are not asked for
    place: GroupRank = NO_GROUP


@dataclass(frozen=True)
class ComputedGradient:
    """Of a job, until nothing speaks against its step."""

    job: Job
    parts: Sequence[Push]  # by shard
    content: BatchMeasures | None
    seconds: float
    ring: int


class WorkerRole:
    def __init__(
        self,
        number: int,
        shards: int,
        new_boot: Callable[[], int],
        ids_of: Callable[[Begin, int], Sequence[tuple[Ids, ...]]],
        replicas: Exchanger,
    ) -> None:
        """`new_boot` gives ever higher numbers; `ids_of` the ids that a lease of an epoch needs, by shard and store."""
        self.number, self.shards, self._new_boot, self._ids_of = number, shards, new_boot, ids_of
        self.replicas = replicas
        self.out: Out = []
        self.job: Job | None = (
            None  # set when there is something to compute; whoever computes calls `computed`
        )
        self._pull = 0
        self._start()

    def _start(self) -> None:
        self.state: State = "joining"
        self.boot, self.incarnation, self.request = self._new_boot(), 0, 0
        self.job = None
        self._begin: Begin | None = None
        self._epoch, self._rate, self._place = 0, 1.0, NO_GROUP
        self._held = HeldDense()
        self._report: Report | None = None
        self._result: ComputedGradient | None = None
        self._answers: dict[int, Rows] = {}
        self._ids: Sequence[tuple[Ids, ...]] = ()
        self._gifts: dict[int, Push] = {}  # by shard, until it has its own
        self.replicas.restart(self.boot)
        self._say_first()

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
            case Taken(incarnation, shard, lease) if incarnation == self.incarnation and self._gives(lease):
                self._gifts.pop(shard, None)
            case Target() | Meet() | Go() if message.boot == self.boot:
                if message.incarnation == self.incarnation:
                    self._of_replicas(message)
            case Rejoin(boot) if boot == self.boot:
                self._start()
            case Over(boot) if boot == self.boot:
                self.state = "over"
            case _:
                pass  # late, or meant for what this worker was before
        self._go_on()

    def computed(
        self,
        job: Job,
        parts: Sequence[Push],
        content: BatchMeasures | None,
        seconds: float = 0.0,
        ring: int = 0,
    ) -> None:
        """The gradient of this job, by shard; its dense part is in the sum of `ring`."""
        if job is not self.job:
            return  # it had to start anew meanwhile
        self._result = ComputedGradient(job, parts, content, seconds, ring)
        self.state, self.job = "held", None
        self._go_on()

    def failed(self, job: Job, reason: str) -> None:
        """There is no gradient that could be used."""
        if job is self.job:
            self.job = None
            self._ask(self._done(job, refused=reason))

    def broke(self, job: Job, reason: str) -> None:
        """The ring has no sum; the work is to be given out again."""
        if job is self.job:
            self.job = None
            self._ask_again(reason, job.place.ring)

    def tick(self) -> None:
        """Time has passed: what was not answered is said again."""
        self.replicas.tick(asking=self.state == "asking")
        self._say(large=self._again.due())
        self._go_on()

    def wake(self) -> None:
        """When its replica is due to exchange."""
        self.replicas.wake()
        self._go_on()

    def _go_on(self) -> None:
        """As far as rows, replica and shards let it."""
        if self.state == "pulling" and len(self._answers) == self.shards and self.replicas.ready:
            self._begin_job()
        if self.state == "held" and self.replicas.may_step:
            self._give()
        if self.state == "giving" and not self._gifts and not self.replicas.in_the_way:
            self._ask(self._report)
        self.out += self.replicas.said()

    def _of_replicas(self, message: Target | Meet | Go) -> None:
        plan = self.replicas.plan
        self.replicas.handle(message)
        if plan is not self.replicas.plan and self.state == "pulling":
            self._pull_anew()  # other values are needed now

    def _give(self) -> None:
        """The step is made: the dense part here if there is a replica, the rest by the shards."""
        result, self._result = self._result, None
        assert result is not None
        if self.replicas.replicated and result.ring:
            self._ask_again("replicas took over", result.ring)
            return
        parts = result.parts
        if self.replicas.replicated:
            parts = self.replicas.step(parts, self._rate)
        self._held = replace(self._held, ring=result.ring)
        self._report = self._done(
            result.job, content=result.content, seconds=result.seconds, ring=result.ring
        )
        self.replicas.lease = self._report.lease
        self._gifts = dict(enumerate(parts))
        self.state = "giving"
        self._say_first()

    def _done(self, job: Job, **more: Any) -> Report:
        version = min(answer.step for answer in job.answers)
        lease = job.begin.lease.number
        return Report(
            self.incarnation, self.number, self.boot, self.request + 1, lease, version=version, **more
        )

    def _ask_again(self, reason: str, ring: int) -> None:
        """A gradient of that ring does not count."""
        head = self.incarnation, self.number, self.boot, self.request + 1
        self._ask(Report(*head, refused=reason, ring=ring))

    def _ask(self, report: Report | None) -> None:
        self.request += 1
        self._report = report or Report(self.incarnation, self.number, self.boot, self.request)
        self.state = "asking"
        self._say_first()

    def _begin_work(self, work: Assignment) -> None:
        self.state, self._begin, self._epoch, self._rate = "pulling", work.begin, work.epoch, work.rate
        self._place = work.place
        self._ids = self._ids_of(work.begin, work.epoch)
        self.replicas.busy(work.plan)
        self._pull_anew()

    def _pull_anew(self) -> None:
        if self.replicas.replicated:
            self._place = NO_GROUP  # of a ring from before the switch
        self._pull += 1
        self._answers = {}
        self._say_first()

    def _begin_job(self) -> None:
        assert self._begin is not None
        answers = tuple(self._answers[shard] for shard in range(self.shards))
        steps = {answer.step for answer in answers}
        whole = self._place.ring and len(steps) == 1  # else the parts are of several steps
        self._held = HeldDense(steps.pop()) if whole else HeldDense()
        replica = self.replicas.replica
        flat = None if replica is None else replica.flat
        self.state, self.job = "computing", Job(self._begin, answers, self._epoch, flat, self._place)

    def _gives(self, lease: int) -> bool:
        return self.state == "giving" and self._report is not None and self._report.lease == lease

    def _say_first(self) -> None:
        self._again = ResendBackoff()
        self._say(large=True)

    def _say(self, *, large: bool) -> None:
        """What it waits for, to whom it concerns; and that it lives."""
        match self.state:
            case "joining":
                self.out.append((COORDINATOR, Hello(self.number, self.boot)))
            case "asking" if large or (self._report is not None and self._report.content is None):
                assert self._report is not None
                self.out.append((COORDINATOR, self._report))
                return
            case "pulling" if large:
                self._pull_missing()
            case "giving" if large:
                self._give_missing()
        if self.state not in ("joining", "over"):
            self.out.append((COORDINATOR, Alive(self.incarnation, self.number, self.boot)))

    def _pull_missing(self) -> None:
        assert self._begin is not None
        for shard in range(self.shards):
            if shard not in self._answers:
                version, ids = self._begin.version, self._ids[shard]
                head = self.incarnation, self.number, self.boot, self._pull
                held = self._held if self._place.ring else None
                pull = Pull(*head, version, ids, not self.replicas.replicated, held)
                self.out.append((To("shard", shard), pull))

    def _give_missing(self) -> None:
        assert self._report is not None and self._report.lease is not None
        for shard, push in self._gifts.items():
            give = Give(self.incarnation, self.number, self._report.lease, push)
            self.out.append((To("shard", shard), give))
