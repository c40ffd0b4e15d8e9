"""Saves a run while it trains: takes the cut at once, writes it in the background, keeps what should be kept.

A checkpoint that cannot be written (a full disk) is reported in one sentence and tried again at the next
occasion; what was written before stays intact.
"""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gearshift import checkpoint
from gearshift.checkpoint import Arrays, CheckpointFolder
from gearshift.learner import Learner


class Saver:
    def __init__(self, folder: Path, keep: int, tell: Callable[[str], None]) -> None:
        self.checkpoints = CheckpointFolder(folder, keep)
        self.tell = tell
        self.last: Path | None = None
        self.saved_step = -1
        self.failure: str | None = None
        self._writing: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        return self._writing is not None and self._writing.is_alive()

    def save(
        self,
        step: int,
        facts: dict[str, Any],
        arrays: dict[str, Arrays],
        learners: tuple[Learner, ...],
        *,
        best: bool,
    ) -> None:
        """Returns once the cut is taken; waits for an earlier one that is still being written."""
        self.wait()
        self.saved_step = step
        snapshots = [learner.snapshot() for learner in learners]
        everything = {**arrays, **{k: v for s in snapshots for k, v in s.arrays.items()}}
        rows = {k: v for s in snapshots for k, v in s.rows.items()}

        def write() -> None:
            path = self.checkpoints.path(step)
            try:
                checkpoint.write(path, facts, everything, rows)
                self.checkpoints.link("last", path)
                if best:
                    self.checkpoints.link("best", path)
                self.checkpoints.prune()
                self.last, self.failure = path, None
            except OSError as error:
                self.failure = self._sentence(path, error)
                self.tell(self.failure)
            finally:
                for snapshot in snapshots:
                    snapshot.close()

        self._writing = threading.Thread(target=write, name="gearshift-saver")
        self._writing.start()

    def wait(self) -> None:
        if self._writing is not None:
            self._writing.join()
            self._writing = None

    def mark_best(self, step: int) -> None:
        """A checkpoint that is already there turned out to be the best."""
        self.wait()
        if self.checkpoints.path(step).is_dir():
            self.checkpoints.link("best", self.checkpoints.path(step))

    def _sentence(self, path: Path, error: OSError) -> str:
        intact = f"{self.last.name} is intact" if self.last else "there is none before it"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(path.parent).free
            return (
                f"no space left on {path.parent} ({free / 1e9:.1f} GB free): checkpoint {path.name} was not "
                f"written, {intact}. Free some space; training goes on and tries again at the next checkpoint"
            )
        return f"checkpoint {path.name} was not written ({error}), {intact}; training goes on and tries again"
