"""From where a run is started: starts its processes on Ray, and shows what they tell until it ends.

The run does not need its starter: if that is gone, it goes on, and `gearshift watch` shows it again.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from gearshift.engine.ray.coordinator_process import coordinate
from gearshift.engine.ray.local_cluster import LocalRay
from gearshift.engine.ray.process_context import (
    FOLDER_SECONDS,
    ProcessContext,
    Recipe,
    read_state,
    write_state,
)
from gearshift.engine.ray.settings import ClusterSettings
from gearshift.engine.ray.shard_process import serve
from gearshift.engine.ray.worker_process import work
from gearshift.errors import UserError
from gearshift.parameters import checkpoint
from gearshift.run import control, event_log, interrupts, ownership, process_identity, temporary_folders
from gearshift.run import folder as run_folder
from gearshift.run import log as run_log
from gearshift.run.control import Status
from gearshift.run.display import History, status_row, status_text
from gearshift.run.result import Result
from gearshift.run.trained_model import load
from gearshift.tables import html_table
from gearshift.training.requests import Switch

if TYPE_CHECKING:
    from gearshift.engine.ray import actors

POLL_SECONDS = 0.2
SILENCE = object()  # what no answer is
SOON_SECONDS = 1.0  # for which a look waits for an answer
ANSWER_SECONDS = 20.0  # after which a question is asked again
LOST_SECONDS = (
    180.0  # without Ray's head, or without a coordinator on a local cluster, after which the run is lost
)
LEAVE_SECONDS = 15.0  # for Ray to disconnect
GONE_SECONDS = 2.0  # the same, from a cluster that is gone
PLACE_SECONDS = 30.0  # in which Ray must find room


def start(
    recipe: Recipe,
    settings: ClusterSettings,
    *,
    folder: Path,
    workers: int,
    shards: int,
    origin: Path | None = None,
    model: nn.Module | None = None,
    private: bool = False,
) -> LaunchedRun:
    """`folder` is this run's own and is handed over; `origin` a checkpoint of another run to go on from."""
    for name in ("ray", "zmq"):
        if find_spec(name) is None:
            raise UserError("engine=ray needs the extra: pip install 'gearshift-ctr[ray]'")
    wire = settings.wire if settings.wire != "auto" else ("ipc" if settings.address == "local" else "curve")
    transport = settings.transport(wire)
    cpus = settings.coordinator_cpus + shards * settings.shard_cpus + workers * settings.worker_cpus
    session = run_folder.hand_over(folder)
    local = LocalRay.start(cpus, folder) if settings.address == "local" else None
    plan, coordinator, sockets, connected = None, None, local.sockets if local else "", False
    try:
        ray = _ray()
        ray.connect(local.address if local else settings.address)
        connected = True
        plan = _plan(ray, settings, folder, workers, shards)
        if wire == "ipc" and not local:
            ray.refuse_several_machines(plan)
            sockets = str(temporary_folders.make(temporary_folders.SOCKETS, folder))
        context = ProcessContext(
            recipe,
            folder.resolve(),
            str(Path.cwd()),
            shards,
            wire,
            sockets,
            settings.half,
            settings.threads,
            patience=settings.patience,
            local=local,
            transport=transport,
            folder_seconds=FOLDER_SECONDS,
            token=session,
            private=private,
        )
        write_state(folder, token=context.token, starts_before=read_state(folder).get("start", 0))
        write_state(folder, logs_before=len(event_log.files(folder)))
        if origin is not None:
            write_state(folder, origin=str(origin.resolve()))
        write_state(folder, ray=local.address if local else settings.address)
        write_state(folder, workers=None, strategy=None, tries=None)  # of an earlier start
        ownership.LeaseKeeper(folder, session, "ray", process_identity.identity(local.pid) if local else {})
        coordinator = ray.launch(plan, coordinate, {"shard": serve, "worker": work}, context)
        return LaunchedRun(context, coordinator, plan, ray, model)
    except BaseException:
        if coordinator is not None:
            ray.end(coordinator, plan)
        elif plan is not None:
            ray.leave_place(plan)
        if connected:
            ray.leave()
        if local is not None:
            local.stop()
        elif sockets:
            shutil.rmtree(sockets, ignore_errors=True)
        raise


