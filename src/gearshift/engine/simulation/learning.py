"""Real gradients in virtual time: learns on one machine what a simulated cluster would have learned.

The simulator decides when each worker pulls, when its gradient arrives and whether it is applied. Here the gradient is
computed at the time of the pull, on the parameters at that time, kept until its step, and then applied. So staleness
has its true effect without any waiting. Every example is scored once, before it is trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from gearshift.cluster_model.cluster import ClusterModel
from gearshift.data.batch import Batch
from gearshift.data.dataset import Dataset
from gearshift.data.prefetch import prefetched
from gearshift.embedding.lookup import IndexedBatch
from gearshift.engine.lease_batches import LeaseBatches
from gearshift.engine.simulation.replica_members import ReplicaLearning
from gearshift.engine.simulation.simulator import simulate
from gearshift.engine.simulation.switch_plan import SimulatedSwitch
from gearshift.engine.simulation.tally import Outcome
from gearshift.errors import UserError
from gearshift.metrics import Measures, Slices
from gearshift.parameters.prediction import PredictedPulls
from gearshift.parameters.push import AnyPush, LocalPush, Push
from gearshift.parameters.replicas.group import Replicas
from gearshift.sync.automatic import Automatic
from gearshift.sync.events import (
    Action,
    Apply,
    Begin,
    Discard,
    Duplicate,
    Extrapolation,
    Lease,
    Reissue,
    version_of,
)
from gearshift.sync.registry import STRATEGIES
from gearshift.sync.replicated import choices_of
from gearshift.sync.strategy import Strategy, cuts
from gearshift.training.baseline import Baseline
from gearshift.training.learner import Learner
from gearshift.training.progress import Progress
from gearshift.training.row_expiry import RowExpiry
from gearshift.training.worker import stream_of

DAY = 86_400


@dataclass
class VirtualRun:
    """The result of a run in virtual time."""

    measures: Measures = field(default_factory=Measures)  # of every example before training on it
    days: Slices = field(default_factory=Slices)  # the same, by UTC day
    pieces: Slices = field(default_factory=Slices)  # the same, by position // `piece`, where that is given
    outcome: Outcome | None = None


def train_in_virtual_time(
    learner: Learner,
    data: Dataset,
    cluster: ClusterModel,
    strategy: Strategy,
    *,
    switches: Iterable[SimulatedSwitch] = (),
    automatic: Automatic | None = None,
    lr_scale: float | Callable[[int], float] = 1.0,
    shuffle: tuple[int, int] | None = None,
    piece: int | None = None,
) -> VirtualRun:
    """One pass over `data` with the workers of `cluster`. All strategies must have the same batch size; that of
    balanced is the mean.

    `lr_scale` may depend on the number of examples done. `shuffle=(seed, epoch)` is the order of an epoch, as
    `Dataset.batches` takes it. Every `piece` examples are also measured separately, to show the short-term effect of a
    switch.
    """
    examples, planned = data.count(), tuple(switches)
    if examples is None:
        raise UserError(
            "virtual time needs data whose length is known: prepare them first (gearshift prepare)"
        )
    for switch in planned:
        if switch.settings.get("batch", strategy.batch) != strategy.batch:
            raise UserError(
                f"the switch to {switch.strategy} changes the batch size; virtual time needs one size"
            )
    run = VirtualRun()
    scale = lr_scale if callable(lr_scale) else lambda _: lr_scale
    any_cuts = any(map(cuts, [strategy, *(STRATEGIES.get(switch.strategy) for switch in planned)]))
    if any_cuts and strategy.global_batch % strategy.batch:
        raise UserError(
            f"batch {strategy.batch} does not divide global_batch {strategy.global_batch}; in virtual time, balanced "
            "needs a batch that does"
        )
    size = strategy.global_batch if any_cuts else strategy.batch
    learning = _Learning(learner, _batches_of(data, learner, size, shuffle, cut=any_cuts), run, scale, piece)
    try:
        run.outcome = simulate(
            cluster, strategy, examples, switches=planned, automatic=automatic, learning=learning
        )
    finally:
        learning.close()
    return run


def _batches_of(
    data: Dataset, learner: Learner, size: int, shuffle: tuple[int, int] | None, *, cut: bool
) -> LeaseBatches:
    def found(batches: Generator[Batch]) -> Generator[IndexedBatch]:
        with closing(batches):
            for batch in batches:
                yield IndexedBatch(batch, (), ()) if cut else learner.find(batch)

    return LeaseBatches(
        lambda start, size: prefetched(found(data.batches(size, start=start, shuffle=shuffle)), depth=4),
        learner.find,
        position=0,
        size=size,
    )


class _Learning:
    """Implements `simulator.Learning`: a copy of the model computes, and the learner's server applies."""

    def __init__(
        self,
        learner: Learner,
        batches: LeaseBatches,
        run: VirtualRun,
        lr_scale: Callable[[int], float],
        piece: int | None,
    ) -> None:
        self._expiry = RowExpiry(learner.schema, Progress(), Baseline(None, learner))
        self.learner, self.run, self.lr_scale, self.piece = learner, run, lr_scale, piece
        self._model = learner.model_copy(learner.worker.threads)
        self._batches = batches
        self._pushes: dict[int, tuple[Lease, Push]] = {}  # by number of the lease
        self._arrived: dict[int, AnyPush] = {}  # those that wait for a step, in the order of arrival
        self._prediction = PredictedPulls(learner.server)
        self._worker_of: dict[int, int] = {}  # by lease
        self._replicas: Replicas | None = None  # of a replica strategy
        self._global_batch = 0

    def close(self) -> None:
        self._batches.close()
        if self._replicas is not None:
            self._replicas.fold()

    def begin(self, begin: Begin) -> None:
        lease = begin.lease
        while self._batches.position < lease.first + lease.count:
            self._batches.next_block()
        indexed = self._batches.lease(lease.first, lease.count).indexed()
        predicted = self._predicted(begin.extrapolation)
        push = self._model.compute(indexed, stream_of(0, lease.first), self._flat(begin.worker), predicted)
        self._pushes[lease.number] = lease, push.kept()
        self._worker_of[begin.lease.number] = begin.worker

    # ---- replicas, by the rule of `gearshift.parameters.replicas.group` ----

    def switched(self, strategy: Strategy) -> ReplicaLearning | None:
        choices, live = choices_of(strategy), self._replicas
        self._global_batch = strategy.global_batch
        if (
            live is not None
            and choices is not None
            and choices.workers_per_replica == live.choices.workers_per_replica
        ):
            live.rechoose(choices)
            return live
        if live is not None:
            live.fold()
        self._replicas = None if choices is None else Replicas(self.learner.server, choices)
        return self._replicas

    def _flat(self, worker: int) -> Tensor | None:
        """The worker's own replica, if it has one."""
        replica = None
        if self._replicas is not None:
            self._replicas.busy(worker)
            replica = self._replicas.of(worker)
        return None if replica is None else replica.flat

    def _predicted(self, extrapolation: Extrapolation) -> Tensor | None:
        """The dense parameters that a worker pulls; None: the stored ones."""
        if not extrapolation.steps:
            return None
        return self._prediction.dense(self._arrived, extrapolation.steps, extrapolation.waiting)

    def arrive(self, worker: int, lease: int) -> str | None:
        if lease in self._pushes:  # else its lease has ended
            self._arrived[lease] = self._pushes[lease][1]
        return None

    def act(self, action: Action) -> None:
        match action:
            case Apply():
                self._apply(action)
            case Discard(lease) if lease in self._pushes:
                self._end(lease)
            case Reissue(lease) | Duplicate(lease):  # its examples are leased again, or were twice
                del self._pushes[lease], self._worker_of[lease]
                self._arrived.pop(lease, None)
            case _:
                pass

    def _apply(self, action: Apply) -> None:
        parts = action.parts
        computed = [(self._pushes[part.lease][1], part.weight) for part in parts]
        pushes: list[tuple[LocalPush, float]] = [*computed]
        lr_scale = self.lr_scale(self.run.measures.examples)
        if self._replicas is not None and self._replicas.members:
            worker = self._worker_of[parts[0].lease]
            pushes = [
                (self._replicas.step(worker, push, lr_scale=lr_scale), weight) for push, weight in computed
            ]
        horizons = self._expiry.at_step(self.learner.server.step + 1)
        trained = sum(self._pushes[part.lease][0].count for part in parts if part.weight > 0)
        self.learner.server.apply_group(
            pushes,
            lr_scale=lr_scale,
            over_kept=action.over_kept,
            late=[
                (self._pushes[part.lease][1], version_of(action, part))
                for part in parts
                if part.unchanged_rows
            ],
            dense_rate=action.dense_rate,
            share=trained / self._global_batch,
            horizons=horizons,
        )
        for part in parts:
            self._end(part.lease)

    def _end(self, lease: int) -> None:
        of, push = self._pushes.pop(lease)
        self._arrived.pop(lease, None)
        del self._worker_of[lease]
        batch = self._batches.drop(of.first, of.count).batch
        labels, probabilities = batch.labels_BT[:, 0], push.probabilities_BT[:, 0]
        self.run.measures.update(labels, probabilities, batch.weights_B)
        if batch.times_B is not None:
            self._expiry.note_times(batch.times_B)
            self.run.days.update(batch.times_B // DAY, labels, probabilities, batch.weights_B)
        if self.piece is not None:
            positions = np.arange(of.first, of.first + len(batch))
            self.run.pieces.update(positions // self.piece, labels, probabilities, batch.weights_B)
