"""Saves a run while it trains: takes a cut at once, writes it in the background, and prunes old checkpoints.

A checkpoint that cannot be written (a full disk) is reported in one message and retried at the next opportunity;
earlier checkpoints stay intact. A process that no longer owns the run writes none.
"""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gearshift.parameters import checkpoint
from gearshift.parameters.checkpoint import Arrays, CheckpointFolder
from gearshift.run import ownership
from gearshift.run.health import Health
from gearshift.run.low_priority import in_background
from gearshift.training.estimate import size_text
from gearshift.training.learner import Learner

# Called with the arguments of `Saver`.
MakeSaver = Callable[[Path, int, Callable[[str], None], Path | None, Health], "Saver"]


class Saver:
    def __init__(
        self,
        folder: Path,
        keep: int,
        notify: Callable[[str], None],
        saved: Path | None = None,
        health: Health | None = None,
    ) -> None:
        """`notify` gets messages for the user; `saved` is the checkpoint that a resumed run comes from.

        `health` is notified of saves and failures.
        """
        self.checkpoints = CheckpointFolder(folder, keep)
        self.notify = notify
        self.last = saved
        self.health = health or Health()
        self.failure: str | None = None  # failure of the newest attempt
        self.final = False  # the run has ended: the caller retries a failed save and notifies the user
        self._fault: Exception | None = None
        self._written: list[Path] = []
        self._writing: tuple[int, threading.Thread] | None = None

    def save(
        self,
        step: int,
        facts: dict[str, Any],
        arrays: dict[str, Arrays],
        learners: tuple[Learner, ...],
        *,
        best: bool,
    ) -> None:
        """Returns once the cut is taken; waits if an earlier cut is still being written."""
        self.wait()
        snapshots = [learner.snapshot() for learner in learners]
        everything = {**arrays, **{k: v for s in snapshots for k, v in s.arrays.items()}}
        rows = {k: v for s in snapshots for k, v in s.rows.items()}
        path = self.checkpoints.path(step)

        def write() -> None:
            try:
                refuse_vanished(path.parent.parent)
                self.check()
                checkpoint.write(path, facts, everything, rows, self.check)
                self.link("last", path)
                if best:
                    self.link("best", path)
                self.prune()
                self.last, self.failure = path, None
                self._written.append(path)
                self.health.saved()
            except OSError as error:
                self.failure = self.sentence(path, error)
                self.health.save_failed(self.failure)
                self.report_failure()
            except Exception as error:  # a bug: raised where the run waits
                self._fault = error
            finally:
                for snapshot in snapshots:
                    snapshot.close()

        self._writing = step, in_background("gearshift-saver", write, to_its_end=True)

    def check(self) -> None:
        """Raises `ownership.Fenced` if another process owns the run now."""
        ownership.check(self.checkpoints.folder.parent)

    def link(self, name: str, path: Path) -> None:
        """Points `last` or `best` to a checkpoint, if the run is still ours."""
        self.check()
        self.checkpoints.link(name, path)

    def prune(self) -> None:
        """Removes checkpoints that need not be kept, if the run is still ours."""
        self.check()
        self.checkpoints.prune()

    def take_over(self, resumed: Path, best_step: int) -> None:
        """Copies the checkpoints that a resumed run needs: the one it continues from, and the best so far."""
        if resumed.parent.resolve() == self.checkpoints.folder.resolve():
            return
        self.check()
        self.last = self.checkpoints.take_over(resumed)
        self.link("last", self.last)
        best = resumed.with_name(self.checkpoints.path(best_step).name)
        if best.exists():
            self.link("best", self.checkpoints.take_over(best))

    def wait(self) -> None:
        if self._writing is not None:
            self._writing[1].join()
            self._writing = None
        if self._fault is not None:
            raise self._fault

    def has(self, step: int) -> bool:
        """Whether this step is completely saved; waits if it is being written."""
        if self._writing is not None and self._writing[0] == step:
            self.wait()
        return self.checkpoints.has(step)

    def take_written(self) -> list[Path]:
        """The checkpoints written since the last call."""
        written, self._written = self._written, []
        return written

    def report_failure(self) -> None:
        if not self.final:
            self.notify(f"{self.failure}. Training continues, and the next checkpoint tries again")

    def sentence(self, path: Path, error: OSError) -> str:
        """The message about a failed save: what failed, where, and what is intact."""
        intact = f"{self.last.name} is intact" if self.last else "there is none before it"
        return f"checkpoint {path.name} was not written, {intact}: {why(error, path.parent, self.last)}"


def why(error: OSError, folder: Path, like: Path | None = None) -> str:
    """The error in words, with the free space in `folder` and the size of a checkpoint `like` this one."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        place = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{place}"
    known = []
    with suppress(OSError):
        known.append(f"{size_text(shutil.disk_usage(folder).free)} free")
    with suppress(OSError):
        if like is not None:
            size = sum(file.stat().st_size for file in like.iterdir())
            known.append(f"{like.name} takes {size_text(size)}")
    return f"no space left on {folder}" + (f" ({', '.join(known)})" if known else "")


def failure_of(path: Path, write: Callable[[], object]) -> str | None:
    """Why this file could not be written; None if it was."""
    try:
        write()
    except OSError as error:
        return f"{path} was not written: {why(error, path.parent)}"
    return None


def refuse_vanished(run: Path) -> None:
    """Raises if the folder was deleted or unmounted. It is not created again: checkpoints there would not be found."""
    if not run.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the run's folder is gone", str(run))