def _ray() -> Any:
    # A minute after its head is gone, Ray ends this very process with a word of its own; ours says what to do.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", f"{2 * LOST_SECONDS:.0f}")
    from gearshift.engine.ray import actors

    return actors


def _plan(
    ray: Any, settings: ClusterSettings, folder: Path, workers: int, shards: int
) -> actors.ProcessPlacement:
    needs = {
        "coordinator": ray.ProcessResources(settings.coordinator_cpus),
        "shard": ray.ProcessResources(settings.shard_cpus),
        "worker": ray.ProcessResources(settings.worker_cpus, settings.worker_gpus),
    }
    plan: actors.ProcessPlacement = ray.ProcessPlacement(
        f"{folder.name}-{os.getpid()}", needs, shards, workers, settings.spread
    )
    return replace(plan, group=ray.reserve(plan, PLACE_SECONDS))


class LaunchedRun(History):
    """A run on a cluster, seen from where it was started. As `Run`, for whoever watches and asks."""

    def __init__(
        self, context: ProcessContext, coordinator: Any, plan: Any, ray: Any, model: nn.Module | None
    ) -> None:
        self.folder, self._context = context.folder, context
        self.messages: list[str] = []
        self.header: tuple[str, ...] = ()
        self._coordinator, self._plan, self._ray, self._model = coordinator, plan, ray, model
        self._status = Status(0, 0, 1, 0.0, 0.0, float("nan"), float("nan"), None, "starting")
        self._said: dict[str, Any] = {}
        self._seen, self._start = 0, 0  # messages heard of this start of the coordinator
        self._asked_at = 0.0
        self._heard = time.monotonic()
        self._question: Any = None  # to the coordinator, under way
        self._headless_since: float | None = None
        self._watchdog = ray.CoordinatorWatchdog(coordinator, context.patience, self.tell)
        self._error: BaseException | None = None
        self._over = self._stopping = self._looking = False
        self._stop_heard_by = -1  # the start of the coordinator that was asked to stop
        self._result: Result | None = None
        self._keeper = ownership.LeaseKeeper(self.folder, context.token, "driver")
        # A cluster that others started goes on without this process, and so does the run.
        self._cancel_stop = interrupts.stop_before_exit(self) if context.local else lambda: None

    def tell(self, sentence: str) -> None:
        """What is noticed here and not by the coordinator, which writes a log of its own sentences."""
        self.messages.append(sentence)
        run_log.write(self.folder, sentence, session=self._context.token)

    def __repr__(self) -> str:
        return status_text("Run", self._status, self.folder)

    def _repr_html_(self) -> str:
        return html_table([status_row(self._status, self.folder)])

    # What it tells

    @property
    def finished(self) -> bool:
        self._look()
        return self._over

    def status(self) -> Status:
        self._look()
        return self._status

    def last_status(self) -> Status:
        """As last heard: it asks nobody and never waits, also while Ray's head is frozen."""
        return self._status

    def processes(self) -> dict[Any, tuple[int, str]]:
        """Pid and machine of each, by role and number."""
        self._look()
        return dict(self._said.get("places", {}))

    def figures(self) -> dict[str, dict[str, float]]:
        """What each process did since its start, by its name, as worker-3."""
        self._look()
        return dict(self._said.get("figures", {}))

    def _look(self) -> None:
        """Never takes long: a question that is not answered yet is looked at again the next time."""
        if self._over or self._looking or time.monotonic() - self._asked_at < POLL_SECONDS:
            return
        self._looking = True  # a signal handler may ask for the status meanwhile
        try:
            self._look_now()
        finally:
            self._looking = False

    def _look_now(self) -> None:
        if self._context.local is not None and self._context.local.died():
            if not self._ended_by_itself():  # a run that has ended ends its cluster
                self._fail(f"the Ray cluster of this run died ({self._context.local.last_words()})")
            return
        if self._question is None:
            self._question = self._coordinator.watch.remote(self._seen, self._start)
            self._questioned_at = time.monotonic()
        if not self._ray.answered(self._question, SOON_SECONDS):
            self._deal_with_silence()
            if time.monotonic() - self._questioned_at > ANSWER_SECONDS:
                self._question = None
            return
        said, self._question = self._ray.answer(self._question), None
        self._asked_at = time.monotonic()
        if said is not None:
            self._hear(said)
        else:
            self._deal_with_silence()

    def _deal_with_silence(self) -> None:
        if self._ended_by_itself():
            return
        if not self._ray.answers():  # and what is asked of it would wait
            self._without_head()
        else:
            self._headless_since = None
            self._without_coordinator()

    def _ended_by_itself(self) -> bool:
        """Whether run.json says how the run ended; then this is its end here too."""
        record = _record(self.folder)
        if record is None or record.ended is None:
            return False
        self._end(None if record.state != "failed" else (record.reason, True))
        return True

    def _without_coordinator(self) -> None:
        found = self._ray.state_of(self._coordinator)
        if found.state == "dead":
            self._fail(f"the coordinator cannot be started: {found.cause}")
        elif time.monotonic() - self._heard < LOST_SECONDS:
            self._watchdog.silent()
        elif self._context.local is not None:
            self._fail(f"the coordinator was lost and did not start again within {LOST_SECONDS:g} s")
        else:
            self.tell(
                f"nothing was heard of the coordinator for {LOST_SECONDS:g} s; Ray starts it anew as soon as there is "
                "a machine for it"
            )
            self._heard = time.monotonic()

    def _without_head(self) -> None:
        now = time.monotonic()
        if self._headless_since is None:
            self._headless_since = now
            self.tell(f"Ray's head does not answer; if it is not back in {LOST_SECONDS:g} s, this ends")
        elif now - self._headless_since > LOST_SECONDS:
            self._error = UserError(
                f"Ray does not answer any more: its head is gone, or this machine cannot reach it. {self._resume}"
            )
            self._leave(GONE_SECONDS)

    @property
    def _resume(self) -> str:
        return f"The run's last checkpoint is intact; resume: gearshift train --resume {self.folder}"

    def _fail(self, reason: str) -> None:
        """The run cannot go on and cannot say so itself: everything of it is ended, and its folder says why."""
        sentence = f"{reason}. {self._resume}"
        self._error = UserError(sentence)
        self._status = replace(self._status, phase="failed")
        if self._context.local is not None:
            self._context.local.stop()  # first: who is gone writes nothing any more, and Ray has nothing to wait for
        else:
            self._ray.end(self._coordinator, self._plan)
        with suppress(OSError, UserError):
            self._context.check_not_taken()  # what another session has there now is not ours to remove
            fault = run_log.Fault("lost", "ray", reason=reason, action="the run ended")
            run_log.record(self.folder, fault, session=self._context.token)
            control.remove(self.folder)
        with suppress(OSError, UserError):
            run_folder.finish_for_session(self.folder, "failed", sentence)
        self._leave(GONE_SECONDS)

    def _hear(self, said: dict[str, Any]) -> None:
        self._heard, self._said = time.monotonic(), said
        self._watchdog.heard()
        self.header = self.header or tuple(said.get("header", ()))
        fresh = said.get("messages", ())
        self._seen = len(fresh) + (self._seen if said["start"] == self._start else 0)
        self._start = said["start"]
        self.messages += fresh
        self._status = said.get("status", self._status)
        if said["over"]:
            self._end(said["error"])
        elif self._stopping and said["start"] != self._stop_heard_by:
            self._send_stop()

    def _end(self, error: tuple[str, bool] | None) -> None:
        if error is not None:
            self._error = UserError(error[0]) if error[1] else RuntimeError(error[0])
            self._status = replace(self._status, phase="failed")
            record = _record(self.folder)
            if record is not None and record.ended is None:  # it failed before the run was its own
                with suppress(OSError):
                    run_folder.finish_for_session(self.folder, "failed", error[0])
        else:
            state = run_folder.read(self.folder).state
            self._status = replace(self._status, phase="stopped" if state == "stopped" else "done")
        self._finish()

    def _finish(self) -> None:
        if (
            self._context.local is not None and self._context.local.died()
        ):  # Ray would wait for it for minutes
            self._leave(GONE_SECONDS)
            return
        self._ray.end(self._coordinator, self._plan)
        self._leave()

    def _leave(self, seconds: float = LEAVE_SECONDS) -> None:
        self._over = True
        self._cancel_stop()
        with suppress(OSError):  # a folder that cannot be written
            self._keeper.close()
        leaving = threading.Thread(target=self._ray.leave, daemon=True)  # it may wait for what is gone
        leaving.start()
        leaving.join(seconds)
        if self._context.local is not None:
            self._context.local.stop()

    # What is asked of it

    def switch(self, strategy: str, *, reason: str = "", **settings: Any) -> Switch:
        found: Switch = self._ask("switch", strategy, reason=reason, **settings)
        return found

    def resize(self, workers: int) -> None:
        self._ask("resize", workers)

    def stop(self, *, give_up: bool = False) -> None:
        """As `Run.stop`. A coordinator that restarts is asked again, and never to give up: its save may succeed."""
        self._stopping = True
        if not self._over:
            self._send_stop(give_up=give_up)

    def _send_stop(self, *, give_up: bool = False) -> None:
        self._stop_heard_by = self._start
        self._coordinator.ask.remote("stop", give_up=give_up)

    def checkpoint(self) -> None:
        self._ask("checkpoint")

    def _ask(self, method: str, *arguments: Any, **settings: Any) -> Any:
        if self.finished:
            raise UserError(f"run {self.folder.name} is over; `{method}` needs a live run")
        found = self._ray.answer(
            self._coordinator.ask.remote(method, *arguments, **settings), 75.0, silence=SILENCE
        )
        if found is SILENCE:
            raise UserError(f"run {self.folder.name} does not answer just now; give `{method}` again")
        return found

    def wait(self, timeout: float | None = None) -> Result:
        """As `Run.wait`: Ctrl-C stops the run, which saves, and `KeyboardInterrupt` says how to resume it."""
        try:
            interrupts.wait(self, timeout)
        except KeyboardInterrupt:
            if self._error is None or not self._over:
                raise
        if self._error is not None:
            raise self._error
        self._result = self._result or _result(self.folder, self._model)
        return self._result

    def over(self, seconds: float) -> bool:
        """Waits for the end, so long at most; whether the run is over. Raises nothing of the run's own."""
        until = time.monotonic() + seconds
        while not self.finished:
            if time.monotonic() >= until:
                return False
            time.sleep(POLL_SECONDS / 4)
        return True

    def ending(self) -> str:
        """How a run that is over ended, in a sentence, with the way to resume it."""
        return interrupts.ending(self.folder, self._status.phase, self._status.step, self._error)


def _record(folder: Path) -> run_folder.RunRecord | None:
    """None if it cannot be read just now."""
    with suppress(OSError, UserError):
        return run_folder.read(folder)
    return None


def _result(folder: Path, model: nn.Module | None) -> Result:
    """Its rows may be more than this machine has room for: they are loaded when somebody asks for them."""
    best, file = checkpoint.resolve(folder), folder / run_folder.REPORT
    report = json.loads(file.read_text()) if file.exists() else {}
    return Result(lambda: load(best, model).learner, checkpoint.read_facts(best), folder, report)
