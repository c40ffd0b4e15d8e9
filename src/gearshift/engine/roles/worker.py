"""A worker on the network: asks, pulls from all shards, computes, gives each shard its part, reports, and asks again.

It reports a gradient only when every shard has said that it has its part. Whatever goes wrong, it is told to
start anew, and then it knows nothing of what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gearshift.data.batch import Ids
from gearshift.engine.roles.messages import (
    COORDINATOR,
    Alive,
    Give,
    Hello,
    Measured,
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
    Work,
)
from gearshift.engine.roles.ring import NO_PLACE, Place
from gearshift.shard import Held
from gearshift.sync.messages import Begin
from gearshift.worker import Push

State = Literal["joining", "asking", "pulling", "computing", "giving", "over"]


@dataclass(frozen=True)
class Job:
    """What is to be computed, with what every shard sent."""

    begin: Begin
    answers: tuple[Rows, ...]  # by shard
    epoch: int = 0
    place: Place = NO_PLACE


class WorkerRole:
    def __init__(
        self,
        number: int,
        shards: int,
        new_boot: Callable[[], int],
        ids_of: Callable[[Begin, int], Sequence[tuple[Ids, ...]]],
    ) -> None:
        """`new_boot` gives ever higher numbers; `ids_of` the ids that a lease of an epoch needs, by shard and store."""
        self.number, self.shards, self._new_boot, self._ids_of = number, shards, new_boot, ids_of
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
        self._epoch, self._place = 0, NO_PLACE
        self._held = Held()
        self._report: Report | None = None
        self._answers: dict[int, Rows] = {}
        self._ids: Sequence[tuple[Ids, ...]] = ()
        self._gifts: dict[int, Push] = {}  # by shard, until it has its own
        self._say_again()

    def handle(self, message: ToWorker) -> None:
        match message:
            case Welcome(incarnation, boot) if self.state == "joining" and boot == self.boot:
                self.incarnation = incarnation
                self._ask(None)
            case Work(_, boot, request, begin, epoch, place) if (boot, request) == (self.boot, self.request):
                if self.state == "asking":
                    self._begin_pull(begin, epoch, place)
            case Rows(boot=boot, pull=pull) if (boot, pull) == (self.boot, self._pull):
                if self.state == "pulling":
                    self._take_rows(message)
            case Taken(incarnation, shard, lease) if incarnation == self.incarnation and self._gives(lease):
                self._gifts.pop(shard, None)
                if not self._gifts:
                    self._ask(self._report)
            case Rejoin(boot) if boot == self.boot:
                self._start()
            case Over(boot) if boot == self.boot:
                self.state = "over"
            case _:
                pass  # late, or meant for what this worker was before

    def computed(
        self, job: Job, parts: Sequence[Push], content: Measured | None, seconds: float = 0.0, ring: int = 0
    ) -> None:
        """The gradient of this job, by shard; its dense part is in the sum of `ring`."""
        if job is not self.job:
            return  # it had to start anew meanwhile
        self._held = replace(self._held, ring=ring)
        self._report = self._done(job, content=content, seconds=seconds, ring=ring)
        self._gifts = dict(enumerate(parts))
        self.state, self.job = "giving", None
        self._say_again()

    def failed(self, job: Job, reason: str) -> None:
        """There is no gradient that could be used."""
        if job is self.job:
            self.job = None
            self._ask(self._done(job, refused=reason))

    def broke(self, job: Job, reason: str) -> None:
        """The ring has no sum; the work is to be given out again."""
        if job is self.job:
            self.job = None
            head = self.incarnation, self.number, self.boot, self.request + 1
            self._ask(Report(*head, refused=reason, ring=job.place.ring))

    def tick(self) -> None:
        """Time has passed: what was not answered is said again."""
        self._say_again()

    def _done(self, job: Job, **more: Any) -> Report:
        version = min(answer.step for answer in job.answers)
        lease = job.begin.lease.number
        return Report(
            self.incarnation, self.number, self.boot, self.request + 1, lease, version=version, **more
        )

    def _ask(self, report: Report | None) -> None:
        self.request += 1
        self._report = report or Report(self.incarnation, self.number, self.boot, self.request)
        self.state = "asking"
        self._say_again()

    def _begin_pull(self, begin: Begin, epoch: int, place: Place) -> None:
        self.state, self._begin, self._epoch, self._place = "pulling", begin, epoch, place
        self._pull += 1
        self._answers, self._ids = {}, self._ids_of(begin, epoch)
        self._say_again()

    def _take_rows(self, rows: Rows) -> None:
        self._answers[rows.shard] = rows
        if len(self._answers) < self.shards:
            return
        assert self._begin is not None
        answers = tuple(self._answers[shard] for shard in range(self.shards))
        steps = {answer.step for answer in answers}
        whole = self._place.ring and len(steps) == 1  # else the parts are of several steps
        self._held = Held(steps.pop()) if whole else Held()
        self.state, self.job = "computing", Job(self._begin, answers, self._epoch, self._place)

    def _gives(self, lease: int) -> bool:
        return self.state == "giving" and self._report is not None and self._report.lease == lease

    def _say_again(self) -> None:
        match self.state:
            case "joining":
                self.out.append((COORDINATOR, Hello(self.number, self.boot)))
            case "asking":
                assert self._report is not None
                self.out.append((COORDINATOR, self._report))
            case "pulling":
                self._pull_missing()
            case "giving":
                self._give_missing()
        if self.state in ("pulling", "computing", "giving"):
            self.out.append((COORDINATOR, Alive(self.incarnation, self.number, self.boot)))

    def _pull_missing(self) -> None:
        assert self._begin is not None
        for shard in range(self.shards):
            if shard not in self._answers:
                version, ids = self._begin.version, self._ids[shard]
                held = self._held if self._place.ring else None
                pull = Pull(self.incarnation, self.number, self.boot, self._pull, version, ids, held)
                self.out.append((To("shard", shard), pull))

    def _give_missing(self) -> None:
        assert self._report is not None and self._report.lease is not None
        for shard, push in self._gifts.items():
            give = Give(self.incarnation, self.number, self._report.lease, push)
            self.out.append((To("shard", shard), give))
