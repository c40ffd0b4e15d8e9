"""The parts of a live run, each with one job; created when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gearshift.run.event_log import EventLog
from gearshift.run.final_result import FinalResult
from gearshift.run.health import Health
from gearshift.run.last_save import LastSave
from gearshift.run.log import Messages
from gearshift.run.metrics_log import MetricsLog
from gearshift.run.saving import Saving
from gearshift.run.storage_watch import StorageWatch
from gearshift.run.wall_time import WallTime
from gearshift.training.training import Training


@dataclass(frozen=True)
class RunParts:
    training: Training
    messages: Messages  # messages for the user, in order; all of them are in run.log too
    health: Health
    wall: WallTime
    saving: Saving
    last_save: LastSave
    final: FinalResult
    metrics: MetricsLog
    events: EventLog
    storage: StorageWatch

    @property
    def folder(self) -> Path:
        return self.saving.folder
