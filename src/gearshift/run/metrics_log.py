"""metrics.jsonl of a run: a line every ten seconds, and one for each evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gearshift.embedding.rule_figures import RuleCounts, rule_totals, summed_rule_counts
from gearshift.embedding.tier_figures import summary_of
from gearshift.optim.trust_figures import from_figures, trust_figures
from gearshift.run import folder as run_folder
from gearshift.run.health import Health
from gearshift.run.prometheus import figures_by_role
from gearshift.training.training import Training

Processes = Callable[[], dict[str, dict[str, float]]]  # metrics of each process of a run, by its name

LOG_SECONDS = 10.0


class MetricsLog:
    def __init__(
        self,
        folder: Path,
        training: Training,
        health: Health,
        processes: Processes,
        notify: Callable[[str], None],
    ) -> None:
        self._folder, self._training, self._health = folder, training, health
        self._processes, self._notify = processes, notify
        self._logged_at = time.monotonic()
        self._failed = False  # a line could not be written
        self.begin()

    def begin(self) -> None:
        """Starts the measurement of speed."""
        progress = self._training.progress
        self._logged = progress.examples, progress.seconds

    def stepped(self) -> None:
        if time.monotonic() - self._logged_at >= LOG_SECONDS:
            progress = self._training.progress
            self.write(loss=progress.loss, auc_so_far=progress.measures.auc)

    def write(self, **numbers: float | None) -> None:
        self._logged_at = time.monotonic()
        training = self._training
        progress, processes = training.progress, self._processes()
        trust = trust_figures(training.learner.server.statistics() or from_figures(processes))
        line: dict[str, Any] = {
            "step": training.step,
            "time": time.time(),
            "examples": progress.examples,
            "examples_per_second": self._speed_since_logged(),
            "checkpoint_age_seconds": self._health.checkpoint_age,
            "seconds_since_step": self._health.seconds_since_step,
            "strategy": training.strategy.name,
            **(trust and {**trust, "plain_steps": progress.plain_steps}),
            **({"duplicated_examples": progress.duplicated} if progress.duplicated else {}),
            **self._exchange_figures(),
            **figures_by_role(processes),
            **_tier_ratios(processes),
            **rule_totals(self._rule_counts(processes)),
            **numbers,
        }
        try:
            run_folder.append_metrics(self._folder, line)
        except OSError as error:  # for example a full disk, which should not stop the training
            if not self._failed:
                self._notify(
                    f"cannot write {self._folder / run_folder.METRICS} ({error.strerror}); training continues"
                )
            self._failed = True

    def _rule_counts(self, processes: Mapping[str, Mapping[str, float]]) -> RuleCounts:
        learner = self._training.learner
        rules = [store.lifetimes.rules for store in learner.server.stores]
        elsewhere = summed_rule_counts(processes.values(), rules)
        return (
            elsewhere if any(any(counts.values()) for counts in elsewhere.values()) else learner.rule_counts
        )

    def _exchange_figures(self) -> dict[str, float | None]:
        training = self._training
        gap = training.replicas.sync_gap(training.strategy.batch * training.workers)
        if gap is None:
            return {}
        return {"sync_gap": gap["mean"], "in_flight": gap["in_flight"], "exchange_bytes": gap["bytes"]}

    def _speed_since_logged(self) -> float | None:
        """Examples per second of training time since the last line; None if nothing was trained."""
        progress, (examples, seconds) = self._training.progress, self._logged
        self._logged = progress.examples, progress.seconds
        if (
            progress.examples <= examples
        ):  # fewer if the run returned to a checkpoint after the loss of a shard
            return None
        return (progress.examples - examples) / (progress.seconds - seconds)


def _tier_ratios(processes: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Hit rate, space and write amplification of the disk tiers of all shards together, and hit rates by table."""
    tier = summary_of(processes.values())
    if tier is None:
        return {}
    by_table = {table: lookups.ratios()["hit_rate"] for table, lookups in tier.tables.items()}
    return {f"tier_{name}": value for name, value in tier.counts.ratios().items()} | {
        "tier_hit_rates": by_table
    }
