"""metrics.jsonl of a run: a line every ten seconds, and one for each evaluation."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gearshift.optim.trust_figures import from_figures, trust_figures
from gearshift.run import folder as run_folder
from gearshift.run.prometheus import figures_by_role

if TYPE_CHECKING:
    from gearshift.run.local_run import Run

LOG_SECONDS = 10.0


class MetricsLog:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._logged_at = time.monotonic()
        self._failed = False  # a line could not be written
        self.begin()

    def begin(self) -> None:
        """Speed counts from here."""
        progress = self._run.training.progress
        self._logged = progress.examples, progress.seconds

    def stepped(self) -> None:
        if time.monotonic() - self._logged_at >= LOG_SECONDS:
            progress = self._run.training.progress
            self.write(loss=progress.loss, auc_so_far=progress.measures.auc)

    def write(self, **numbers: float | None) -> None:
        self._logged_at = time.monotonic()
        run, training = self._run, self._run.training
        progress, processes = training.progress, run.processes()
        trust = trust_figures(training.learner.server.statistics() or from_figures(processes))
        line: dict[str, Any] = {
            "step": training.step,
            "time": time.time(),
            "examples": progress.examples,
            "examples_per_second": self._speed_since_logged(),
            "checkpoint_age_seconds": run.health.checkpoint_age,
            "seconds_since_step": run.health.seconds_since_step,
            "strategy": training.strategy.name,
            **(trust and {**trust, "plain_steps": progress.plain_steps}),
            **self._exchange_figures(),
            **figures_by_role(processes),
            **numbers,
        }
        try:
            run_folder.append_metrics(run.folder, line)
        except OSError as error:  # a full disk, say: no reason to lose the training
            if not self._failed:
                run.tell(
                    f"cannot write {run.folder / run_folder.METRICS} ({error.strerror}); training goes on"
                )
            self._failed = True

    def _exchange_figures(self) -> dict[str, float | None]:
        gap = self._run.training.sync_gap()
        if gap is None:
            return {}
        return {"sync_gap": gap["mean"], "in_flight": gap["in_flight"], "exchange_bytes": gap["bytes"]}

    def _speed_since_logged(self) -> float | None:
        """Since the last line, of the time spent training; None if nothing was trained."""
        progress, (examples, seconds) = self._run.training.progress, self._logged
        self._logged = progress.examples, progress.seconds
        if progress.examples <= examples:  # fewer: a lost shard has set the run back
            return None
        return (progress.examples - examples) / (progress.seconds - seconds)
