"""When rows expire: which steps are marks, and how far the horizon of each period has come.

A horizon is a step; rows that were last trained before it are over. All shards are told a new one as part of the same
step, so they agree on it. Time is that of the data: the newest that has been trained. A mark lies two steps ahead of
the step that it comes with, because replicas push rows for the step after the one that they have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gearshift.data.row_lifetime import Expire
from gearshift.embedding.horizons import Horizons
from gearshift.embedding.row_rules import periods_of
from gearshift.settings.units import SECONDS
from gearshift.training.ended import BatchMeasures, Ended

if TYPE_CHECKING:
    from gearshift.data.schema import Schema
    from gearshift.training.baseline import Baseline
    from gearshift.training.progress import Progress

MARKS_PER_PERIOD = 32  # so a row lives at most this part of its period longer
AHEAD = 2
LONG_STEPS = 2


class RowExpiry:
    """Marks are kept in `progress`: (step, newest time of the data, step of the baseline)."""

    def __init__(self, schema: Schema, progress: Progress, baseline: Baseline) -> None:
        self._periods = [Expire(after) for after in periods_of(schema)]
        self._progress, self._baseline = progress, baseline
        self._time_before, self._long_steps = -1, [0] * len(self._periods)

    def note(self, leases: Sequence[Ended[BatchMeasures]]) -> None:
        """These leases have ended: their data have been seen."""
        for ended in leases if self._periods else ():
            if ended.report is not None and ended.report.times_B is not None:
                self.note_times(ended.report.times_B)

    def note_times(self, times_B: NDArray[np.int64]) -> None:
        if self._periods and len(times_B):
            self._progress.data_time = max(self._progress.data_time, int(times_B.max()))

    def remarks(self) -> list[str]:
        """Called once a step: periods that are shorter than a step. A single long step may be a gap in the data."""
        before, self._time_before = self._time_before, self._progress.data_time
        if before < 0:
            return []
        passed, found = self._progress.data_time - before, []
        for i, period in enumerate(self._periods):
            if period.seconds is not None and period.seconds < passed:
                self._long_steps[i] += 1
                if self._long_steps[i] == LONG_STEPS:
                    found.append(
                        f"expire.after={period.after} is shorter than a step, which spans {_time_text(passed)} of the "
                        "data: rows expire before they can be trained again. Set a longer time, or a smaller "
                        "train.global_batch"
                    )
        return found

    def at_step(self, step: int) -> Horizons | None:
        """The new horizons that come with this step, if it is time for some."""
        if not self._periods or not self._is_due(step):
            return None
        steps = tuple((number, self._horizon(each, step)) for number, each in enumerate(self._periods))
        marks, own = self._progress.marks, self._baseline.steps + AHEAD
        self._baseline.move_horizons(Horizons(own, tuple((n, self._of_baseline(h)) for n, h in steps)))
        marks.append([step + AHEAD, self._progress.data_time, own])
        while len(marks) > 1 and marks[1][0] <= min(horizon for _, horizon in steps):
            marks.pop(0)
        return Horizons(step + AHEAD, steps)

    def _is_due(self, step: int) -> bool:
        mark, time, _ = self._progress.marks[-1] if self._progress.marks else (AHEAD, -1, 0)
        passed = self._progress.data_time - time
        for period in self._periods:
            if period.seconds is None:
                due = step + AHEAD - mark >= max(1, int(period.after) // MARKS_PER_PERIOD)
            else:
                due = self._progress.data_time >= 0 and (
                    time < 0 or passed >= period.seconds / MARKS_PER_PERIOD
                )
            if due:
                return True
        return False

    def _horizon(self, period: Expire, step: int) -> int:
        if isinstance(period.after, int):
            return max(0, step - period.after + 1)
        assert period.seconds is not None
        newest = self._progress.data_time - period.seconds
        return max((mark for mark, time, _ in self._progress.marks if 0 <= time <= newest), default=0)

    def _of_baseline(self, horizon: int) -> int:
        return max((own for mark, _, own in self._progress.marks if mark <= horizon), default=0)


def _time_text(seconds: float) -> str:
    unit = next((unit for unit in ("d", "h", "min") if seconds >= SECONDS[unit]), "s")
    return f"{seconds / SECONDS[unit]:.3g} {unit}"
