"""The coordinator's accounts of training whose steps are made in other processes, and the requests of users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from gearshift.engine.protocol.requests import carry_out_requests
from gearshift.engine.ray.shared_folder import STATE, write_state
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.parameters.replicas.figures import Counts
from gearshift.run.health import Health
from gearshift.run.resume import restore_measures
from gearshift.run.saver import failure_of
from gearshift.sync.replicated import choices_of
from gearshift.sync.strategy import Strategy
from gearshift.training.ended import BatchMeasures, Ended
from gearshift.training.epoch_host import EpochHost
from gearshift.training.requests import ResizeRequest, SwitchRequest

if TYPE_CHECKING:
    from gearshift.engine.ray.session import CoordinatorSession


class TrainingAccounts(EpochHost):
    """The `Accounts` of the training, which are reset to those of a checkpoint when a shard is lost."""

    def __init__(self, session: CoordinatorSession) -> None:
        """`session` has no role yet, because the role is created with these accounts."""
        training = session.training
        super().__init__(training, session.observer)
        self._session = session
        self._rewinds = -1
        self._before: dict[
            int, tuple[int, Counts]
        ] = {}  # by worker: its boot, and the counts of earlier boots
        training.replicas.begin_without_velocity()  # the shards hold it

    def ended(self, leases: Sequence[Ended[BatchMeasures]]) -> None:
        self._account(leases)

    def stepped(self) -> bool:
        epoch = self._session.role.epoch
        assert epoch is not None
        self.training.learner.server.step = epoch.step
        return super().stepped()

    def facts(self) -> dict[str, Any]:
        return self._session.saver.facts()

    def restore(self, saved: Checkpoint) -> None:
        """`saved` is the checkpoint that the role has kept for these accounts."""
        training = self.training
        lost, step = training.step - int(saved.facts["step"]), int(saved.facts["step"])
        seconds, by_plan = training.progress.seconds, training.progress.switched
        training.learner.server.step = step
        training.progress.restore(saved.facts["progress"])
        training.replicas.restore_counts()
        training.replicas.begin_without_velocity()
        self._before.clear()
        training.progress.switched = max(training.progress.switched, by_plan)
        restore_measures(training.progress, saved.arrays("progress"))
        training.progress.seconds = max(seconds, training.progress.seconds)  # lost steps took time too
        self._rewinds += 1
        if self._rewinds:
            _count_redone(self._session.parts.health, lost)
            self.observer.notify(
                f"the run continues from {saved.path.name}: {lost:,} steps are repeated"
                if lost
                else f"the run continues from {saved.path.name}; no steps have to be repeated"
            )
        self.clock.restart()
        self.before = training.moment
        if self._rewinds:
            self._session.parts.last_save.cancel()
            self._session.process_manager.resize(training.workers)  # some workers may have been dismissed
        self.observer.began(first_lease=0)

    # ---- replicas ----

    def rate_after(self, examples: int) -> float:
        return self.training.rates.after(examples)

    def counted(self, worker: int, boot: int, counts: Counts) -> None:
        known, all_counts = self._before.get(worker), self.training.replicas.counts
        if known is None or known[0] != boot:
            known = self._before[worker] = boot, all_counts.get(worker, Counts())
        all_counts[worker] = known[1] + counts
        self.training.replicas.note_counts()

    def shown(self) -> None:
        self.clock.count()
        self.note_position()
        self._expect_velocity()
        self.evaluations.carry_out_if_due(self._ready_to_save)
        self._session.parts.saving.save_if_requested(self._ready_to_save)
        self.clock.restart()
        self.handle_requests()

    def save_if_requested(self) -> None:
        """Saves while no worker is active. Otherwise this is done after the next step."""
        self.note_position()
        self._session.parts.saving.save_if_requested(self._ready_to_save)

    def _expect_velocity(self) -> None:
        """Includes bmuf's velocity in the next checkpoint; `snapshots.commit` collects it from the shards."""
        choices, replicas = choices_of(self.training.strategy), self.training.replicas
        if choices is not None and choices.block_momentum:
            replicas.restore_velocity(torch.zeros_like(self.training.learner.worker.dense.flat))
        else:
            replicas.begin_without_velocity()

    def _settle(self) -> bool:
        """Whether the shards have the result of the replicas. If not, a show is requested."""
        running = self._session.role.running
        assert running is not None
        if running.meetings.settled:
            return True
        running.meetings.request_show()
        return False

    def passed(self, first_lease: int) -> bool:
        self.clock.count()
        more = self.end_epoch()
        self.clock.restart()
        self.before = self.training.moment
        if more:
            self.observer.began(first_lease)
        return more

    def _position(self) -> tuple[int, list[list[int]]]:
        running, batch = self._session.role.running, self.training.strategy.batch
        assert running is not None
        leases = running.passes.epoch.leases
        pieces = [list(r) for r in leases.leased_ranges()]
        for first, count in leases.unbegun_ranges():
            pieces += [[at, min(batch, first + count - at)] for at in range(first, first + count, batch)]
        return running.passes.position, sorted(pieces)

    def _refresh(self) -> None:
        self._session.parameters.refresh()

    def _switch(self, name: str, strategy: Strategy, reason: str) -> int:
        running = self._session.role.running
        assert running is not None
        work = running.passes.epoch.coordinator.work
        adopted = len(work.flying) + len(work.waiting)
        if choices_of(strategy) != choices_of(self.training.strategy):
            self.training.replicas.begin_without_velocity()
        running.switch(name, asdict(strategy), reason)
        return adopted

    def switch(self, request: SwitchRequest) -> None:
        super().switch(request)
        _note(self._session, strategy=self.training.active_strategy.facts())

    def resize(self, request: ResizeRequest) -> None:
        super().resize(request)
        _note(self._session, workers=request.workers, strategy=self.training.active_strategy.facts())

    def _resize(self, workers: int) -> None:
        self._session.role.resize(workers)
        self._session.process_manager.resize(workers)

    def handle_requests(self) -> None:
        training = self.training
        carry_out_requests(
            self._session.role,
            training.requests.pending,
            lambda request: request.strategy_after(training.active_strategy),
            lambda request: request.carry_out(self),
        )


def _note(session: CoordinatorSession, **facts: Any) -> None:
    """Records facts for a restarted coordinator. A full disk does not end the run."""
    folder = session.context.folder.path
    if failure := failure_of(folder / STATE, lambda: write_state(folder, **facts)):
        session.observer.notify(
            f"{failure}: the change took effect but could not be recorded; a restarted coordinator would not know it"
        )


def _count_redone(health: Health, steps: int) -> None:
    """Counts the steps that are redone because a shard lost its state and the run went back to a checkpoint."""
    if not health.is_recovering:
        health.recovers("lost", "shard", reason="a shard was lost", action="it was restarted")
    health.redoes(steps)
