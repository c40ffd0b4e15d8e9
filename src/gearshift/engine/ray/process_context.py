"""What every process of a run needs to know. It is passed through Ray when they start, and contains no secret."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from gearshift.data.schema import Schema
from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.connection import Connection
from gearshift.engine.ray.local_cluster import LocalRay
from gearshift.engine.ray.process_records import ProcessRecords
from gearshift.engine.ray.shared_folder import SharedFolder
from gearshift.engine.wire.keys import Contact
from gearshift.run.prepared_run import PreparedRun


class Recipe(Protocol):
    """How a process builds the run's parts; the same in each of them."""

    def build(self, schema: Schema | None, resume: Path | None) -> PreparedRun:
        """`schema` was fitted by the coordinator, or is None; only the coordinator resumes."""

    def header(self, run: PreparedRun, folder: Path) -> tuple[str, ...]:
        """The lines that the user sees before the start."""


@dataclass(frozen=True)
class ProcessEnvironment:
    """What a process sets up before its work: the same as in the process that started the run."""

    cwd: str  # where the run was started; paths of data are relative to it
    threads: int = 1  # CPU threads of each process
    private: bool = False  # only the user may read what the processes write

    def set_up(self) -> None:
        if self.private:
            os.umask(0o077)
        if Path(self.cwd).is_dir():
            os.chdir(self.cwd)
            if self.cwd not in sys.path:
                sys.path.insert(0, self.cwd)
        torch.set_num_threads(self.threads)


@dataclass(frozen=True)
class FittedData:
    """What the coordinator has learned from the data, for the processes that it starts."""

    schema: dict[str, Any]
    shuffle: bool


@dataclass(frozen=True)
class ProcessContext:
    recipe: Recipe
    folder: SharedFolder
    environment: ProcessEnvironment
    connection: Connection
    shards: int = 1
    fitted: FittedData | None = None  # None until the coordinator has read the data
    local: LocalRay | None = None  # the cluster that was started for this run

    @property
    def records(self) -> ProcessRecords:
        return ProcessRecords(self.folder)

    def enter(self, *, restarted: bool = False) -> None:
        """Gives this process the files and modules of the one that started the run; raises `UserError` if it cannot."""
        self.folder.check_not_taken()
        self.folder.check_seen(restarted=restarted)
        self.environment.set_up()

    def build(self, resume: Path | None = None) -> PreparedRun:
        schema = Schema.from_dict(self.fitted.schema) if self.fitted else None
        return self.recipe.build(schema, resume)

    def over(self) -> None:
        """The run has ended: ends the cluster too, if it was started only for this run."""
        if self.local is not None:
            self.local.stop_soon()
        elif self.connection.sockets:
            shutil.rmtree(self.connection.sockets, ignore_errors=True)


class Membership(Protocol):
    """A process's membership in the run, kept by the code that started it."""

    me: To
    boot: int  # higher than that of any start before
    host: str  # the address of its machine
    restarted: bool  # an earlier process had the same role and number

    @property
    def start(self) -> int:
        """The number of the coordinator's start: of this one, or of the one that this process belongs to."""

    def announce(self, contact: Contact) -> None: ...
    def contacts(self) -> Iterable[Contact]:
        """The newest known contact of every process; never waits."""

    def notify(self, sentence: str) -> None:
        """Passes a message on to the user."""

    def measured_by(self, measure: Callable[[], dict[str, float]]) -> None:
        """Sets the function that measures this process's figures."""

    def ended_by(self, end: Callable[[], None]) -> None:
        """Sets the function that ends the work of this process when the run is over. Others are killed."""
