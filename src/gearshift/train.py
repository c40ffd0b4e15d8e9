"""From a config to a run: builds the parts and starts them. The only file that knows all the others."""

from __future__ import annotations

from pathlib import Path

import torch

from gearshift import checkpoint, models, optim, run_folder
from gearshift.config import Config, Every
from gearshift.data.dataset import Dataset, read
from gearshift.data.sources import CsvFormat
from gearshift.data.split import check_no_leak
from gearshift.data.synthetic import ClickLog
from gearshift.embedding.store import ROW_OPTIMIZERS, RowOptimizer
from gearshift.estimate import estimate, refuse_too_large
from gearshift.optim.schedule import Schedule
from gearshift.run import CheckpointPolicy, Run
from gearshift.trainer import Trainer
from gearshift.training import EarlyStopping, Plateau


def start(
    config: Config, *, command: str = "", resume: Path | None = None, init_from: Path | None = None
) -> Run:
    """Starts the run that a config describes and returns at once; `run.wait()` gives its result."""
    run = build(config, command=command, resume=resume, init_from=init_from)
    run.start()
    return run


def build(
    config: Config, *, command: str = "", resume: Path | None = None, init_from: Path | None = None
) -> Run:
    """All of `start` but the start: reads the data's beginning, checks, estimates, makes the run folder."""
    if config.cluster.threads:
        torch.set_num_threads(config.cluster.threads)
    train, valid, test = datasets(config)
    torch.manual_seed(config.train.seed)
    model = models.build(config.model.name, train.schema, **config.model.settings())
    ...
