"""The coordinator's accounts of a training whose steps are made elsewhere, and what users ask of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gearshift.engine.protocol.requests import carry_out_requests
from gearshift.engine.ray.process_context import STATE, write_state
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.parameters.replicas.figures import Counts, as_json, from_json
from gearshift.run.resume import restore_measures
from gearshift.run.saver import failure_of
from gearshift.sync.strategy import Strategy
from gearshift.training.ended import BatchMeasures, Ended
from gearshift.training.engine import Observer
from gearshift.training.epoch_host import EpochHost
from gearshift.training.progress import Progress
from gearshift.training.requests import ResizeRequest, SwitchRequest
from gearshift.training.training import Training

if TYPE_CHECKING:
    from gearshift.engine.ray.coordinator_process import RayEngine


class TrainingAccounts(EpochHost):
    """The role's `Accounts` of the training, set back to a checkpoint's when a shard was lost."""

    def __init__(self, engine: RayEngine, training: Training, observer: Observer) -> None:
        super().__init__(training, observer)
        self._engine = engine
        self._rewinds = -1
        self._before: dict[int, tuple[int, Counts]] = {}  # boot of a worker, and what was counted before it
        training.settle = self._settle
        training.block_velocity = None  # the shards have their own, which begins at 0

    def ended(self, leases: Sequence[Ended[BatchMeasures]]) -> None:
        self._account(leases)

    def stepped(self) -> bool:
        epoch = self._engine.role.epoch
        assert epoch is not None
        self.training.learner.server.step = epoch.step
        return super().stepped()

    def facts(self) -> dict[str, Any]:
        return self._engine.saver.facts()

    def restore(self, saved: Checkpoint) -> None:
        """What a role keeps for us is the checkpoint itself."""
        training = self.training
        lost, step = training.step - int(saved.facts["step"]), int(saved.facts["step"])
        seconds, by_plan = training.progress.seconds, training.progress.switched
        training.learner.server.step = step
        training.progress = Progress(**saved.facts["progress"])
        training.replica_counts = from_json(training.progress.exchanges)
        self._before.clear()
        training.progress.switched = max(training.progress.switched, by_plan)
        restore_measures(training.progress, saved.arrays("progress"))
        training.progress.seconds = max(seconds, training.progress.seconds)  # what was lost took its time
        self._rewinds += 1
        if self._rewinds:
            self._engine.redoes(lost)
            self.observer.tell(
                f"goes on from {saved.path.name}: {lost:,} steps are done again"
                if lost
                else f"goes on from {saved.path.name}, where it was"
            )
        self.mark, self.before = time.perf_counter(), training.moment
        if self._rewinds:
            self._engine.train_again()
            self._engine.process_manager.resize(training.workers)  # some may have been told that it is over
        self._began(0)

    # ---- replicas ----

    def rate_after(self, examples: int) -> float:
        return self.training.rate_after(examples)

    def counted(self, worker: int, boot: int, counts: Counts) -> None:
        known, all_counts = self._before.get(worker), self.training.replica_counts
        if known is None or known[0] != boot:
            known = self._before[worker] = boot, all_counts.get(worker, Counts())
        all_counts[worker] = known[1] + counts
        self.training.progress.exchanges = as_json(all_counts)

    def shown(self) -> None:
        self._tick()
        self._where_it_stands()
        self._evaluate_if_due()
        self._engine.save_if_requested()
        self.mark = time.perf_counter()
        self.handle_requests()

    def _where_it_stands(self) -> None:
        self.training.progress.position, self.training.progress.open = self._position()

    def _settle(self) -> bool:
        """Whether replicas are where they can be evaluated and saved; if not, they will be soon."""
        meetings = self._engine.role.meetings
        if not meetings.replicated or meetings.shown:
            return True
        meetings.want()
        return False

    def passed(self, first_lease: int) -> bool:
        self._tick()
        more = self.training.next_epoch(self.observer)
        self.mark, self.before = time.perf_counter(), self.training.moment
        if more:
            self._began(first_lease)
        return more

    def _began(self, first_lease: int) -> None:
        self.training.first_lease = first_lease
        self.observer.began()

    def _position(self) -> tuple[int, list[list[int]]]:
        role, batch = self._engine.role, self.training.strategy.batch
        assert role.epoch is not None
        pieces = [list(r) for r in role.epoch.leased_ranges()]
        for first, count in role.epoch.unbegun_ranges():
            pieces += [[at, min(batch, first + count - at)] for at in range(first, first + count, batch)]
        return role.position, sorted(pieces)

    def _under_way(self) -> int:
        epoch = self._engine.role.epoch
        assert epoch is not None
        return len(epoch.coordinator.work.flying) + len(epoch.coordinator.work.waiting)

    def _switch(self, name: str, strategy: Strategy, reason: str) -> None:
        self._engine.role.switch(name, asdict(strategy), reason)

    def switch(self, request: SwitchRequest) -> None:
        super().switch(request)
        self._note(strategy=self.training.strategy_facts())

    def resize(self, request: ResizeRequest) -> None:
        super().resize(request)
        self._note(workers=request.workers, strategy=self.training.strategy_facts())

    def _note(self, **facts: Any) -> None:
        """For a coordinator after this one. A full disk is no reason to end the run."""
        folder = self._engine.context.folder
        if failure := failure_of(folder / STATE, lambda: write_state(folder, **facts)):
            self.observer.tell(
                f"{failure}: the change took effect but could not be recorded; a restarted coordinator would not know "
                "it"
            )

    def _resize(self, workers: int) -> None:
        self._engine.role.resize(workers)
        self._engine.process_manager.resize(workers)

    def stop_if_requested(self) -> None:
        """While nobody works; otherwise it is done after the next step."""
        if self._engine.stop_requested and not self._engine.role.over:
            self._engine.role.stop()
            if self._engine.role.over:
                self._where_it_stands()

    def save_if_alone(self) -> None:
        """What was asked while nobody works: no step comes after which it would be done."""
        role = self._engine.role
        if role.epoch is not None and role.alone and role.epoch.at_rest and not role.over:
            self._where_it_stands()
            self._engine.save_if_requested()

    def handle_requests(self) -> None:
        training = self.training
        carry_out_requests(
            self._engine.role,
            training.requests,
            lambda request: request.strategy_after(training),
            lambda request: request.carry_out(self),
        )
