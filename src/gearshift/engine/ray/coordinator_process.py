"""The run in the coordinator's process: its accounts, evaluations and checkpoints, while others compute.

A `Run` like any other, with its folder, its log and its control socket; only its passes over the data are made by
processes elsewhere. It holds no rows: an evaluation looks at those of the shards, at the step where the run stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from gearshift.data.batch import Floats, Ids
from gearshift.embedding.sharded import IdPlacement
from gearshift.engine.protocol.all_reduce import AllReduceGroups, Transport
from gearshift.engine.protocol.coordinator import CoordinatorRole
from gearshift.engine.protocol.host import StateLost
from gearshift.engine.protocol.messages import Done, Message, Peek, Saved, Seen, ShardHello, To
from gearshift.engine.ray.accounts import TrainingAccounts
from gearshift.engine.ray.dense_copy import why_not_copied
from gearshift.engine.ray.process_context import (
    Membership,
    ProcessContext,
    driver_of,
    endpoint_of,
    layout_of,
    read_state,
    write_state,
)
from gearshift.engine.ray.remote_rows import RemoteRows
from gearshift.engine.ray.saver import ClusterSaver, FolderSnapshotStore
from gearshift.engine.ray.snapshots import Size
from gearshift.engine.ray.worker_process import STARTS
from gearshift.engine.wire.driver import CoordinatorRunner
from gearshift.errors import UserError
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.run import folder as run_folder
from gearshift.run import log as run_log
from gearshift.run import ownership
from gearshift.run.event_log import last_step
from gearshift.run.local_run import Run
from gearshift.run.retry import backoff
from gearshift.sync.registry import shared_replicas_need_threads
from gearshift.sync.replicated import choices_of
from gearshift.sync.strategy import Strategy
from gearshift.training.engine import Observer
from gearshift.training.training import Training

TRIES = 8  # starts of the coordinator without a new checkpoint between them, after which the run ends


class ProcessManager(Protocol):
    """Who starts and ends the other processes."""

    def begin(self, context: ProcessContext, workers: int) -> None: ...
    def resize(self, workers: int) -> None: ...
    def rest(self) -> None:
        """The work is done: who ends now is not started anew."""

    def replace(self, who: To, boot: int, reason: str) -> None:
        """The process of that start does not answer: it is ended, and another is started in its place."""

    def failure(self) -> str | None:
        """Why the run cannot go on: a process that fails again and again."""

    def heeded_by(self, notice: Callable[[Sequence[To], str], None]) -> None:
        """Whom to tell that these members will be gone soon, and why."""

    def replaced_to(self, hear: Callable[[To, str], None]) -> None:
        """Whom to tell that this member did not answer and is replaced, and the reason."""

    def figures(self) -> dict[str, dict[str, float]]:
        """The newest of each process, by its name."""

    def step_down(self) -> None:
        """Another coordinator has taken this one's place: this process ends at once, and writes nothing."""

    def close(self) -> None: ...


def coordinate(member: Membership, context: ProcessContext, process_manager: ProcessManager) -> Run:
    """Starts the run in threads of its own; whoever waits for it asks the `Run`."""
    context.enter(restarted=member.restarted)
    folder = context.folder
    mine = run_folder.claim(folder, command=run_folder.read(folder).command, session=context.token or None)
    resumed = (folder / run_folder.CHECKPOINTS / run_folder.LAST).exists()
    refuse_to_die_again(folder, member.start)
    run = context.build(resume=folder if resumed else origin_of(folder))
    run.training.engine = RayEngine(run, member, context, process_manager)
    run.make_saver = ClusterSaver
    run.processes = process_manager.figures
    run.header = context.recipe.header(run, folder)
    if context.restarts():
        tell_of_restart(run, folder, mine.seconds_without_owner)
    run.start(folder)
    return run


