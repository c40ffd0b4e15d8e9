"""A run: training in a thread of its own, its folder, and what it tells about itself.

The run folder is a contract (metrics.jsonl, report.json, checkpoints/): everything else reads it from there.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from gearshift import __version__
from gearshift.data.dataset import Dataset
from gearshift.data.order import grouping_of_end
from gearshift.errors import UserError, brief, warn
from gearshift.metrics import day_name
from gearshift.metrics.warning_rules import end_of_grouped_file
from gearshift.models import first_weights
from gearshift.parameters.checkpoint import Arrays, Checkpoint
from gearshift.parameters.replicas.figures import from_json
from gearshift.run import control, interrupts, ownership
from gearshift.run import folder as run_folder
from gearshift.run import log as run_log
from gearshift.run.control import Status
from gearshift.run.display import History, status_row, status_text
from gearshift.run.event_log import EventLog, Head
from gearshift.run.health import Health
from gearshift.run.log import Messages
from gearshift.run.metrics_log import MetricsLog
from gearshift.run.report import report
from gearshift.run.result import Result
from gearshift.run.resume import measure_arrays, plan_facts, refuse_other_plan, restore_measures
from gearshift.run.retry import Retries
from gearshift.run.saver import Saver, failure_of
from gearshift.run.trained_model import model_facts
from gearshift.tables import html_table
from gearshift.training.evaluation import Evaluation, evaluate
from gearshift.training.progress import Progress
from gearshift.training.requests import Switch
from gearshift.training.timing import Every, Moment
from gearshift.training.training import Training


@dataclass(frozen=True)
class CheckpointPolicy:
    """When to save (at the end in any case), how many to keep, and in which folder runs are made."""

    every: Every | None = field(default_factory=lambda: Every(seconds=600.0))
    keep: int = 3
    path: str | Path = "runs"
    private: bool = False  # nobody else can enter a run's folder
    retry_for: float = 3600.0  # seconds for which the last save is tried again if the disk is full or gone


class Callback:
    """Override what you need; each is called in the run's own thread, between two steps.

    A callback may ask the run for something (`run.stop()`, `run.checkpoint()`, `run.ask_switch("gba")`), and must not
    wait for it. An exception in a callback ends the run.
    """

    def on_step(self, run: Run) -> None:
        """After every step."""

    def on_eval(self, run: Run, metrics: Evaluation) -> None:
        """After every evaluation on the validation data; `metrics.auc` and others."""

    def on_checkpoint(self, run: Run, path: Path) -> None:
        """When a checkpoint has been written to `path`."""

    def on_switch(self, run: Run, switch: Switch) -> None:
        """When the strategy has changed."""


class Run(History):
    """Training under way, in a thread of its own. `Trainer.start` makes it."""

    def __init__(
        self,
        training: Training,
        policy: CheckpointPolicy,
        callbacks: Sequence[Callback] = (),
        test: Dataset | None = None,
    ) -> None:
        self.training, self.policy, self.callbacks, self.test = training, policy, tuple(callbacks), test
        self.folder = Path()  # known once it started
        self.phase, self.health = "starting", Health()
        self.retries = Retries(policy.retry_for, self.tell)
        self.header: tuple[str, ...] = ()  # what to tell before the start
        self.messages = Messages()  # sentences for the user, in order; all of them are in run.log too
        self.remarks: tuple[str, ...] = ()  # those of before the start: about its data
        self.last_evaluation: Evaluation | None = None
        self._stop, self._save_requested, self._ended = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self._error: BaseException | None = None
        self._result: Result | None = None
        self._warns = False  # whether `wait` gives warnings of Python
        self.resumed: Path | None = None  # the checkpoint it goes on from
        self.make_saver: type[Saver] = Saver
        self.processes: Callable[[], dict[str, dict[str, float]]] = dict  # figures of each, if it has several
        self._thread = threading.Thread(target=self._run, name="gearshift-run", daemon=True)
        self._started = self._save_clock = time.monotonic()
        self._saved_wall: dict[str, Any] = {}  # seconds until the checkpoint that it goes on from
        self._metrics = MetricsLog(self)

    def __repr__(self) -> str:
        return status_text("Run", self.status(), self.folder)

    def _repr_html_(self) -> str:
        return html_table([status_row(self.status(), self.folder)])

    # What others call

    def start(self, folder: Path, *, warns: bool = False) -> None:
        """Trains in the background; `folder` is this run's own.

        With `warns`, `wait` also gives its warning about steps as a `DataWarning`, for users who read no messages.
        """
        self.folder, self._warns = folder, warns
        self.remarks = tuple(self.messages)
        self.messages.keep_in(folder)
        self.health.begin(folder, self.resumed)
        if self.health.is_recovering and self.resumed:  # the time before this process took over counts too
            self._save_clock = time.monotonic() - self.health.checkpoint_age
        self.retries.how_to_stop = f"Ctrl-C or `gearshift stop {folder}`"
        self.retries.what_is_kept = lambda: interrupts.what_is_kept(folder, self.training.step)
        self.saver = self.make_saver(
            folder / "checkpoints", self.policy.keep, self.messages.append, self.resumed
        )
        self.saver.health = self.health
        if self.resumed is not None:
            self.saver.take_over(self.resumed, self.training.progress.best_step)
        self.training.log = self._events = EventLog(folder, self.tell, check=partial(ownership.check, folder))
        with contextlib.ExitStack() as undo:
            undo.callback(self._events.close)
            self._end_control = undo.callback(control.serve(folder, self))
            self._cancel_stop = undo.callback(interrupts.stop_before_exit(self))
            self._thread.start()
            undo.pop_all()

    @property
    def finished(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._ended.is_set() and not self._thread.is_alive()

    def stop(self, *, give_up: bool = False) -> None:
        """Asks the run to stop after this step; it saves a checkpoint first.

        `give_up=True` gives up a save that fails and is being retried (`status().save_retried`): what is in no
        checkpoint is lost.
        """
        self._stop.set()
        if give_up:
            self.retries.give_up()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stop.is_set()

    def checkpoint(self) -> None:
        """Asks the run to save after this step."""
        self._save_requested.set()

    def switch(self, strategy: str, *, reason: str = "", timeout: float = 60.0, **settings: Any) -> Switch:
        """Changes how the workers synchronise, while they train. Returns when the run has changed over.

        The global batch and the learning rates stay. Batches under way and gradients that wait for a step are taken
        over, none is lost.
        """
        self._check_training("switch")
        request = self.training.ask_switch(strategy, settings, reason)
        self._wait_for(request.answered, timeout, f"switch to {strategy}")
        assert request.switch is not None
        return request.switch

    def resize(self, workers: int, *, timeout: float = 60.0) -> None:
        """Changes the number of workers while they train: new ones begin at once, others leave after their batch."""
        self._check_training("resize")
        request = self.training.ask_resize(workers)
        self._wait_for(request.answered, timeout, f"resize to {workers} workers")

    def _check_training(self, command: str) -> None:
        if self.finished or self.phase not in ("starting", "training"):
            raise UserError(
                f"run {self.folder.name} is not training ({self.phase}); `{command}` needs a live run"
            )
        if threading.current_thread() is self._thread:
            raise UserError(
                f"a callback cannot wait for a {command}: call run.ask_{command}, which comes after this step"
            )

    def _wait_for(self, answered: threading.Event, timeout: float, what: str) -> None:
        until = time.monotonic() + timeout
        while not answered.wait(0.05):
            if self.phase not in ("starting", "training"):
                raise UserError(f"run {self.folder.name} ended before it could {what}")
            if time.monotonic() > until:
                raise TimeoutError(
                    f"no worker finished a batch in {timeout:g} s; the {what.split()[0]} waits for one"
                )

    def ask_resize(self, workers: int) -> None:
        """As `resize`, without waiting for it: for callbacks."""
        self.training.ask_resize(workers)

    def ask_switch(self, strategy: str, *, reason: str = "", **settings: Any) -> None:
        """As `switch`, without waiting for it: for callbacks. `Callback.on_switch` is called when it is done."""
        self.training.ask_switch(strategy, settings, reason)

    def tell(self, sentence: str) -> None:
        """A sentence for the user."""
        self.messages.append(sentence)

    def began(self) -> None:
        """Called by the training when an epoch begins."""
        training = self.training
        strategy, plan = training.strategy, training.plan
        settings = asdict(strategy)
        self._events.begin(
            Head(
                training.strategy_name,
                settings,
                training.step,
                training.progress.epoch,
                training.workers,
                plan.seed,
                __version__,
                time.time(),
                training.first_lease,
            )
        )

    def write_events(self) -> None:
        """The log is on disk as far as it goes."""
        self._events.write()

    def switched(self, switch: Switch) -> None:
        """Called by the training when the strategy has changed."""
        why = f": {switch.reason}" if switch.reason else ""
        self.messages.append(
            f"switch {switch.before} -> {switch.strategy} after step {switch.step:,}{why}. "
            f"Took {switch.seconds:.1f} s, {switch.adopted} batches under way taken over, none lost"
        )
        for callback in self.callbacks:
            callback.on_switch(self, switch)

    def status(self) -> Status:
        """Where it stands: step, examples, speed, loss, AUC so far, phase."""
        progress = self.training.progress
        return Status(
            self.training.step,
            progress.examples,
            self.training.total,
            progress.seconds,
            progress.examples / progress.seconds if progress.seconds else 0.0,
            progress.loss,
            progress.measures.auc,
            next(map(day_name, reversed(progress.days.measures)), None),
            self.phase,
            self.health.seconds_since_step,
            self.health.checkpoint_age,
            self.health.failed_saves,
            self._missing_workers(),
            self._seconds(),
            self.retries.active,
        )

    def last_status(self) -> Status:
        """As `status`; of a run on a cluster, as last heard: it asks nobody and never waits."""
        return self.status()

    def _missing_workers(self) -> int:
        """That should be running but are not: they start, or are lost. Workers that are threads are always there."""
        there = self.processes().get("coordinator-0", {}).get("workers", self.training.workers)
        return max(0, self.training.workers - int(there)) if self.phase == "training" else 0

    def wait(self, timeout: float | None = None) -> Result:
        """Waits for the end and returns the result; raises what went wrong, `TimeoutError` if the time is over first.

        Ctrl-C stops the run after its step and saves it; then `KeyboardInterrupt` says how to resume it. A second
        Ctrl-C raises at once.
        """
        try:
            interrupts.wait(self, timeout)
        except KeyboardInterrupt:
            if self._error is None or not self.finished:
                raise
        if self._error is not None:
            raise self._error
        if self._warns and self.training.plain_warning:
            self._warns = False
            warn(self.training.plain_warning)
        assert self._result is not None
        return self._result

    def over(self, seconds: float) -> bool:
        """Waits for the end, so long at most; whether the run is over. Raises nothing of the run's own."""
        # Not `join`: an exception in it makes Python 3.11 take the thread for ended.
        if self._ended.wait(seconds):
            self._thread.join()
        return self._ended.is_set()

    def ending(self) -> str:
        """How a run that is over ended, in a sentence, with the way to resume it."""
        return interrupts.ending(self.folder, self.phase, self.training.step, self._error)

    # The thread

    def _run(self) -> None:
        try:
            self._guarded()
        finally:
            self._cancel_stop()
            self._ended.set()
            first_weights.written(self.training.learner.model)

    def _guarded(self) -> None:
        how: Literal["done", "stopped", "failed"] = "failed"
        try:
            how = self._train()
        except BaseException as error:
            self._error = error
            with contextlib.suppress(Exception):  # the first error is the one to tell
                self.saver.wait()
        self.phase = how
        self.health.ends()
        self._end_control()
        self._events.close()
        if self._error is not None and not isinstance(self._error, UserError):
            run_log.write(self.folder, "".join(traceback.format_exception(self._error)))
        run_folder.finish(self.folder, how, None if self._error is None else brief(self._error))

    def _train(self) -> Literal["done", "stopped"]:
        training = self.training
        self._enter("training")
        self._metrics.begin()
        self._look_at_order()
        training.run(self)
        stopped = self._stop.is_set()  # later is too late: the run is evaluated and done
        self.begin_last_save()
        self.retries.until_done(self._save_last)
        self._tell_callbacks_of_checkpoints()
        self._list_bad_lines()
        self._result = self._stopped_result() if stopped else self._final_result()
        return "stopped" if stopped else "done"

    def _list_bad_lines(self) -> None:
        """For the user to look at: the run is worth as much without the list."""
        if skipped := self.training.train.skipped:
            lines = "".join(f"{line}\n" for line in skipped)
            path = self.folder / "bad_lines.txt"
            if failure := failure_of(path, lambda: run_folder.write_text(path, lines)):
                self.tell(f"{failure}. It would list the lines that were skipped")

    def begin_last_save(self) -> None:
        """All steps are made: what is saved now is tried until it succeeds."""
        self.saver.final = True
        if self.phase != "saving":
            self._enter("saving")

    def train_again(self) -> None:
        """A shard was lost before the last save: the run goes back to the last checkpoint."""
        self.saver.final = False
        self._enter("training")

    def _save_last(self) -> str | None:
        """Why it failed."""
        try:
            self.save_now()
        except OSError as error:
            return self.saver.sentence(self.saver.checkpoints.path(self.training.step), error)
        self.saver.wait()
        return self.saver.failure

    def persist(self, path: Path, write: Callable[[], object]) -> None:
        """A file that the run cannot go on or end without; tried again like the last save."""
        self.retries.until_done(partial(failure_of, path, write), "The run cannot go on without it")

    def _look_at_order(self) -> None:
        grouping = grouping_of_end(self.training.train, self.training.valid)
        if grouping is not None:
            self.training.data_warning = end_of_grouped_file(grouping.words)
            self.tell(f"Warning: {self.training.data_warning}")

    def _stopped_result(self) -> Result:
        """What is known without another pass over validation data: the run may be resumed, or about to be killed."""
        figures = report(self.training, self.training.step, self.last_evaluation, seconds=self._seconds())
        return self._result_of(figures | self.health.totals())

    def _result_of(self, figures: dict[str, Any]) -> Result:
        return Result(self.training.learner, self.facts(), self.folder, figures)

    @property
    def measures_at_the_end(self) -> bool:
        """Whether parameters are looked at once more when the training is over."""
        no_measure = self.last_evaluation is None and self.training.valid is not None
        return not self.stopping and (self.test is not None or no_measure)

    def _final_result(self) -> Result:
        training, steps = self.training, self.training.step
        self._enter("evaluating")
        self._take_best()
        if self.last_evaluation is None and training.valid is not None:  # resumed after the last one
            self.last_evaluation = evaluate(training.learner, training.valid)
        baseline = training.baseline and training.valid and evaluate(training.baseline, training.valid)
        test = evaluate(training.learner, self.test) if self.test else None
        figures = report(
            training, steps, self.last_evaluation, test, baseline or None, seconds=self._seconds()
        )
        figures |= self.health.totals()
        path = self.folder / "report.json"
        self.persist(path, lambda: run_folder.write_json(path, figures))
        for sentence in figures["warnings"]:
            if sentence != training.data_warning:
                self.tell(f"Warning: {sentence}")
        return self._result_of(figures)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.health.enters(phase)

    def _seconds(self) -> float:
        """Wall time of the whole run, like its examples: of this session and of those that it was resumed from."""
        wall = self._wall_facts()
        return float(wall["before"] + wall["here"])

    def _wall_facts(self) -> dict[str, Any]:
        """Seconds of this session and of those before. A restarted coordinator goes on in the same session."""
        mine, saved = ownership.held(self.folder), self._saved_wall
        here = mine.seconds if mine else time.monotonic() - self._started
        session = mine.session if mine else ""
        if not session or saved.get("session") != session:
            saved = {"before": saved.get("before", 0.0) + saved.get("here", 0.0)}
        return {"session": session, "before": saved["before"], "here": here}

    def stepped(self, before: Moment) -> bool:
        """Called by the training after every step; False asks it to stop."""
        self.health.stepped()
        for callback in self.callbacks:
            callback.on_step(self)
        self._tell_callbacks_of_checkpoints()
        every = self.policy.every
        if every and every.seconds is None and every.due(before, self.training.moment):
            self._save_requested.set()
        self.ask_save_in_time()
        self.save_if_requested()
        self._metrics.stepped()
        return not self._stop.is_set()

    def evaluated(self, evaluation: Evaluation, is_best: bool) -> None:
        """Called by the training after every evaluation."""
        self.last_evaluation = evaluation
        self._metrics.write(**{f"valid_{k}": v for k, v in evaluation.measures.as_dict().items()})
        if is_best and self.training.plan.keep_best:
            self._save(best=True)
        for callback in self.callbacks:
            callback.on_eval(self, evaluation)

    def _tell_callbacks_of_checkpoints(self) -> None:
        for path in self.saver.take_written():
            for callback in self.callbacks:
                callback.on_checkpoint(self, path)

    def _take_best(self) -> None:
        """With `keep_best`, goes back to the parameters that scored best on the validation data."""
        training, best = self.training, self.training.progress.best_step
        if not training.plan.keep_best or training.valid is None or best == training.step:
            return
        if not self.saver.has(best):
            self.messages.append(f"step {best:,} scored best but is not saved; the last step is kept")
            return
        training.learner.restore(Checkpoint.open(self.saver.checkpoints.path(best)))
        self.last_evaluation = evaluate(training.learner, training.valid)

    # Saving and restoring

    def save_now(self) -> None:
        """From the run's own thread, between two steps."""
        self._save(best=not self.training.plan.keep_best or self.training.valid is None)

    def ask_save_in_time(self) -> None:
        """As `checkpoint.every` says, in wall time: also the time counts in which the run recovers."""
        every = self.policy.every
        if every and every.seconds is not None and time.monotonic() - self._save_clock >= every.seconds:
            self._save_clock = time.monotonic()
            self._save_requested.set()

    def save_if_requested(self) -> None:
        """The same; once replicas are where they can be saved."""
        if self._save_requested.is_set() and self.training.settle():
            self._save_requested.clear()
            self._save(best=False)

    def _save(self, *, best: bool) -> None:
        training = self.training
        if self.saver.has(training.step):
            if best:
                self.saver.link("best", self.saver.checkpoints.path(training.step))
            return
        learners = (training.learner, *((training.baseline,) if training.baseline else ()))
        arrays: dict[str, Arrays] = {
            "progress": measure_arrays(training.progress),
            "random": {"torch": torch.get_rng_state().numpy()},  # a user's own module may draw from it
        }
        if training.block_velocity is not None:
            arrays["replicas"] = {"velocity": training.block_velocity.numpy()}
        self.saver.save(training.step, self.facts(), arrays, learners, best=best)

    def facts(self) -> dict[str, Any]:
        """What a checkpoint remembers beside the arrays."""
        training = self.training
        training.note_position()
        counted = {k: v for k, v in vars(training.progress).items() if k not in ("measures", "days")}
        progress = copy.deepcopy(counted)  # it is written while training goes on
        return {
            "step": training.step,
            "seed": training.plan.seed,
            "total": training.total,
            "wall_seconds": self._wall_facts(),
            "progress": progress,
            "model": model_facts(training.learner.model),
            "schema": training.learner.schema.to_dict(),
            "settings": training.learner.settings,
            "strategy": training.strategy_facts(),
            "workers": {"planned": training.plan.workers, "now": training.workers},
            "parts": training.learner.parts,
            "plan": plan_facts(training),
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Goes on where the checkpoint was made, bit for bit."""
        training, facts = self.training, checkpoint.facts
        refuse_other_plan(training, checkpoint)
        training.learner.restore(checkpoint)
        if training.baseline and not checkpoint.has("baseline-dense"):
            training.baseline = None
            self.tell("no logistic regression goes on beside the model: the checkpoint has none")
        elif training.baseline:
            training.baseline.restore(checkpoint)
        if facts["plan"]["epochs"] == str(training.plan.epochs):
            training.total = facts["total"]
        training.progress = Progress(**facts["progress"])
        training.replica_counts = from_json(training.progress.exchanges)
        # A checkpoint of an older version knows only the time in training.
        self._saved_wall = facts.get("wall_seconds", {"before": training.progress.seconds})
        training.restore_workers(facts.get("workers", {}))
        if "strategy" in facts and facts["strategy"].get("planned", training.planned) == training.planned:
            training.restore_strategy(facts["strategy"])  # it may have been switched on the way
        else:
            self.tell(
                f"goes on with {training.plan.strategy}, as asked; the run had {facts['strategy']['name']}"
            )
        restore_measures(training.progress, checkpoint.arrays("progress"))
        if checkpoint.has("replicas"):
            training.block_velocity = torch.from_numpy(checkpoint.arrays("replicas")["velocity"])
        torch.set_rng_state(torch.from_numpy(checkpoint.arrays("random")["torch"]))
        self.resumed = checkpoint.path
