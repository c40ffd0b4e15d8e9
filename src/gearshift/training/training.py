"""Training: an engine runs workers over the data, epoch by epoch; steps are measured and evaluated, until the end.

Progressive measures count every example once, before it trains. Everything that a resumed run needs to go on
(with one worker, or in sync, bit for bit) is in `Progress`, in the learners and in torch's random state. Nothing here
writes a file or prints: it tells its `Observer`.
"""

from __future__ import annotations

import json
import math
import queue
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any, Literal

from torch import Tensor

from gearshift.cluster_model.injected_delay import Pacer
from gearshift.data.dataset import Dataset
from gearshift.data.prefetch import prefetched
from gearshift.embedding.lookup import IndexedBatch
from gearshift.errors import UserError
from gearshift.optim.spread import effective_number
from gearshift.optim.variance_reduced import VarianceReduced
from gearshift.parameters.replicas.figures import Counts, summary
from gearshift.parameters.replicas.group import rule_for
from gearshift.sync.automatic import Automatic
from gearshift.sync.messages import Action, Event
from gearshift.sync.registry import make_auto, resolve
from gearshift.sync.replicated import choices_of
from gearshift.sync.strategy import Strategy
from gearshift.training.ended import BatchMeasures, Ended
from gearshift.training.engine import Engine, Log, NotFinite, Observer
from gearshift.training.evaluation import evaluate
from gearshift.training.learner import Learner
from gearshift.training.plan import Plan, check_whole
from gearshift.training.progress import Progress, add_to
from gearshift.training.requests import ResizeRequest, SwitchRequest
from gearshift.training.timing import Moment

DAY = 86_400  # seconds
MOST_WORKERS = 1000