def tell_of_restart(run: Run, folder: Path, seconds: float) -> None:
    """The coordinator before this one was lost so many `seconds` ago. Its event log knows how far it came."""
    where = run.resumed.name if run.resumed else "the beginning"
    logs_before = int(read_state(folder).get("logs_before", 0))
    again = max(0, (last_step(folder, logs_before) or 0) - run.training.step)
    more = f": {again:,} steps are done again" if again else ""
    run.tell(f"the coordinator was lost and restarted; the run goes on from {where}{more}")
    # Of a coordinator that was lost while it restarted, the steps are counted already.
    counted = sum(fault.redone_steps for fault in run_log.unrecovered(folder) if fault.role == "coordinator")
    run.health.recovers(
        "lost",
        "coordinator",
        reason="the coordinator was lost",
        action="it was restarted",
        seconds_before=seconds,
        redone_steps=max(0, again - counted),
    )


def refuse_to_die_again(folder: Path, start: int) -> None:
    """Ray starts a coordinator anew as often as it is killed; one that never gets any further is not worth it.

    Starts are further and further apart; the first restart is immediate.
    """
    last = (folder / run_folder.CHECKPOINTS / run_folder.LAST).resolve().name
    before, tries, counted = read_state(folder).get("tries") or ("", 0, 0)
    if counted != start:  # this very start may come here twice
        tries = tries + 1 if before == last else 1
        write_state(folder, tries=[last, tries, start])
        if 2 < tries <= TRIES:
            time.sleep(backoff(tries - 3))
    if tries > TRIES:
        raise UserError(
            f"the coordinator was lost {TRIES} times without getting beyond {last}: is there memory enough for it (the "
            f"kernel's log names who was killed)? The run resumes from there: gearshift train --resume {folder}"
        )


def origin_of(folder: Path) -> Path | None:
    """The checkpoint of another run from which this one branches off, if it does."""
    origin = read_state(folder).get("origin")
    return Path(origin) if origin else None


