"""The folder of a run on a cluster, which all its processes share: its owner, and state that outlives the coordinator.

A process writes there only while its session owns the run. While the folder is full, read-only or unavailable,
operations on it are retried for a while.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gearshift.errors import UserError
from gearshift.run import folder as run_folder
from gearshift.run import ownership
from gearshift.run.low_priority import in_background
from gearshift.run.ownership_files import Holder
from gearshift.run.retry import retry

T = TypeVar("T")
LONGEST_PAUSE = 5.0  # interval of retries of writes in the run folder, in seconds
SHARED_SECONDS = 10.0  # time after which every machine must see a write in the run's folder
FOLDER_SECONDS = 300.0  # how long a restarted process waits if the folder is full, read-only or unavailable
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
KEEP_SECONDS = 5.0  # interval at which a process retries to record that it is alive

STATE = run_folder.CLUSTER  # in the run's folder: state that outlives the coordinator and is in no checkpoint


def read_state(folder: Path) -> dict[str, Any]:
    path = folder / STATE
    return dict(json.loads(path.read_text())) if path.exists() else {}


def write_state(folder: Path, **changed: Any) -> None:
    with _writing:
        run_folder.write_json(folder / STATE, {**read_state(folder), **changed})


_writing = threading.Lock()


@dataclass(frozen=True)
class SharedFolder:
    path: Path  # the run's folder; every process reads and writes checkpoints there
    token: str = (
        ""  # stored in the folder, so that machines can check that they see it; also the lease's session
    )
    seconds: float = FOLDER_SECONDS  # how long failed writes are retried

    @property
    def checkpoints(self) -> Path:
        return self.path / run_folder.CHECKPOINTS

    def is_seen(self) -> bool:
        """Whether this machine sees the run's folder, and not a different folder with the same name."""
        with suppress(OSError):
            return bool(read_state(self.path).get("token", "") == self.token)
        return False

    def check_seen(self, *, restarted: bool = False) -> None:
        """Raises if this machine does not see the folder: a part of a checkpoint written elsewhere would be lost."""
        seconds = max(SHARED_SECONDS, self.seconds) if restarted else SHARED_SECONDS
        until = time.monotonic() + seconds
        while not self.is_seen():
            if time.monotonic() >= until:
                raise UserError(
                    f"{platform.node()} does not see the run's folder {self.path}, or sees a different one there: "
                    "all machines of a run must share it (NFS, Lustre, a volume); set checkpoint.path to a folder "
                    "that they share"
                )
            time.sleep(0.2)

    def taken_by(self) -> Holder | None:
        """The owner that has resumed the run in the meantime, if any."""
        owner = ownership.current(self.path)
        return owner if self.token and owner is not None and owner.session not in ("", self.token) else None

    def check_not_taken(self) -> None:
        """Raises `ownership.Fenced` if another session owns the run. For processes that hold no lease."""
        if owner := self.taken_by():
            raise ownership.Fenced(
                f"run {self.path.name} was taken over by process {owner.pid} on {owner.host} (lease {owner.fence}): "
                "its previous processes have stopped and write nothing more"
            )

    def is_replaced(self) -> bool:
        """Whether another coordinator of the same run has fenced this one and taken over the processes."""
        mine, owner = ownership.held(self.path), ownership.current(self.path)
        fenced = mine is not None and owner is not None and owner.fence > mine.fence
        return fenced and owner is not None and owner.session == self.token

    def keep_lease(self, name: str) -> None:
        """Keeps the lease while this process lives: no other session can take over the run while the
        coordinator restarts."""
        if self.token:
            _until_written(lambda: ownership.LeaseKeeper(self.path, self.token, name))

    def with_retries(
        self, do: Callable[[], T], notify: Callable[[str], None], stopped: Callable[[], bool] = lambda: False
    ) -> T:
        """Runs `do`, which needs the run's folder, with retries while that is full, read-only or unavailable.

        `stopped` returns whether the user has asked the run to stop, which ends the retries.
        """
        began = time.monotonic()

        def failed(attempt: int, error: Exception) -> None:
            if attempt == 1:
                notify(
                    f"the coordinator cannot write in {self.path} ({_message(error)}); it tries again for "
                    f"{self.seconds:g} s, then the run ends"
                )

        try:
            result = retry(
                do,
                self.seconds,
                lambda error: self._is_of_folder(error) and not stopped(),
                failed,
                longest=LONGEST_PAUSE,
            )
        except OSError as error:
            if not self._is_of_folder(error):
                raise
            seconds = time.monotonic() - began
            stopping = " and was asked to stop" if stopped() else ""
            raise UserError(
                f"the coordinator could not write in {self.path} for {seconds:.1f} s ({_message(error)}){stopping}. "
                f"Make it writable and resume from the last checkpoint: gearshift train --resume {self.path}"
            ) from None
        if (seconds := time.monotonic() - began) > 5:
            notify(f"{self.path} could be written only after {seconds:.0f} s")
        return result

    def _is_of_folder(self, error: Exception) -> bool:
        """Whether the error concerns the run's folder, not data or a socket.

        Errors about files of the folder have their names (`errors.naming`). Without a name, only write errors count,
        because data is only read.
        """
        if not isinstance(error, OSError):
            return False
        name = error.filename2 or error.filename  # for a copy, the destination
        if isinstance(name, str | bytes):
            return Path(os.fsdecode(name)).is_relative_to(self.path)
        return error.errno in UNWRITABLE


def _message(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _until_written(write: Callable[[], object]) -> None:
    """Writes at once; if the disk is full or unavailable, retries in a thread while the work continues."""

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
