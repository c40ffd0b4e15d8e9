"""Accounts of ended leases: examples applied and discarded, and progressive metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gearshift.data.dataset import Dataset
from gearshift.optim.first_order import DenseOptimizer
from gearshift.optim.spread import effective_number
from gearshift.optim.variance_reduced import VarianceReduced
from gearshift.training.ended import BatchMeasures, Ended
from gearshift.training.engine import NotFinite
from gearshift.training.plan import Plan
from gearshift.training.progress import Progress, add_to

DAY = 86_400  # seconds
NOT_FINITE = "not finite"  # reason for rejecting a gradient


class LeaseAccounts:
    """Counts ended leases in `progress`. Progressive metrics score every example once, before it is trained on."""

    def __init__(self, plan: Plan, progress: Progress, train: Dataset, optimizer: DenseOptimizer) -> None:
        self._plan, self._progress, self._train, self._optimizer = plan, progress, train, optimizer
        self._too_few = 0, ""  # epoch and reason of the last step with too few gradients for vr_*
        self.plain_warning: str | None = None  # the warning about such steps, once it has been given

    def count(self, leases: Sequence[Ended[BatchMeasures]], step: int) -> Iterator[str]:
        """Counts the leases that ended after `step` and measures each example once; yields messages for the user."""
        for ended in leases:
            if ended.part.reason.startswith(NOT_FINITE):
                yield self._bad_batch(ended, step)
        self._count(leases)
        if sentence := self._count_plain_step(leases):
            yield sentence

    def _count(self, leases: Sequence[Ended[BatchMeasures]]) -> None:
        progress = self._progress
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

    def _measure(self, batch: BatchMeasures) -> None:
        labels, probabilities = batch.labels_BT[:, 0], batch.probabilities_BT[:, 0]
        self._progress.measures.update(labels, probabilities, batch.weights_B)
        if batch.times_B is not None:
            self._progress.days.update(batch.times_B // DAY, labels, probabilities, batch.weights_B)

    def _count_plain_step(self, leases: Sequence[Ended[BatchMeasures]]) -> str | None:
        """Counts a step in which vr_* had too few gradients to estimate r; returns a warning the first time.

        It uses the same numbers as the server, which may be in another process. The last step of an epoch is counted
        but causes no warning: the warning is given when another step follows in the same epoch.
        """
        rule, progress = self._optimizer, self._progress
        a = [e.part.weight * e.report.examples for e in leases if e.report is not None]
        if not isinstance(rule, VarianceReduced) or not any(a):
            return None
        (epoch, known), reason = self._too_few, rule.gsnr.too_few(effective_number(a))
        if reason is not None:
            progress.plain_steps += 1
            self._too_few = progress.epoch, reason
        if self.plain_warning or not known or epoch != progress.epoch:
            return None
        self.plain_warning = (
            f"vr_* had no effect in a step: {known}. For more gradients per step, raise train.micro_batches (in Python "
            "TrainingSettings(micro_batches=...)) or workers, under a strategy that combines gradients; such steps are "
            "counted as plain_steps"
        )
        return self.plain_warning

    def _bad_batch(self, ended: Ended[BatchMeasures], step: int) -> str:
        """The message about a batch that is left out because its gradient is not finite; one too many ends the run."""
        kind, _, what = ended.part.reason.partition(": ")
        first, count = ended.lease.first, ended.lease.count
        shuffled = f"examples {first:,} and after, shuffled"
        where = shuffled if self._plan.shuffle else self._train.locate(first, count)
        problem = f"{what} at step {step + 1} ({where})"
        if self._progress.discarded.get(kind, 0) >= self._plan.bad_batches:
            raise NotFinite(
                f"{problem}. Check these examples, lower optimizer.dense.lr, or set optimizer.clip_norm=1; "
                f"train.bad_batches='{{skip: 10}}' skips up to 10 such batches"
            )
        return f"{problem}: the batch is skipped"


def _kind(reason: str) -> str:
    """`too late: 7 steps behind ...` counts as `too late`."""
    return reason.split(":")[0]
