"""What every process of a run knows. It reaches them through Ray when they start, and holds no secret."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import torch

from gearshift.data.schema import Bag, Schema, Sequence
from gearshift.engine.protocol.all_reduce import Transport
from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.dense_copy import state_of, wants_spread
from gearshift.engine.ray.local_cluster import LocalRay
from gearshift.engine.wire.address import ipc_address
from gearshift.engine.wire.driver import Driver
from gearshift.engine.wire.endpoint import Endpoint
from gearshift.engine.wire.keys import Contact, Keys
from gearshift.engine.wire.limits import Limits, Statistic
from gearshift.errors import UserError
from gearshift.parameters.shard import ShardLayout
from gearshift.run import folder as run_folder
from gearshift.run import log as run_log
from gearshift.run import ownership
from gearshift.run.local_run import Run
from gearshift.run.low_priority import in_background
from gearshift.run.ownership_files import Holder
from gearshift.run.retry import retry
from gearshift.training.learner import Learner
from gearshift.training.training import Training

T = TypeVar("T")
LONGEST_PAUSE = 5.0  # seconds between two attempts to write in the run folder
BAG = 256  # ids of one example in a bag that a message has room for
SHARED_SECONDS = 10.0  # after which every machine must see what was written in the run's folder
FOLDER_SECONDS = 300.0  # for which a process that restarts waits for a folder that is full, read-only or away
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
KEEP_SECONDS = 5.0  # between two attempts to write that a process is there

STATE = run_folder.CLUSTER  # in the run's folder: what must outlive the coordinator and is in no checkpoint


class Recipe(Protocol):
    """How a process builds the run's parts; the same in each of them."""

    def build(self, schema: Schema | None, resume: Path | None) -> Run:
        """`schema` is the one that the coordinator has fitted; only the coordinator resumes."""

    def header(self, run: Run, folder: Path) -> tuple[str, ...]:
        """What the user reads before the start."""


def read_state(folder: Path) -> dict[str, Any]:
    path = folder / STATE
    return dict(json.loads(path.read_text())) if path.exists() else {}


def write_state(folder: Path, **changed: Any) -> None:
    with _writing:
        run_folder.write_json(folder / STATE, {**read_state(folder), **changed})


_writing = threading.Lock()


