"""Saves a run on a cluster: the shards write cuts, which the coordinator makes into a checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gearshift.engine.ray import snapshots
from gearshift.engine.ray.shared_folder import STATE, SharedFolder, read_state, write_state
from gearshift.errors import UserError
from gearshift.parameters.checkpoint import Arrays, Checkpoint
from gearshift.run import ownership
from gearshift.run.observer import RunObserver
from gearshift.run.saver import Saver, refuse_vanished, why
from gearshift.training.learner import Learner, is_of_rows
from gearshift.training.training import Training

if TYPE_CHECKING:
    from gearshift.engine.ray.session import CoordinatorSession


class ClusterSaver(Saver):
    """Saves by cuts of the shards; before there are shards, like any other saver."""

    tried = -1  # the step of the last attempt
    _session: CoordinatorSession | None = None
    _pending: tuple[dict[str, Any], dict[str, Arrays], bool] | None = None

    def cut_by(self, session: CoordinatorSession | None) -> None:
        """From now on the shards of this session write their parts; None: they are gone."""
        self._session = session

    def save(
        self,
        step: int,
        facts: dict[str, Any],
        arrays: dict[str, Arrays],
        learners: tuple[Learner, ...],
        *,
        best: bool,
    ) -> None:
        if self._session is None:
            super().save(step, facts, arrays, learners, best=best)
            return
        self._session.shards.wait_for_cut()
        if self.has(step):  # the cut in progress was of this step
            if best:
                self.link("best", self.checkpoints.path(step))
            return
        self._pending, self.tried = (facts, arrays, best), step
        running = self._session.role.running
        assert running is not None
        running.passes.take_cut()

    def facts(self) -> dict[str, Any]:
        """The facts of the cut that was just ordered; the role keeps them until it is written."""
        assert self._pending is not None, "a cut without a checkpoint"
        facts, arrays, best = self._pending
        self._pending = None
        return {"facts": facts, "arrays": arrays, "best": best}

    def has(self, step: int) -> bool:
        """Whether the step was saved and is still valid. A folder left by a lost incarnation does not count."""
        if self._session is None:
            return super().has(step)
        known = self.last is not None and self.last.name == self.checkpoints.path(step).name
        return known and self.checkpoints.has(step)

    def commit(self, name: str, content: dict[str, Any]) -> None:
        """All parts are on disk. Also writes the event log, so that a restarted coordinator can continue from here."""
        session = self._session
        assert session is not None
        session.parts.events.write()
        path, facts = self.checkpoints.path(content["facts"]["step"]), content["facts"]
        temporary = snapshots.part_folder(self.checkpoints.folder, name)
        try:
            learner, layout = session.training.learner, session.layout
            sizes = snapshots.commit(learner, layout, temporary, path, facts, content["arrays"], self.check)
            session.parameters.learn_sizes(sizes)
            self.link("last", path)
            self.check()
            for overtaken in self.checkpoints.folder.glob(".step-*.part"):  # cuts from before a rewind
                shutil.rmtree(overtaken, ignore_errors=True)
            self.last, self.failure = path, None
            if content["best"]:
                self.link("best", path)
            self._written.append(path)
            self.health.saved()
        except OSError as error:
            self.could_not(name, self.sentence(path, error))
            return
        with suppress(OSError):
            self.prune()

    def could_not(self, name: str, sentence: str) -> None:
        intact = f"; {self.last.name} is intact" if self.last else ""
        self.failure = sentence + ("" if "intact" in sentence else intact)
        self.health.save_failed(self.failure)
        with suppress(OSError, ownership.Fenced):  # files of another owner are not ours to remove
            self.check()
            snapshots.discard(self.checkpoints.folder, name)
        self.report_failure()

    def take_failure(self, step: int) -> str | None:
        """Why this step could not be saved. Returned once."""
        failure, self.failure = (self.failure, None) if self.tried == step else (None, self.failure)
        return failure


class FolderSnapshotStore:
    """The run's folder, as the role sees it."""

    def __init__(
        self,
        folder: SharedFolder,
        training: Training,
        saver: ClusterSaver,
        persist: Callable[[Path, Callable[[], object]], None],
        observer: RunObserver,
    ) -> None:
        """`persist` writes what the run cannot continue without."""
        self._shared, self._folder = folder, folder.path
        self._training, self._saver, self._persist, self._observer = training, saver, persist, observer
        self._incarnation = 0

    def new_incarnation(self) -> int:
        self._persist(self._folder / STATE, self._note_incarnation)
        return self._incarnation

    def _note_incarnation(self) -> None:
        refuse_vanished(self._folder)
        self._incarnation = int(read_state(self._folder).get("incarnation", 0)) + 1
        write_state(self._folder, incarnation=self._incarnation)

    def newest(self) -> tuple[str, dict[str, Any]]:
        observer = self._observer
        return self._shared.with_retries(self._newest, observer.notify, lambda: observer.stop_requested)

    def _newest(self) -> tuple[str, dict[str, Any]]:
        training, last = self._training, self._saver.last
        assert last is not None, "a run begins with a checkpoint"
        try:
            saved = Checkpoint.open(last, lambda file: not is_of_rows(file))
        except UserError:  # it is missing or incomplete
            refuse_vanished(self._folder)  # a missing folder may come back
            raise
        progress = saved.facts["progress"]
        # Later requests stay in force: the strategy is not part of the parameters' state.
        facts = {
            "step": saved.facts["step"],
            "epoch": progress["epoch"],
            "position": progress["position"],
            "leased": progress["open"],
            "unbegun": [],
            "strategy": training.active_strategy.name,
            "settings": asdict(training.strategy),
            "book": saved,
        }
        return last.name, facts

    def commit(self, incarnation: int, name: str, facts: dict[str, Any]) -> None:
        try:
            refuse_vanished(self._folder)
            ownership.check(self._folder)
            newest = int(read_state(self._folder)["incarnation"])
        except OSError as error:
            self._saver.could_not(name, f"checkpoint {name} was not written: {why(error, self._folder)}")
            return
        if incarnation == newest:
            self._saver.commit(name, facts["book"])

    def failed(self, name: str, error: str) -> None:
        self._saver.could_not(name, error)