class Training:
    """Drives `learner`, and a baseline beside it, over `train` as `plan` says."""

    def __init__(
        self,
        plan: Plan,
        learner: Learner,
        engine: Engine,
        train: Dataset,
        valid: Dataset | None = None,
        baseline: Learner | None = None,
    ) -> None:
        self.plan, self.learner, self.baseline, self.engine = plan, learner, baseline, engine
        self.workers = plan.workers  # as of now
        self.train, self.valid = train, valid
        self.strategy_name = "sync" if plan.strategy == "auto" else plan.strategy
        self.strategy_settings = {} if plan.strategy == "auto" else dict(plan.strategy_settings)  # as asked
        self.strategy = self.make(plan.strategy, plan.strategy_settings)
        self.automatic = self._automatic(plan.strategy, plan.strategy_settings)
        for planned in plan.switches:  # refused now rather than in the middle of the night
            self._check_same_batch(planned.settings)
            self.make(planned.strategy, planned.settings)
            if planned.at.day is not None and train.schema.time is None:
                raise UserError(
                    f"a switch at day {planned.at.day} needs data.time: the log has no days without it"
                )
        self.pacer = Pacer(plan.injected) if plan.injected else None
        self.progress = Progress()
        self.data_warning: str | None = None  # a sentence about how validation data were cut
        self.replica_counts: dict[int, Counts] = {}  # as of now; `progress.exchanges` as of the last settling
        self.block_velocity: Tensor | None = (
            None  # of bmuf's global step when replicas were last settled or folded
        )
        self.total = plan.epochs * max(1, train.estimate())
        self.log: Log | None = None  # where events and actions are written
        self.first_lease = 0  # the number with which leases of this epoch begin
        self.requests: queue.SimpleQueue[SwitchRequest | ResizeRequest] = queue.SimpleQueue()
        # Where this step stands in the data; None between steps, when `progress` has what was noted last.
        self.open_work: Callable[[], tuple[int, list[list[int]]]] | None = None
        # Puts what replicas agree on where it is evaluated and saved; False: not yet, ask again after the next step.
        self.settle: Callable[[], bool] = lambda: True
        self._scale = 1.0  # of the learning rates, in the last step
        self._plain = 0, ""  # the last step of too few gradients: its pass, and why
        self.plain_warning: str | None = None  # the sentence about such steps, once it was told

    @property
    def step(self) -> int:
        return self.learner.server.step

    @property
    def moment(self) -> Moment:
        return Moment(self.step, self.progress.seconds, self.progress.examples / self.total)

    def make(self, name: str, settings: dict[str, Any]) -> Strategy:
        """A strategy for this run's global batch and workers; `batch` may be among the settings."""
        plan = self.plan
        strategy = resolve(name, settings, plan.batch, self.workers, plan.local_batch, plan.micro_batches)
        if choices := choices_of(strategy):
            rule_for(self.learner.server, choices)  # refuses an optimizer that replicas cannot have
            self.engine.check_replicas(strategy)
        return strategy

    def _automatic(self, name: str, settings: dict[str, Any]) -> Automatic | None:
        return Automatic(make_auto(settings), self.plan.batch) if name == "auto" else None

    def observe(self, event: Event, actions: list[Action]) -> None:
        """Everything that happens, in order: to the log, and to whoever decides by itself."""
        if self.log is not None:
            self.log(event, actions)
        automatic = self.automatic
        proposal = automatic and automatic.observe(event, actions, self.strategy.name)
        if automatic is not None and proposal:
            self._ask(proposal.strategy, proposal.settings, automatic, "auto", proposal.reason)

    def ask_switch(self, name: str, settings: dict[str, Any], reason: str = "") -> SwitchRequest:
        """From any thread: the run changes over before its next lease. What cannot be is refused here.

        Workers go on with batches of the size they have, unless `batch` is among the settings. Asking for a
        strategy ends `auto`: whoever asks knows better.
        """
        return self._ask(name, settings, self._automatic(name, settings), "user", reason)

    def _ask(
        self,
        name: str,
        settings: dict[str, Any],
        automatic: Automatic | None,
        by: Literal["user", "plan", "auto"],
        reason: str,
    ) -> SwitchRequest:
        if name == "auto":
            name, settings = self.strategy_name if self.strategy_name in ("sync", "gba") else "sync", {}
        self._check_same_batch(settings)
        strategy = self.make(name, {"batch": self.strategy.batch, **settings})
        request = SwitchRequest(name, settings, strategy, automatic, by, reason)
        self.requests.put(request)
        return request

    def _check_same_batch(self, settings: dict[str, Any]) -> None:
        if "global_batch" in settings:
            raise UserError(
                f"a switch keeps the global batch, {self.strategy.global_batch:,}, and with it the learning rates; "
                "leave global_batch out (batch, what a worker takes at a time, may change)"
            )

    def ask_resize(self, workers: int) -> ResizeRequest:
        """From any thread: so many workers from the next step on. The global batch stays what it was."""
        check_whole(workers=workers)
        if not 1 <= workers <= MOST_WORKERS:
            raise UserError(f"workers={workers}: at least 1, at most {MOST_WORKERS:,} threads")
        if self.pacer is not None:
            raise UserError(
                "slowness is injected into the workers of this run (cluster.inject): their number stays"
            )
        self.recut(workers)  # refused here if the global batch does not divide among them
        request = ResizeRequest(workers)
        self.requests.put(request)
        return request

    def recut(self, workers: int) -> Strategy:
        """The strategy of now, its global batch cut for so many workers; as it is if somebody chose the batch."""
        own = self.strategy_settings
        if self.plan.local_batch is not None or "batch" in own:
            return self.strategy
        return resolve(self.strategy_name, own, self.plan.batch, workers, None, self.plan.micro_batches)

    def ask_planned_switch(self) -> None:
        """The next one, if its time has come and none is on its way."""
        progress = self.progress
        if progress.switched == len(self.plan.switches) or not self.requests.empty():
            return
        planned = self.plan.switches[progress.switched]
        share, days = progress.examples / self.total, len(progress.days.measures)
        if planned.at.reached(progress.examples, share, progress.seconds, days):
            automatic = self._automatic(planned.strategy, planned.settings)
            self._ask(planned.strategy, planned.settings, automatic, "plan", "as planned")

    def note_position(self) -> None:
        """Brings `progress` up to date with the open leases. Only a checkpoint needs them: they are not free."""
        if self.open_work is not None:
            self.progress.position, self.progress.open = self.open_work()

    def take(self, request: SwitchRequest) -> None:
        """The switch was made."""
        self.strategy_name, self.strategy, self.automatic = request.name, request.strategy, request.automatic
        self.strategy_settings = request.settings
        self.progress.switched += request.by == "plan"

    def sync_gap(self) -> dict[str, Any] | None:
        """What the exchanges of replicas came to so far; None where there were none."""
        return summary(self.replica_counts.values(), elp=self.strategy.batch * self.workers)

    def strategy_facts(self) -> dict[str, Any]:
        """What a resumed run needs to go on as this one is now."""
        auto = None if self.automatic is None else asdict(self.automatic.settings)
        settings, requested = asdict(self.strategy), self.strategy_settings
        return {
            "name": self.strategy_name,
            "settings": settings,
            "asked": requested,
            "auto": auto,
            "planned": self.planned,
        }

    @property
    def planned(self) -> dict[str, Any]:
        """What the run was to begin with, as JSON gives it back: who resumes with another, asks for that one."""
        plan = self.plan
        said: dict[str, Any] = json.loads(
            json.dumps({"name": plan.strategy, "settings": plan.strategy_settings})
        )
        return said

    def restore_strategy(self, facts: dict[str, Any]) -> None:
        self.strategy_name = facts["name"]
        self.strategy = self.make(facts["name"], facts["settings"])
        self.strategy_settings = facts.get("asked", facts["settings"])
        self.automatic = None if facts["auto"] is None else self._automatic("auto", facts["auto"])

    def restore_workers(self, facts: dict[str, int]) -> None:
        """As many as after the last resize, unless whoever resumes asks for another number than the run began with."""
        if facts.get("planned") == self.plan.workers:
            self.workers = facts["now"]

    def run(self, observer: Observer) -> None:
        """From where `progress` stands to the end, or until the observer says stop."""
        if not self.engine.run(self, observer):
            return
        for planned in self.plan.switches[self.progress.switched :]:
            observer.tell(f"the switch to {planned.strategy} at {planned.at} never came")

    def next_epoch(self, observer: Observer) -> bool:
        """The data are done with; whether there is another pass to make."""
        self.progress.epoch, self.progress.position, self.progress.open = self.progress.epoch + 1, 0, []
        self.block_velocity = None  # replicas of another epoch begin without momentum
        self.evaluate(observer)
        return self.goes_on

    @property
    def goes_on(self) -> bool:
        return self.progress.epoch < self.plan.epochs and not self.out_of_patience()

    def out_of_patience(self) -> bool:
        stopping = self.plan.early_stopping
        return stopping is not None and self.progress.without_gain >= stopping.patience

    def found(self, epoch: int, start: int, size: int) -> Generator[IndexedBatch]:
        """Deduplicated batches, read and found ahead of the training step."""
        shuffle = (self.plan.seed, epoch) if self.plan.shuffle else None

        def find() -> Generator[IndexedBatch]:
            with closing(self.train.batches(size, start=start, shuffle=shuffle)) as batches:
                for batch in batches:
                    yield self.learner.find(batch)

        return prefetched(find(), depth=max(2, self.workers))

    def account(self, leases: Sequence[Ended[BatchMeasures]]) -> None:
        """Counts what ended, and measures each example once."""
        progress = self.progress
        for ended in leases:
            part, count = ended.part, ended.lease.count
            progress.examples += count
            add_to(progress.examples_by_worker, ended.worker, count)
            if progress.epoch == 0 and ended.report is not None:  # later the model has seen them
                self._measure(ended.report)
            if part.weight > 0:
                progress.applied += 1
                add_to(progress.staleness, part.staleness)
                add_to(progress.lag, part.lag)
            else:
                add_to(progress.discarded, _kind(part.reason))
                add_to(progress.lost_by_worker, ended.worker, count)
        reports = [ended.report for ended in leases if ended.report is not None]
        if reports:
            progress.loss = sum(r.loss for r in reports) / max(sum(r.examples for r in reports), 1e-12)

    def count_plain(self, leases: Sequence[Ended[BatchMeasures]]) -> str | None:
        """Whether these formed a step of which vr_* could not tell r; what to say of it, the first time.

        By the same numbers as the server's, which may be elsewhere. The rest of a pass is counted, but no news: it is
        said when another step follows in the same pass.
        """
        rule, progress = self.learner.server.optimizer, self.progress
        a = [e.part.weight * e.report.examples for e in leases if e.report is not None]
        if not isinstance(rule, VarianceReduced) or not any(a):
            return None
        (epoch, known), reason = self._plain, rule.gsnr.too_few(effective_number(a))
        if reason is not None:
            progress.plain_steps += 1
            self._plain = progress.epoch, reason
        if self.plain_warning or not known or epoch != progress.epoch:
            return None
        self.plain_warning = (
            f"a step of vr_* was one without it: {known}. More batches form a step with train.micro_batches (in Python "
            "micro_batches=) or workers, under a strategy that gathers them; such steps are counted as plain_steps"
        )
        return self.plain_warning

    def rate(self, examples: int) -> float:
        """What learning rates are multiplied with in a step that ends `examples` later."""
        self._scale = self.rate_after(examples)
        return self._scale

    def rate_after(self, examples: int) -> float:
        """The same, for a step that a worker makes by itself; from any thread."""
        share = min(1.0, (self.progress.examples + examples) / self.total)
        return self.plan.schedule.factor(share) * self.progress.rate_factor

    def _measure(self, found: BatchMeasures) -> None:
        labels, probabilities = found.labels_BT[:, 0], found.probabilities_BT[:, 0]
        self.progress.measures.update(labels, probabilities, found.weights_B)
        if found.times_B is not None:
            self.progress.days.update(found.times_B // DAY, labels, probabilities, found.weights_B)

    def step_baseline(self, found: IndexedBatch) -> None:
        """In the first pass only, as all that is measured on the way."""
        if self.baseline is None or self.progress.epoch > 0:
            return
        if not self.baseline.worker.finds_like(self.learner.worker):
            found = self.baseline.find(found.batch)
        try:
            self.baseline.step(found, lr_scale=self._scale)
        except FloatingPointError:
            self.baseline = None  # a yardstick that broke is no reason to stop

    def bad_batch(self, ended: Ended[BatchMeasures]) -> str:
        """A batch whose gradient is not finite is left out, and told; one too many ends the run."""
        kind, _, what = ended.part.reason.partition(": ")
        first, count = ended.lease.first, ended.lease.count
        shuffled = f"examples {first:,} and after, shuffled"
        where = shuffled if self.plan.shuffle else self.train.locate(first, count)
        found = f"{what} at step {self.step + 1} ({where})"
        if self.progress.discarded.get(kind, 0) >= self.plan.bad_batches:
            raise NotFinite(
                f"{found}. Look at the numbers there, or lower optimizer.dense.lr or set optimizer.clip_norm=1; "
                f"train.bad_batches='{{skip: 10}}' leaves out as many"
            )
        return f"{found}: the batch is left out"

    def evaluate(self, observer: Observer) -> None:
        progress = self.progress
        if self.valid is None or progress.evaluated_step == self.step:
            return
        self.engine.refresh()
        evaluation = evaluate(self.learner, self.valid)
        value = float(getattr(evaluation.measures, self.plan.best))
        gain = self._is_better(value)
        progress.evaluations += 1
        progress.evaluated_step = self.step
        if gain:
            progress.best, progress.best_step, progress.without_gain = value, self.step, 0
        else:
            progress.without_gain += 1
            plateau = self.plan.plateau
            if plateau and progress.without_gain % plateau.patience == 0:
                progress.rate_factor *= plateau.factor
        observer.evaluated(evaluation, gain)

    def _is_better(self, value: float) -> bool:
        best = self.progress.best
        if best is None or math.isnan(best) or math.isnan(value):  # undefined: the newest is as good as any
            return True
        return value > best if self.plan.best == "auc" else value < best


def _kind(reason: str) -> str:
    """`too late: 7 steps behind ...` counts as `too late`."""
    return reason.split(":")[0]
