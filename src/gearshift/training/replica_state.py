"""What checkpoints and reports contain about the workers' replicas: counts of exchanges, and bmuf's velocity."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gearshift.parameters.replicas.figures import Counts, as_json, from_json, summary
from gearshift.training.progress import Progress


class ReplicaState:
    """`counts` has the current counts of each replica; `progress.exchanges` those when replicas were last settled."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.counts: dict[int, Counts] = {}
        self.velocity: Tensor | None = (
            None  # velocity of bmuf's global step when replicas were last settled or folded
        )

    def settled(self, velocity: Tensor | None) -> None:
        """Called when the learner holds the result of all replicas, ready to be evaluated and saved."""
        self.velocity = velocity
        self.note_counts()

    def note_counts(self) -> None:
        self._progress.exchanges = as_json(self.counts)

    def begin_without_velocity(self) -> None:
        """Replicas of a new epoch or strategy start without momentum. On a cluster the shards hold the velocity."""
        self.velocity = None

    def restore_counts(self) -> None:
        """Sets the counts to those in `progress`."""
        self.counts = from_json(self._progress.exchanges)

    def restore_velocity(self, velocity: Tensor) -> None:
        self.velocity = velocity

    def sync_gap(self, parallel_examples: int) -> dict[str, Any] | None:
        """The metrics of all replica exchanges so far; None if there were none."""
        return summary(self.counts.values(), elp=parallel_examples)
