"""A run before its start: its training is new or restored from a checkpoint. Nothing has been written yet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gearshift.data.dataset import Dataset
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.run import folder as run_folder
from gearshift.run import interrupts, ownership
from gearshift.run.callbacks import Callback
from gearshift.run.checkpoint_content import restore_training
from gearshift.run.checkpoint_policy import CheckpointPolicy
from gearshift.run.event_log import EventLog
from gearshift.run.final_result import FinalResult
from gearshift.run.health import Health
from gearshift.run.intact import naming_intact
from gearshift.run.last_save import LastSave
from gearshift.run.local_run import Run
from gearshift.run.log import Messages
from gearshift.run.metrics_log import MetricsLog, Processes
from gearshift.run.observer import RunObserver
from gearshift.run.parts import RunParts
from gearshift.run.retry import Retries
from gearshift.run.saver import MakeSaver, Saver
from gearshift.run.saving import Saving
from gearshift.run.storage_watch import StorageWatch, figures_here
from gearshift.run.wall_time import WallTime
from gearshift.training.engine import Engine
from gearshift.training.training import Training


class PreparedRun:
    """A run that is ready to start; `start` may be called once."""

    def __init__(
        self,
        training: Training,
        policy: CheckpointPolicy,
        callbacks: Sequence[Callback] = (),
        test: Dataset | None = None,
    ) -> None:
        self.training, self.policy, self.callbacks, self.test = training, policy, tuple(callbacks), test
        self.messages: list[str] = []  # messages for the user, about the data
        self.resumed: Path | None = None  # the checkpoint that it continues from
        self.health, self.wall = Health(), WallTime()

    def notify(self, sentence: str) -> None:
        """Adds a message for the user, which is shown when the run starts."""
        self.messages.append(sentence)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continues where the checkpoint was made, bit for bit."""
        with naming_intact():
            restore_training(self.training, checkpoint, self.notify)
        # Checkpoints of older versions have only the training time.
        known = {"before": self.training.progress.seconds}
        self.wall.restore(checkpoint.facts.get("wall_seconds", known))
        self.resumed = checkpoint.path

    def start(
        self,
        folder: Path,
        engine: Engine[RunObserver],
        *,
        header: Sequence[str] = (),
        warns: bool = False,
        make_saver: MakeSaver = Saver,
        processes: Processes | None = None,
    ) -> Run:
        """Trains in the background with the workers of `engine`. `folder` must belong to this run alone.

        The other arguments are those of `Run`.
        """
        if processes is None:  # all shards are here
            processes = partial(figures_here, self.training)
        parts = self._parts(folder, engine.name, make_saver, processes)
        run = Run(parts, engine, self.callbacks, header, processes, warns=warns)
        run.thread.start()
        return run

    def _parts(self, folder: Path, engine: str, make_saver: MakeSaver, processes: Processes) -> RunParts:
        training, health = self.training, self.health
        messages = Messages(folder, self.messages)
        health.begin(folder, self.resumed)
        clock = self.wall.began
        if health.is_recovering and self.resumed:  # the time before this process took over counts too
            clock = time.monotonic() - health.checkpoint_age
        retries = Retries(
            self.policy.retry_for,
            messages.append,
            f"Ctrl-C or `gearshift stop {folder}`",
            lambda: interrupts.what_is_kept(folder, training.step),
        )
        saver = make_saver(
            folder / run_folder.CHECKPOINTS, self.policy.keep, messages.append, self.resumed, health
        )
        if self.resumed is not None:
            saver.take_over(self.resumed, training.progress.best_step)
        saving = Saving(training, self.policy, saver, self.wall, clock)
        last_save = LastSave(saving, retries, health)
        final = FinalResult(saving, last_save, health, self.wall, messages, engine, self.test)
        metrics = MetricsLog(folder, training, health, processes, messages.append)
        events = EventLog(folder, messages.append, check=partial(ownership.check, folder))
        storage = StorageWatch(training, processes)
        return RunParts(
            training, messages, health, self.wall, saving, last_save, final, metrics, events, storage
        )
