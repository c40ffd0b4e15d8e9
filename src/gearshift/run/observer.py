"""A run's reaction to events of its training: it logs, measures, saves, and calls the user's callbacks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from gearshift import __version__
from gearshift.run.callbacks import Callback
from gearshift.run.event_log import Head
from gearshift.sync.events import Action, Event
from gearshift.training.evaluation import Evaluation
from gearshift.training.requests import Switch
from gearshift.training.timing import Moment

if TYPE_CHECKING:
    from gearshift.run.local_run import Run
    from gearshift.run.parts import RunParts


class RunObserver:
    """The training's `Observer`. The coordinator of a cluster also uses it to reach the parts of its run."""

    def __init__(
        self, run: Run, parts: RunParts, callbacks: Sequence[Callback], stop: threading.Event
    ) -> None:
        """`run` is passed to callbacks; `stop` is set when the run was asked to stop."""
        self.parts = parts
        self._run, self._callbacks, self._stop = run, tuple(callbacks), stop

    @property
    def stop_requested(self) -> bool:
        return self._stop.is_set()

    def began(self, first_lease: int) -> None:
        training = self.parts.training
        self.parts.events.begin(
            Head(
                training.active_strategy.name,
                asdict(training.strategy),
                training.step,
                training.progress.epoch,
                training.workers,
                training.plan.seed,
                __version__,
                time.time(),
                first_lease,
            )
        )

    def happened(self, event: Event, actions: list[Action]) -> None:
        self.parts.events(event, actions)

    def stepped(self, before: Moment, ready_to_save: Callable[[], bool]) -> bool:
        self.parts.health.stepped()
        for callback in self._callbacks:
            callback.on_step(self._run)
        self.announce_checkpoints()
        saving = self.parts.saving
        saving.request_after_step(before)
        saving.request_in_time()
        saving.save_if_requested(ready_to_save)
        self.parts.metrics.stepped()
        if (failure := self.parts.storage.look()) is not None:
            self.notify(f"{failure}. The run stops at a checkpoint")
            self._stop.set()
        return not self._stop.is_set()

    def evaluated(self, evaluation: Evaluation, is_best: bool) -> None:
        parts = self.parts
        parts.final.last_evaluation = evaluation
        parts.metrics.write(**{f"valid_{k}": v for k, v in evaluation.measures.as_dict().items()})
        if is_best and parts.training.plan.keep_best:
            parts.saving.save(best=True)
        for callback in self._callbacks:
            callback.on_eval(self._run, evaluation)

    def switched(self, switch: Switch) -> None:
        why = f": {switch.reason}" if switch.reason else ""
        self.notify(
            f"switch {switch.before} -> {switch.strategy} after step {switch.step:,}{why}. "
            f"Took {switch.seconds:.1f} s, {switch.adopted} batches in flight carried over, none lost"
        )
        for callback in self._callbacks:
            callback.on_switch(self._run, switch)

    def notify(self, sentence: str) -> None:
        self.parts.messages.append(sentence)

    def announce_checkpoints(self) -> None:
        """Calls the callbacks for checkpoints written since the last call."""
        for path in self.parts.saving.saver.take_written():
            for callback in self._callbacks:
                callback.on_checkpoint(self._run, path)