@dataclass(frozen=True)
class ProcessContext:
    recipe: Recipe
    folder: Path  # the run's own; every process reads and writes checkpoints there
    cwd: str  # where the run was started: relative paths of the data mean that place
    shards: int
    wire: Literal["ipc", "curve"]
    sockets: str  # the folder for ipc
    half: bool = False  # rows and gradients travel as bfloat16
    threads: int = 1  # of a worker, and of a shard
    tick: float = 0.25  # seconds between looks at the clock, and until something is said again
    patience: float = 30.0  # seconds that a worker may be silent
    schema: dict[str, Any] | None = None  # None until the coordinator has fitted it
    shuffle: bool = False  # as the coordinator has decided
    local: LocalRay | None = None  # the cluster that was started for this run
    transport: Transport = "servers"  # of dense gradients in sync
    folder_seconds: float = FOLDER_SECONDS
    token: str = (
        ""  # stands in the run's folder since the start, for all to see; also names the lease's session
    )
    private: bool = False  # what its processes write is for their user alone

    def enter(self, *, restarted: bool = False) -> None:
        """A process finds files and modules as the one that started the run, or the run ends with a sentence."""
        self.check_not_taken()
        self._check_shared(max(SHARED_SECONDS, self.folder_seconds) if restarted else SHARED_SECONDS)
        if self.private:
            os.umask(0o077)
        if Path(self.cwd).is_dir():
            os.chdir(self.cwd)
            if self.cwd not in sys.path:
                sys.path.insert(0, self.cwd)
        torch.set_num_threads(self.threads)

    def _check_shared(self, seconds: float) -> None:
        """A shard that writes its part of a checkpoint where nobody finds it would be noticed too late."""
        until = time.monotonic() + seconds
        while not self._is_seen():
            if time.monotonic() >= until:
                raise UserError(
                    f"{platform.node()} does not see the run's folder {self.folder}, or another folder of that name: "
                    "all machines of a run must share it (NFS, Lustre, a volume); set checkpoint.path to a folder "
                    "that they share"
                )
            time.sleep(0.2)

    def _taken_by(self) -> Holder | None:
        """Who has resumed the run meanwhile, if somebody else has."""
        owner = ownership.current(self.folder)
        return owner if self.token and owner is not None and owner.session not in ("", self.token) else None

    def check_not_taken(self) -> None:
        """Raises `ownership.Fenced` if another session owns the run. For processes without a lease of their own."""
        if owner := self._taken_by():
            raise ownership.Fenced(
                f"run {self.folder.name} was taken over by process {owner.pid} on {owner.host} (lease {owner.fence}): "
                "the processes that had it before have stopped and write nothing more"
            )

    def keep_lease(self, member: Membership) -> None:
        """While this process lives, nobody else takes the run, also if its coordinator is just being restarted."""
        if self.token:
            name = f"{member.me.role}-{member.me.number}"
            _until_written(lambda: ownership.LeaseKeeper(self.folder, self.token, name))

    def record_start(self, role: str, number: int) -> None:
        """A process of the run has started: counted in faults.jsonl, which outlives the coordinator."""
        run_log.record(self.folder, run_log.Fault("start", role, number), session=self.token)

    def starts(self) -> dict[To, int]:
        """Of each process since the run was started or resumed, as recorded; a coordinator before counted too."""
        known = run_log.totals(self.folder).by_member
        return {
            To(role, int(number)): 1 + again
            for who, again in known.items()
            for role, _, number in [who.rpartition("-")]
        }

    def log(self, text: str) -> None:
        """Into run.log: what is too long for a sentence."""
        run_log.write(self.folder, text, session=self.token)

    def record_end(self, role: str, number: int) -> None:
        """It ended in good order: the next start of it is no restart."""
        run_log.record(self.folder, run_log.Fault("end", role, number), session=self.token)

    def _is_seen(self) -> bool:
        with suppress(OSError):
            return bool(read_state(self.folder).get("token", "") == self.token)
        return False

    def with_retries(
        self, do: Callable[[], T], tell: Callable[[str], None], stopped: Callable[[], bool] = lambda: False
    ) -> T:
        """Does what needs the run's folder. While it is full, read-only or away, it is retried for a while.

        `stopped` says whether the user has asked the run to stop: then it is not retried any more.
        """
        began = time.monotonic()

        def failed(attempt: int, error: Exception) -> None:
            if attempt == 1:
                tell(
                    f"the coordinator cannot write in {self.folder} ({_said(error)}); it tries again for "
                    f"{self.folder_seconds:g} s, then the run ends"
                )

        try:
            found = retry(
                do,
                self.folder_seconds,
                lambda error: self._is_of_folder(error) and not stopped(),
                failed,
                longest=LONGEST_PAUSE,
            )
        except OSError as error:
            if not self._is_of_folder(error):
                raise
            seconds = time.monotonic() - began
            asked = " and was asked to stop" if stopped() else ""
            raise UserError(
                f"the coordinator could not write in {self.folder} for {seconds:.1f} s ({_said(error)}){asked}. "
                f"Make it writable and resume from the last checkpoint: gearshift train --resume {self.folder}"
            ) from None
        if (seconds := time.monotonic() - began) > 5:
            tell(f"it took {seconds:.0f} s until {self.folder} could be written")
        return found

    def _is_of_folder(self, error: Exception) -> bool:
        """Whether it is about the run's folder, not about data or a socket.

        What is read and written there has its name in the error (`errors.naming`). Without a name, only a disk that
        cannot be written counts: data are read alone.
        """
        if not isinstance(error, OSError):
            return False
        name = error.filename2 or error.filename  # of a copy, where it goes
        if isinstance(name, str | bytes):
            return Path(os.fsdecode(name)).is_relative_to(self.folder)
        return error.errno in UNWRITABLE

    def build(self, resume: Path | None = None) -> Run:
        return self.recipe.build(Schema.from_dict(self.schema) if self.schema else None, resume)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def meeting_place(self) -> Path:
        """Where workers that form a ring find each other; all of them see it, and others of this machine do not."""
        return self.folder if self.wire == "curve" else Path(self.sockets)

    # What whoever keeps the processes asks

    def new_start(self, pid: int, node: str, restarted: bool) -> int:
        """The coordinator's process starts, here; which time it is."""
        if restarted and not self._is_seen():
            self.check_not_taken()
            raise FileNotFoundError(errno.ENOENT, "the run's folder is gone", str(self.folder))
        state = read_state(self.folder)
        number = int(state.get("start", 0)) + 1
        seen = self.folder.is_dir() and state.get("token", self.token) == self.token
        if seen and self._taken_by() is None:  # if not, `enter` will say why
            write_state(self.folder, start=number, pid=pid, node=node)
            self.record_start("coordinator", 0)
        return number

    def restarts(self) -> int:
        """Of the coordinator, since the run was started or resumed."""
        state = read_state(self.folder)
        return max(0, int(state.get("start", 1)) - int(state.get("starts_before", 0)) - 1)

    def is_replaced(self) -> bool:
        """Whether this coordinator was fenced by another one of its run, which has the other processes now."""
        mine, owner = ownership.held(self.folder), ownership.current(self.folder)
        fenced = mine is not None and owner is not None and owner.fence > mine.fence
        return fenced and owner is not None and owner.session == self.token

    def record_failure(self, reason: str) -> None:
        """The coordinator failed before there was a run that could say so. Not if another owns it, or it has ended."""
        if ownership.held(self.folder) is not None and run_folder.read(self.folder).ended is None:
            run_folder.finish(self.folder, "failed", reason)

    def over(self) -> None:
        """The run has ended: so does a cluster that was started for it alone."""
        if self.local is not None:
            self.local.stop_soon()
        elif self.sockets:
            shutil.rmtree(self.sockets, ignore_errors=True)


