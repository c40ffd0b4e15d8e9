"""The recipe of a run that was started from Python, from which the processes of a cluster build it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from gearshift.data.dataset import Dataset
from gearshift.data.schema import Schema
from gearshift.run.callbacks import Callback
from gearshift.run.prepared_run import PreparedRun

if TYPE_CHECKING:
    from gearshift.trainer.trainer import Trainer


@dataclass(frozen=True)
class ObjectRecipe:
    """How the processes of a cluster build a run that was started from Python (`process_context.Recipe`)."""

    trainer: Trainer
    model: nn.Module
    train: Dataset
    valid: Dataset | None
    test: Dataset | None
    init_from: str | Path | None
    callbacks: tuple[Callback, ...] = ()

    def build(self, schema: Schema | None, resume: Path | None) -> PreparedRun:
        init_from = self.init_from if schema is None and resume is None else None
        return self.trainer.in_cluster_process().prepare(
            self.model,
            self.train,
            self.valid,
            self.test,
            resume=resume,
            init_from=init_from,
            schema=schema,
            rows_elsewhere=True,
            callbacks=self.callbacks,
        )

    def header(self, run: PreparedRun, folder: Path) -> tuple[str, ...]:
        return ()
