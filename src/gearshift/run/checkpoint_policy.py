"""When a run saves, how much of it is kept, and where: settings alone, so that a config can be read without torch."""

from __future__ import annotations

from dataclasses import dataclass

from gearshift.settings.declaration import setting
from gearshift.settings.units import Count, Folder, Seconds
from gearshift.training.timing import Every, MaybeEvery


@dataclass(frozen=True)
class CheckpointPolicy:
    """When to save (at the end in any case), how many to keep, and in which folder runs are made."""

    every: MaybeEvery = setting(
        Every(seconds=600.0),
        "Save after this wall time (10min), a number of steps (500), a share (10%), or none: at the end.",
    )
    keep: Count = setting(3, "How many of the newest are kept, beside best.", at_least=1)
    path: Folder = setting("runs", "The folder that run folders are made in.")
    private: bool = setting(False, "Only its user can access the run's folder.")
    retry_for: Seconds = setting(
        3600.0,
        "How long the last save is tried again if the disk is full or gone; 0: not at all.",
        at_least=0,
    )