class RayEngine:
    """Runs a training with the processes that its process manager keeps."""

    name = "ray"

    def __init__(
        self, run: Run, member: Membership, context: ProcessContext, process_manager: ProcessManager
    ) -> None:
        self.training = run.training
        self._run, self._member, self.process_manager = run, member, process_manager
        self.learner = run.training.learner
        self.context = replace(
            context, schema=self.learner.schema.to_dict(), shuffle=run.training.plan.shuffle
        )
        self.layout = layout_of(self.learner, context.shards)
        self.role: CoordinatorRole
        self._question = 0

    @property
    def saver(self) -> ClusterSaver:
        saver = self._run.saver
        assert isinstance(saver, ClusterSaver)
        return saver

    @property
    def stop_requested(self) -> bool:
        return self._run.stopping

    def run(self, training: Training, observer: Observer) -> bool:
        for name, settings in [
            (training.strategy_name, asdict(training.strategy)),
            *((planned.strategy, planned.settings) for planned in training.plan.switches),
        ]:
            training.make(name, settings)  # refused here if its replicas cannot be on Ray
        wishes = read_state(self.context.folder)  # of a coordinator before this one
        training.workers = workers = int(wishes.get("workers") or training.workers)
        if wishes.get("strategy"):
            training.restore_strategy(wishes["strategy"])
        self._first_checkpoint()
        if not training.goes_on:  # the coordinator was lost after the last step
            self.saver.engine = None
            self._take_rows()
            return True
        self.process_manager.begin(self.context, workers)
        try:
            with closing(endpoint_of(self._member, self.context, training)) as endpoint:
                self.driver = driver_of(self._member, self.context, endpoint)
                self.accounts = TrainingAccounts(self, training, observer)
                self.role = CoordinatorRole(
                    FolderSnapshotStore(self),
                    self.accounts,
                    shards=self.context.shards,
                    examples=training.train.counted(),
                    patience=self.context.patience,
                    workers=workers,
                    log=training.observe,
                    tell=observer.tell,
                    all_reduce_groups=AllReduceGroups(self._transport(), observer.tell),
                )
                self.process_manager.heeded_by(self._notice)
                self.process_manager.replaced_to(self._replaced)
                self.driver.steer(TrainingRunner(self))
        except ownership.Fenced:
            if self.context.is_replaced():  # its processes must not be ended
                self.process_manager.step_down()
            raise
        finally:
            self.process_manager.close()
        self.saver.engine = None
        assert self.role.epoch is not None
        if self._run.measures_at_the_end:
            self._take_rows()
        return not self.role.epoch.stopped

    def _notice(self, members: Sequence[To], reason: str) -> None:
        """What is saved now is not lost with them; workers end what they have begun. From any thread."""
        names = ", ".join(f"{who.role} {who.number}" for who in members)
        self._run.tell(f"{reason}: a checkpoint is taken, and {names} will go on elsewhere if there is room")
        self._run.checkpoint()
        for who in members:
            if who.role == "worker":
                self.driver.post(partial(self.role.dismiss, who.number))

    def _replaced(self, who: To, reason: str) -> None:
        """From any thread: the run recovers until its next step."""
        fault = partial(self._run.health.recovers, "frozen", who.role, who.number, reason=reason)
        self.driver.post(partial(fault, action="it is replaced"))

    def _transport(self) -> Transport:
        """What was asked, if the optimizer lets workers step on a sum."""
        reason = why_not_copied(self.learner.server)
        if reason and self.context.transport == "all_reduce":
            raise UserError(
                f"cluster.sync_transport=all_reduce: {reason}. Use sync_transport=servers, or another optimizer"
            )
        return "servers" if reason else self.context.transport

    def _first_checkpoint(self) -> None:
        """Where the run goes on if a shard is lost before the next one; every process begins from it."""
        saver = self.saver
        if saver.last is None:
            self._run.save_now()
            saver.wait()
            if saver.failure:
                raise UserError(saver.failure)
        assert saver.last is not None
        saver.engine = self
        stores: tuple[Any, ...] = tuple(
            RemoteRows(store, i, self) for i, store in enumerate(self.learner.server.stores)
        )
        self.learner.server.stores = stores

    def _take_rows(self) -> None:
        """The run is over: last measures are made here."""
        assert self.saver.last is not None
        self.learner.restore(Checkpoint.open(self.saver.last))

    def learn_sizes(self, sizes: Sequence[Size]) -> None:
        """Of the stores on the shards, for the report."""
        for store, size in zip(self.learner.server.stores, sizes, strict=True):
            assert isinstance(store, RemoteRows)
            store.size = size

    def redoes(self, steps: int) -> None:
        """A shard lost its state: the run went back to the last checkpoint."""
        health = self._run.health
        if not health.is_recovering:
            health.recovers("lost", "shard", reason="a shard was lost", action="it was restarted")
        health.redoes(steps)

    def tell(self, sentence: str) -> None:
        self._run.tell(sentence)

    def write_events(self) -> None:
        self._run.write_events()

    def ask_save_in_time(self) -> None:
        self._run.ask_save_in_time()

    def save_if_requested(self) -> None:
        self._run.save_if_requested()

    def saved_all(self) -> bool:
        """At the end: whether the last step is saved. If it cannot be, it is tried again."""
        retries = self._run.retries
        self._run.begin_last_save()
        if self.role.cutting:
            return False
        if self.saver.has(self.training.step):
            retries.succeeded()
            return True
        if failure := self.saver.take_failure(self.training.step):
            retries.failed(failure)
        if not retries.active or retries.due():
            self._run.save_now()
        return False

    def persist(self, path: Path, write: Callable[[], None]) -> None:
        """What the run cannot go on without."""
        self._run.persist(path, write)

    def train_again(self) -> None:
        self._run.train_again()

    def wait_for_cut(self) -> None:
        """Until the snapshot that is being written is done with. A shard says every tick that it lives."""
        role = self.role
        heard = dict.fromkeys(range(self.context.shards), time.monotonic())

        def take(message: Message) -> bool:
            match message:
                case Done() | Saved():
                    heard[message.shard] = time.monotonic()
                    role.settle(message)
                    return True
                case ShardHello(shard, boot) if role.is_new(shard, boot):
                    raise StateLost
            return False

        while role.cutting:
            self.driver.listen(take, lambda: not role.cutting)
            role.settle_again()
            self.driver.send(role)
            for shard in role.unsaved if role.cutting else ():
                if time.monotonic() - heard[shard] > self.context.patience:
                    self.replace_shard(shard)
                    raise StateLost

    def replace_shard(self, shard: int) -> None:
        reason = f"shard {shard} was silent for {self.role.patience_with_shards:g} s"
        self.process_manager.replace(To("shard", shard), self.role.boot_of(shard), reason)

    def replace_worker(self, worker: int, boot: int) -> None:
        """`boot` is that of its role, of which a process has `STARTS`."""
        reason = f"worker {worker} was silent for {self.context.patience:g} s"
        self.process_manager.replace(To("worker", worker), boot // STARTS, reason)

    def check_replicas(self, strategy: Strategy) -> None:
        choices = choices_of(strategy)
        if choices is not None and choices.workers_per_replica > 1:
            raise UserError(shared_replicas_need_threads(strategy.name))

    # ---- the learner's view of the shards ----

    def refresh(self) -> None:
        """Dense parameters and running statistics as the shards have them now."""
        self.peek(tuple(np.empty(0, np.int64) for _ in self.learner.server.stores))

    def peek(self, ids: tuple[Ids, ...]) -> tuple[Floats, ...]:
        """Rows of each store; the dense values of the learner are brought up to date on the way."""
        places = [IdPlacement(own, self.context.shards) for own in ids]
        self._question += 1
        number, answers = self._question, dict[int, Seen]()

        def take(message: Message) -> bool:
            match message:
                case Seen(incarnation, shard, _, asked):
                    if (incarnation, asked) == (self.role.incarnation, number):
                        answers[shard] = message
                    return True  # or of a question that was answered already
                case ShardHello(shard, boot) if self.role.is_new(shard, boot):
                    raise StateLost
            return False

        began = time.monotonic()
        while len(answers) < self.context.shards:
            for shard in set(range(self.context.shards)) - answers.keys():
                own = tuple(store[place.groups[shard]] for store, place in zip(ids, places, strict=True))
                self.driver.endpoint.send(To("shard", shard), Peek(self.role.incarnation, number, own))
            self.driver.listen(take, lambda: len(answers) == self.context.shards)
            if time.monotonic() - began > self.context.patience:
                for shard in set(range(self.context.shards)) - answers.keys():
                    self.replace_shard(shard)
                raise StateLost
        self._take_dense(answers)
        return tuple(self._gathered(i, ids[i], places[i], answers) for i in range(len(ids)))

    def _take_dense(self, answers: dict[int, Seen]) -> None:
        with torch.no_grad():
            for shard, own in enumerate(self.layout.dense):
                self.learner.worker.dense.flat[own].copy_(answers[shard].dense)
            for name, values in self.learner.server.buffers.items():
                values.copy_(answers[0].statistics[name])

    def _gathered(self, i: int, ids_U: Ids, place: IdPlacement, answers: dict[int, Seen]) -> Floats:
        rows_UW: Floats = np.empty((len(ids_U), self.learner.server.stores[i].width), np.float32)
        for shard, at in enumerate(place.groups):
            rows_UW[at] = answers[shard].rows[i]
        return rows_UW


class TrainingRunner(CoordinatorRunner):
    """The coordinator's loop: what users ask is done between two messages, and it ends with a checkpoint."""

    def __init__(self, engine: RayEngine) -> None:
        super().__init__(engine.role, engine.context.tick)
        self._engine = engine

    def handle(self, message: Any) -> None:
        self._engine.accounts.stop_if_requested()
        super().handle(message)
        self._engine.accounts.handle_requests()
        self._engine.role.proceed()

    def tick(self) -> None:
        engine = self._engine
        if reason := engine.process_manager.failure():
            raise UserError(reason)
        if engine.role.alone:
            engine.accounts.mark = time.perf_counter()  # nobody trains: they start, or start anew
        super().tick()
        for shard in engine.role.silent():
            engine.replace_shard(shard)
        for worker, boot in engine.role.silent_workers():
            engine.replace_worker(worker, boot)
        engine.accounts.stop_if_requested()
        engine.ask_save_in_time()
        engine.accounts.save_if_alone()
        engine.accounts.handle_requests()
        engine.role.proceed()

    def over(self) -> bool:
        if not self.role.over:
            return False
        self._engine.process_manager.rest()
        return self._engine.saved_all()
