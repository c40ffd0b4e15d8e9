"""How a run on a cluster is saved: by cuts of the shards, which its coordinator makes a checkpoint of."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gearshift.engine.ray import snapshots
from gearshift.engine.ray.process_context import STATE, read_state, write_state
from gearshift.errors import UserError
from gearshift.parameters.checkpoint import Arrays, Checkpoint
from gearshift.run import ownership
from gearshift.run.saver import Saver, refuse_vanished, why
from gearshift.training.learner import Learner, is_of_rows

if TYPE_CHECKING:
    from gearshift.engine.ray.coordinator_process import RayEngine


class ClusterSaver(Saver):
    """Saves by cuts of the shards; before there are any, as any other."""

    engine: RayEngine | None = None
    tried = -1  # the step of the last attempt
    _pending: tuple[dict[str, Any], dict[str, Arrays], bool] | None = None

    def save(
        self,
        step: int,
        facts: dict[str, Any],
        arrays: dict[str, Arrays],
        learners: tuple[Learner, ...],
        *,
        best: bool,
    ) -> None:
        if self.engine is None:
            super().save(step, facts, arrays, learners, best=best)
            return
        self.engine.wait_for_cut()
        if self.has(step):  # it was that one
            if best:
                self.link("best", self.checkpoints.path(step))
            return
        self._pending, self.tried = (facts, arrays, best), step
        self.engine.role.take_cut()

    def facts(self) -> dict[str, Any]:
        """For the cut that was just ordered; kept by the role until it is written."""
        assert self._pending is not None, "a cut without a checkpoint"
        facts, arrays, best = self._pending
        self._pending = None
        return {"facts": facts, "arrays": arrays, "best": best}

    def has(self, step: int) -> bool:
        """Of this history: a folder that a lost one left behind does not count."""
        if self.engine is None:
            return super().has(step)
        known = self.last is not None and self.last.name == self.checkpoints.path(step).name
        return known and self.checkpoints.has(step)

    def commit(self, name: str, said: dict[str, Any]) -> None:
        """All parts are on disk; so shall be how it came to it, if this process dies and the next goes on from here."""
        assert self.engine is not None
        self.engine.write_events()
        path, facts = self.checkpoints.path(said["facts"]["step"]), said["facts"]
        beside = snapshots.part_folder(self.checkpoints.folder, name)
        try:
            learner, layout = self.engine.learner, self.engine.layout
            sizes = snapshots.commit(learner, layout, beside, path, facts, said["arrays"], self.check)
            self.engine.learn_sizes(sizes)
            self.link("last", path)
            self.check()
            for overtaken in self.checkpoints.folder.glob(".step-*.part"):  # cuts of before a rewind
                shutil.rmtree(overtaken, ignore_errors=True)
            self.last, self.failure = path, None
            if said["best"]:
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
        with suppress(OSError, ownership.Fenced):  # what another owner has there is not ours to remove
            self.check()
            snapshots.discard(self.checkpoints.folder, name)
        self.tell_of_failure()

    def take_failure(self, step: int) -> str | None:
        """Why this step could not be saved, once."""
        failure, self.failure = (self.failure, None) if self.tried == step else (None, self.failure)
        return failure


class FolderSnapshotStore:
    """The run's folder, as the role sees it."""

    def __init__(self, engine: RayEngine) -> None:
        self._engine, self._folder = engine, engine.context.folder
        self._incarnation = 0

    def new_incarnation(self) -> int:
        self._engine.persist(self._folder / STATE, self._note_incarnation)
        return self._incarnation

    def _note_incarnation(self) -> None:
        refuse_vanished(self._folder)
        self._incarnation = int(read_state(self._folder).get("incarnation", 0)) + 1
        write_state(self._folder, incarnation=self._incarnation)

    def newest(self) -> tuple[str, dict[str, Any]]:
        return self._engine.context.with_retries(
            self._newest, self._engine.tell, lambda: self._engine.stop_requested
        )

    def _newest(self) -> tuple[str, dict[str, Any]]:
        training, last = self._engine.training, self._engine.saver.last
        assert last is not None, "a run begins with a checkpoint"
        try:
            saved = Checkpoint.open(last, lambda file: not is_of_rows(file))
        except UserError:  # it is not there, or not whole
            refuse_vanished(self._folder)  # with its folder, which may come back
            raise
        progress = saved.facts["progress"]
        # Whatever was asked since then still counts: a strategy is no state of the parameters.
        facts = {
            "step": saved.facts["step"],
            "epoch": progress["epoch"],
            "position": progress["position"],
            "leased": progress["open"],
            "unbegun": [],
            "strategy": training.strategy_name,
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
            self._engine.saver.could_not(
                name, f"checkpoint {name} was not written: {why(error, self._folder)}"
            )
            return
        if incarnation == newest:
            self._engine.saver.commit(name, facts["book"])

    def failed(self, name: str, error: str) -> None:
        self._engine.saver.could_not(name, error)
