"""The thread in which a run trains, from its start to its end; it holds the result, or the error."""

from __future__ import annotations

import contextlib
import threading
import traceback
from typing import Literal

from gearshift.data.order import grouping_of_end
from gearshift.errors import UserError, brief
from gearshift.metrics.warning_rules import end_of_grouped_file
from gearshift.models import first_weights
from gearshift.run import folder as run_folder
from gearshift.run import interrupts
from gearshift.run import log as run_log
from gearshift.run.control_socket_server import ControlChannel
from gearshift.run.interrupts import ExitStop
from gearshift.run.observer import RunObserver
from gearshift.run.result import Result
from gearshift.run.saver import failure_of
from gearshift.training.engine import Engine


class RunThread:
    def __init__(
        self, observer: RunObserver, engine: Engine[RunObserver], channel: ControlChannel, exit_stop: ExitStop
    ) -> None:
        """`engine` runs the workers; `channel` and `exit_stop` are open while the run is live."""
        self._observer, self._parts, self._engine = observer, observer.parts, engine
        self.channel, self._exit_stop = channel, exit_stop
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gearshift-run", daemon=True)
        self.error: BaseException | None = None
        self.result: Result | None = None

    def start(self) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(self._parts.events.close)
            self.channel.open()
            undo.callback(self.channel.close)
            self._exit_stop.set()
            undo.callback(self._exit_stop.cancel)
            self._thread.start()
            undo.pop_all()

    @property
    def finished(self) -> bool:
        return self._ended.is_set() and not self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread, as callbacks do."""
        return threading.current_thread() is self._thread

    def over(self, seconds: float) -> bool:
        """Waits at most this long for the end. Returns whether the run has ended."""
        # Not `join`: if it is interrupted by an exception, Python 3.11 considers the thread ended.
        if self._ended.wait(seconds):
            self._thread.join()
        return self._ended.is_set()

    def _run(self) -> None:
        try:
            self._guarded()
        finally:
            self._exit_stop.cancel()
            self._ended.set()
            first_weights.written(self._parts.training.learner.model)

    def _guarded(self) -> None:
        parts, folder = self._parts, self._parts.folder
        how: Literal["done", "stopped", "failed"] = "failed"
        try:
            how = self._train()
        except BaseException as error:
            self.error = error
            with contextlib.suppress(Exception):  # the first error is the one to report
                parts.saving.saver.wait()
        parts.health.ends(how)
        self.channel.close()
        parts.events.close()
        if self.error is not None and not isinstance(self.error, UserError):
            run_log.write(folder, "".join(traceback.format_exception(self.error)))
        run_folder.finish(folder, how, None if self.error is None else brief(self.error))

    def _train(self) -> Literal["done", "stopped"]:
        parts, observer = self._parts, self._observer
        parts.health.enters("training")
        parts.metrics.begin()
        self._look_at_order()
        parts.training.run(self._engine, observer)
        parts.final.note_tier()
        stopped = observer.stop_requested  # later is too late: the run is evaluated and done
        parts.last_save.save()
        observer.announce_checkpoints()
        if parts.storage.failure is not None:
            step = f"{parts.training.step:,}"
            raise UserError(
                f"{parts.storage.failure}. Step {step} is saved. Make room and resume the run, or resume it with "
                f"another folder: {interrupts.resume_elsewhere_hint(parts.folder)}"
            )
        self._list_bad_lines()
        self.result = parts.final.of_stopped() if stopped else parts.final.of_finished()
        return "stopped" if stopped else "done"

    def _look_at_order(self) -> None:
        training = self._parts.training
        grouping = grouping_of_end(training.train, training.valid)
        if grouping is not None:
            self._parts.final.data_warning = end_of_grouped_file(grouping.words)
            self._observer.notify(f"Warning: {self._parts.final.data_warning}")

    def _list_bad_lines(self) -> None:
        """Writes the skipped lines for the user. The run does not depend on this file."""
        if skipped := self._parts.training.train.skipped:
            lines = "".join(f"{line}\n" for line in skipped)
            path = self._parts.folder / "bad_lines.txt"
            if failure := failure_of(path, lambda: run_folder.write_text(path, lines)):
                self._observer.notify(f"{failure}. The file would list the skipped lines")
