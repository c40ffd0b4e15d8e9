"""When and where a run saves, and how many checkpoints it keeps. Settings only: a config is read without torch."""

from __future__ import annotations

from dataclasses import dataclass

from gearshift.settings.declaration import setting
from gearshift.settings.units import Count, Folder, Seconds, parse_folder
from gearshift.training.timing import Every, MaybeEvery


@dataclass(frozen=True)
class CheckpointPolicy:
    """When to save (always at the end), how many checkpoints to keep, and in which folder runs are created."""

    every: MaybeEvery = setting(
        Every(seconds=600.0),
        "Save after this wall time (10min), a number of steps (500), a share (10%), or none: only at the end.",
    )
    keep: Count = setting(
        3, "How many of the newest checkpoints are kept, in addition to the best.", at_least=1
    )
    path: Folder = setting("runs", "The folder in which run folders are created.")
    private: bool = setting(False, "Only its user can access the run's folder.")
    retry_for: Seconds = setting(
        3600.0,
        "How long the last save is retried if the disk is full or unavailable; 0: not at all.",
        at_least=0,
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", parse_folder(self.path))