class Membership(Protocol):
    """A process's place among the others, as whoever started it keeps it."""

    me: To
    boot: int  # higher than that of any start before
    host: str  # the address of its machine
    restarted: bool  # another had its place before

    @property
    def start(self) -> int:
        """Of the coordinator: which one this is, or belongs to."""

    def announce(self, contact: Contact) -> None: ...
    def contacts(self) -> Iterable[Contact]:
        """The newest of everybody, as far as known; never waits."""

    def tell(self, sentence: str) -> None:
        """To the user."""

    def measured_by(self, measure: Callable[[], dict[str, float]]) -> None:
        """Its figures go to whoever started it, who shows them."""


def _said(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


Body = Callable[[Membership, ProcessContext], None]  # what a process does, to its end


def layout_of(learner: Learner, shards: int) -> ShardLayout:
    dense, together = learner.worker.dense, learner.server.max_norm is not None
    return ShardLayout.of(shards, len(dense), dense.offsets, together=together)


def endpoint_of(member: Membership, context: ProcessContext, training: Training) -> Endpoint:
    """The sockets of this process; the others learn where they are."""
    keys = Keys.make() if context.wire == "curve" else None
    bind = ""
    if member.me.role != "worker":
        host = f"[{member.host}]" if ":" in member.host else member.host
        bind = f"tcp://{host}:*" if keys else ipc_address(Path(context.sockets), member.me, member.boot)
    limits = limits_of(training, context.shards)
    endpoint = Endpoint(member.me, member.boot, limits, bind=bind, keys=keys, half=context.half)
    member.announce(endpoint.contact)
    return endpoint


def driver_of(member: Membership, context: ProcessContext, endpoint: Endpoint) -> Driver:
    driver = Driver(endpoint, tick=context.tick, look=member.contacts, tell=member.tell)
    member.measured_by(driver.figures)
    return driver


def limits_of(training: Training, shards: int) -> Limits:
    """The largest messages that this run can have: a lease is never more than the global batch."""
    learner, batch = training.learner, training.plan.batch
    schema = learner.schema
    per_example = 0
    for group in learner.worker.groups:
        ragged = [schema.ragged_fields[i] for i in group.ragged]
        lists = sum(
            f.max_len if isinstance(f, Sequence) else BAG for f in ragged if isinstance(f, Bag | Sequence)
        )
        per_example = max(per_example, len(group.singles) + lists)
    statistics = tuple(
        Statistic(name, tuple(values.shape), not values.is_floating_point())
        for name, values in learner.model.named_buffers()
    )
    return Limits(
        tuple(store.width for store in learner.server.stores),
        tuple(own.stop - own.start for own in layout_of(learner, shards).dense),
        ids=max(1, batch * per_example),
        batch=batch,
        tasks=max(1, len(schema.labels)),
        statistics=statistics,
        state=state_of(learner.server),
        spread=wants_spread(learner.server),
    )


def _until_written(write: Callable[[], object]) -> None:
    """At once; if the disk is full or away, later, beside the work that does not need it."""

    def again() -> None:
        while True:
            time.sleep(KEEP_SECONDS)
            with suppress(OSError):
                write()
                return

    try:
        write()
    except OSError:
        in_background("gearshift-keeper", again)
