"""The engine for training whose workers and shards are processes on Ray."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from gearshift.embedding.tier_figures import summary_of
from gearshift.engine.ray.process_context import FittedData, Membership, ProcessContext
from gearshift.engine.ray.process_manager import ProcessManager
from gearshift.engine.ray.saver import ClusterSaver
from gearshift.engine.ray.session import CoordinatorSession
from gearshift.engine.ray.shared_folder import read_state
from gearshift.engine.ray.training_loop import TrainingRunner
from gearshift.errors import UserError
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.run import ownership
from gearshift.run.health import Health
from gearshift.run.observer import RunObserver
from gearshift.run.parts import RunParts
from gearshift.training.training import Training


class RayEngine:
    """Runs training with the processes that its process manager keeps."""

    name = "ray"

    def __init__(self, member: Membership, context: ProcessContext, process_manager: ProcessManager) -> None:
        self._member, self._context, self._process_manager = member, context, process_manager
        self._saver: ClusterSaver | None = None

    def make_saver(
        self, folder: Path, keep: int, notify: Callable[[str], None], saved: Path | None, health: Health
    ) -> ClusterSaver:
        """The saver of the run that this engine trains: the shards write, and the engine tells it which ones."""
        self._saver = ClusterSaver(folder, keep, notify, saved, health)
        return self._saver

    def run(self, training: Training, observer: RunObserver) -> bool:
        saver = self._saver
        assert saver is not None, "the run was started without `make_saver`"
        wishes = read_state(self._context.folder.path)  # requests recorded by an earlier coordinator
        active = training.active_strategy
        active.workers = int(wishes.get("workers") or active.workers)
        if wishes.get("strategy"):
            active.restore(wishes["strategy"])
        _save_first(observer.parts)
        if not training.has_next_epoch:  # the coordinator was lost after the last step
            _take_rows(observer.parts)
            return True
        fitted = FittedData(training.learner.schema.to_dict(), training.plan.shuffle)
        context = replace(self._context, fitted=fitted)
        self._process_manager.begin(context, training.workers)
        try:
            session = self._train(context, observer, saver)
            figures = self._process_manager.figures()
            training.learner.tiers_elsewhere = summary_of(figures.values())
        except ownership.Fenced:
            if context.folder.is_replaced():  # its processes must not be ended
                self._process_manager.step_down()
            raise
        finally:
            self._process_manager.close()
        saver.cut_by(None)
        if observer.parts.final.needs_parameters and not observer.stop_requested:
            _take_rows(observer.parts)
        assert session.role.epoch is not None
        return not session.role.epoch.stopped

    def _train(
        self, context: ProcessContext, observer: RunObserver, saver: ClusterSaver
    ) -> CoordinatorSession:
        training, connection = observer.parts.training, context.connection
        with closing(connection.endpoint(self._member, training, context.shards)) as endpoint:
            driver = connection.driver(self._member, endpoint)
            session = CoordinatorSession(context, self._process_manager, observer, saver, driver)
            remote: tuple[Any, ...] = session.parameters.stores
            training.learner.server.stores = remote
            saver.cut_by(session)
            self._process_manager.heard_by(session)
            driver.steer(TrainingRunner(session))
        return session


def _save_first(parts: RunParts) -> None:
    """Saves the checkpoint that every process starts from, and that the run returns to if a shard is lost early."""
    saver = parts.saving.saver
    if saver.last is None:
        parts.saving.save_now()
        saver.wait()
        if saver.failure:
            raise UserError(saver.failure)
    assert saver.last is not None


def _take_rows(parts: RunParts) -> None:
    """Training has ended: loads the rows for the final evaluations in this process."""
    last = parts.saving.saver.last
    assert last is not None
    parts.training.learner.restore(Checkpoint.open(last))
